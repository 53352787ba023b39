"""POST /ground: where on a film is a phrase answered?"""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response

from api.dependencies import Film, Phrases, Served
from api.failures import Refusal, documented
from api.messages import GroundAnswer, ImageFacts, PhraseAnswer
from api.pictures import overlay_png
from medclip_dcl.studies.images import GreyImage
from medclip_dcl.tasks.predictor import Predictor

router = APIRouter(tags=["questions"])

_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {}}, "description": "JSON, or a PNG where asked for"}
}


@router.post(
    "/ground",
    response_model=GroundAnswer,
    responses={**_PICTURE, **documented("not_acceptable", "invalid_request")},
)
async def ground(
    request: Request,
    serving: Served,
    phrases: Phrases,
    film: Film,
    threshold: Annotated[
        float | None,
        Form(ge=-1, le=1, allow_inf_nan=False, description="score from which boxes are traced"),
    ] = None,
) -> GroundAnswer | Response:
    """Score every region of a film against phrases; a picture with `Accept: image/png`."""
    wants_picture = request.headers.get("accept", "").startswith("image/png")
    if wants_picture and len(phrases) != 1:
        raise Refusal("not_acceptable")
    model = serving.predictor
    work = _draw if wants_picture else _answer
    return await serving.asking.run(request, lambda: work(model, film, phrases, threshold))


def _answer(
    model: Predictor, film: GreyImage, phrases: list[str], threshold: float | None
) -> GroundAnswer:
    square = model.square(film)
    height, width = film.pixels.shape
    regions = model.embed_images(square[None])[0]
    found = model.ground_regions(regions, phrases, height, width, threshold)
    return GroundAnswer(
        model=model.digest,
        image=ImageFacts.of(film, square),
        phrases=[PhraseAnswer.of(item) for item in found],
    )


def _draw(
    model: Predictor, film: GreyImage, phrases: list[str], threshold: float | None
) -> Response:
    (found,) = model.ground(film, phrases, threshold)
    return Response(overlay_png(film, found), media_type="image/png")
