"""What a route may ask for, as named annotated types."""

from typing import Annotated

from fastapi import Depends, File, Form, Request, UploadFile

from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.images import SquareImage

from .errors import ApiError
from .model_manager import ModelManager, ServingState
from .settings import MAX_PHRASES
from .uploads import plain_text, read_upload, wants_picture


async def get_serving(request: Request) -> ServingState:
    """Give what a request is answered with, the same from its beginning to its end.

    Args:
        request: any request to the app.

    Returns:
        The loaded parts.
    """
    serving: ModelManager = request.app.state.serving
    return serving.current


CurrentState = Annotated[ServingState, Depends(get_serving)]
"""Model, index and decoder."""

ImageFile = Annotated[UploadFile, File(description="an image: DICOM, PNG or JPEG")]


async def get_image(request: Request, serving: CurrentState, image: ImageFile) -> SquareImage:
    """Decode the image of a form as the model sees it, in a worker process.

    Args:
        request: the request.
        serving: the loaded parts.
        image: the file.

    Returns:
        The prepared image, by the same code as `prepare_images`.

    Raises:
        ImageError: the image is refused.
        ApiError: the service is not ready, or too busy.
    """
    decoder, images = serving.decoder, serving.predictor.config.images
    data = await read_upload(request, image)
    return await serving.decode_slots.run(
        request, lambda: decoder.square(data, images.size_px, equalize=images.equalize)
    )


async def get_optional_image(
    request: Request,
    serving: CurrentState,
    image: Annotated[UploadFile | None, File(description="an image: DICOM, PNG or JPEG")] = None,
) -> SquareImage | None:
    """Decode the image of a form that may have none.

    Args:
        request: the request.
        serving: the loaded parts.
        image: the file.

    Returns:
        The image, or None.

    Raises:
        ImageError: the image is refused.
        ApiError: the service is not ready, or too busy.
    """
    return None if image is None else await get_image(request, serving, image)


async def get_whole_image(request: Request, serving: CurrentState, image: ImageFile) -> GreyImage:
    """Decode the image of a form with all its pixels, in a worker process.

    Args:
        request: the request.
        serving: the loaded parts.
        image: the file.

    Returns:
        The image.

    Raises:
        ImageError: the image is refused.
        ApiError: the service is not ready, or too busy.
    """
    decoder = serving.decoder
    data = await read_upload(request, image)
    return await serving.decode_slots.run(request, lambda: decoder.open(data))


async def get_image_to_draw(
    request: Request, serving: CurrentState, image: ImageFile
) -> GreyImage | None:
    """Decode the image of a form with all its pixels, where the answer is to be a picture.

    Args:
        request: the request.
        serving: the loaded parts.
        image: the file.

    Returns:
        The image; None where JSON is asked for.

    Raises:
        ImageError: the image is refused.
        ApiError: the service is not ready, or too busy.
    """
    return await get_whole_image(request, serving, image) if wants_picture(request) else None


async def get_phrases(
    phrase: Annotated[list[str], Form(description="a sentence; may be given several times")],
) -> list[str]:
    """Check the phrases of a form.

    Args:
        phrase: the phrases.

    Returns:
        The phrases, whitespace collapsed.

    Raises:
        ApiError: there are too many, or one is empty, too long or no text.
    """
    if len(phrase) > MAX_PHRASES:
        raise ApiError("invalid_request")
    return [plain_text(text) for text in phrase]


FormImage = Annotated[SquareImage, Depends(get_image)]
"""The image of the form, prepared for the model."""

OptionalImage = Annotated[SquareImage | None, Depends(get_optional_image)]
"""The image of the form, where it has one, prepared for the model."""

WholeImage = Annotated[GreyImage, Depends(get_whole_image)]
"""The image of the form with all its pixels."""

ImageToDraw = Annotated[GreyImage | None, Depends(get_image_to_draw)]
"""The image of the form with all its pixels, where the answer is to be a picture."""

Phrases = Annotated[list[str], Depends(get_phrases)]
"""The checked phrases of the form."""
