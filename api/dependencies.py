"""What a route may ask for, as named annotated types."""

from typing import Annotated

from fastapi import Depends, File, Form, Request, UploadFile

from api.failures import Refusal
from api.serving import Serving
from api.uploads import plain_text, read_upload
from medclip_dcl.studies.images import GreyImage


def get_serving(request: Request) -> Serving:
    """Give what the app serves.

    Args:
        request: any request to it.

    Returns:
        The loaded parts.
    """
    serving: Serving = request.app.state.serving
    return serving


Served = Annotated[Serving, Depends(get_serving)]
"""Model, index and decoder."""

ImageFile = Annotated[UploadFile, File(description="a film: DICOM, PNG or JPEG")]


async def get_film(request: Request, serving: Served, image: ImageFile) -> GreyImage:
    """Decode the film of a form, in a worker process.

    Args:
        request: the request.
        serving: the loaded parts.
        image: the file.

    Returns:
        The film.

    Raises:
        ImageError: the film is refused.
        Refusal: the service is not ready, or too busy.
    """
    decoder = serving.decoder
    data = await read_upload(image, serving.settings)
    return await serving.decoding.run(request, lambda: decoder.open(data))


async def get_optional_film(
    request: Request,
    serving: Served,
    image: Annotated[UploadFile | None, File(description="a film: DICOM, PNG or JPEG")] = None,
) -> GreyImage | None:
    """Decode the film of a form that may have none.

    Args:
        request: the request.
        serving: the loaded parts.
        image: the file.

    Returns:
        The film, or None.

    Raises:
        ImageError: the film is refused.
        Refusal: the service is not ready, or too busy.
    """
    return None if image is None else await get_film(request, serving, image)


def get_phrases(
    serving: Served,
    phrase: Annotated[list[str], Form(description="a sentence; may be given several times")],
) -> list[str]:
    """Check the phrases of a form.

    Args:
        serving: the loaded parts, with the limits.
        phrase: the phrases.

    Returns:
        The phrases, whitespace collapsed.

    Raises:
        Refusal: there are too many, or one is empty, too long or no text.
    """
    if len(phrase) > serving.settings.max_phrases:
        raise Refusal("invalid_request")
    return [plain_text(text, serving.settings.max_text_chars) for text in phrase]


Film = Annotated[GreyImage, Depends(get_film)]
"""The decoded film of the form."""

OptionalFilm = Annotated[GreyImage | None, Depends(get_optional_film)]
"""The decoded film of the form, where it has one."""

Phrases = Annotated[list[str], Depends(get_phrases)]
"""The checked phrases of the form."""
