"""POST /ground: where on a film is a phrase answered?"""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from torch import Tensor

from api.dependencies import Film, FilmToDraw, Phrases, Served
from api.failures import Refusal, documented
from api.messages import GroundAnswer, ImageFacts, PhraseAnswer
from api.pictures import overlay_png
from api.uploads import wants_picture
from medclip_dcl.inference.heatmap import Grounding

router = APIRouter(tags=["questions"])

_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {}}, "description": "JSON, or a PNG where asked for"}
}


@router.post(
    "/ground",
    response_model=GroundAnswer,
    responses={**_PICTURE, **documented("not_acceptable", has_form=True, has_film=True)},
)
async def ground(
    request: Request,
    serving: Served,
    phrases: Phrases,
    film: Film,
    whole_film: FilmToDraw,
    threshold: Annotated[
        float | None,
        Form(ge=-1, le=1, allow_inf_nan=False, description="score from which boxes are traced"),
    ] = None,
) -> GroundAnswer | Response:
    """Score every region of a film against phrases; a picture with `Accept: image/png`."""
    if wants_picture(request) and len(phrases) != 1:
        raise Refusal("not_acceptable")
    model = serving.predictor

    def answer(regions: Tensor) -> list[Grounding]:
        return model.ground_regions(regions, phrases, film.height_px, film.width_px, threshold)

    found = await serving.asking.ask_about(request, model, film.pixels, answer)
    if whole_film is not None:
        picture = await asyncio.to_thread(overlay_png, whole_film, found[0])
        return Response(picture, media_type="image/png")
    return GroundAnswer(
        model=model.digest,
        image=ImageFacts.of(film, out_of_range=model.is_out_of_range(film.pixels)),
        phrases=[PhraseAnswer.of(item) for item in found],
    )
