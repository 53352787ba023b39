"""POST /ground: where on an image is a phrase answered?"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from PIL import Image
from torch import Tensor

from medclip_dcl.data.grayscale import GreyImage, SquareImage
from medclip_dcl.inference.grounding import Grounding, draw_heat
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.schemas import (
    GroundAnswer,
    GroundAnswers,
    RefusedImage,
)

from ..errors import ApiError, documented
from ..model_manager import CurrentState, ServingState
from ..settings import MAX_IMAGES
from ..uploads import ImageFiles, Phrases, answer_each, decode_whole, wants_picture

router = APIRouter(tags=["questions"])

_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {}}, "description": "JSON, or a PNG where asked for"}
}


@router.post(
    "/ground",
    response_model=GroundAnswer | GroundAnswers,
    form_limits={"max_files": MAX_IMAGES},
    responses={
        **_PICTURE,
        **documented("not_acceptable", "no_regions", has_form=True, has_image=True),
    },
)
async def ground(
    request: Request,
    serving: CurrentState,
    phrases: Phrases,
    files: ImageFiles,
    threshold: Annotated[
        float | None,
        Form(ge=-1, le=1, allow_inf_nan=False, description="score from which boxes are traced"),
    ] = None,
) -> GroundAnswer | Response:
    """Score every region of an image against phrases; a picture with `Accept: image/png`.

    Of several images each has its answer.
    """
    is_drawn = wants_picture(request)
    if is_drawn and (len(phrases) != 1 or len(files) != 1):
        raise ApiError("not_acceptable")
    model = serving.predictor
    if not model.has_regions:
        raise ApiError("no_regions")
    question = _Question(model, tuple(phrases))

    async def one(_place: int, image: SquareImage) -> tuple[SquareImage, list[Grounding]]:
        def answer(found: Any) -> list[Grounding]:
            located: list[Grounding] = found.locate(image.height_px, image.width_px, threshold)
            return located

        pixels, submit = image.pixels, serving.batcher.submit
        if model.model.image.is_pooled:  # its patches are of another pass
            patches = partial(model.embed_regions, pixels[None])
            found = await submit(request, None, None, lambda _: answer(*question(patches())))
            return image, found
        return image, await submit(request, model, pixels, answer, question)

    found = await answer_each(request, serving, files, one)
    if is_drawn and not isinstance(found[0], RefusedImage):
        whole = await decode_whole(request, serving, files[0])
        picture = partial(overlay_png, whole, found[0][1][0])
        png = await serving.draw_slots.run(request, picture)
        return Response(png, media_type="image/png")
    answers = [
        item if isinstance(item, RefusedImage) else _answer(serving, *item) for item in found
    ]
    if len(answers) == 1 and isinstance(answers[0], GroundAnswer):
        return answers[0]
    several = GroundAnswers(model=model.digest, answers=answers)
    body = await serving.draw_slots.run(request, several.model_dump_json)
    return Response(body, media_type="application/json")


@dataclass(frozen=True)
class _Question:
    """Question about images: where it is equal, phrases are encoded once for a batch."""

    model: Predictor
    phrases: tuple[str, ...]

    def __call__(self, regions: Tensor) -> Iterable[Any]:
        return self.model.phrase_grids(regions, self.phrases)


def _answer(serving: ServingState, image: SquareImage, found: Sequence[Grounding]) -> GroundAnswer:
    model = serving.predictor
    answer = GroundAnswer.of(model, image, found)
    serving.metrics.note_facts(model.digest, answer.image)
    return answer


def overlay_png(image: GreyImage, found: Grounding) -> bytes:
    """Draw where a phrase is answered onto the image: a PNG, its longer side at most 1024."""
    stream = BytesIO()
    picture = draw_heat(image, [found.grid], found.affine)
    Image.fromarray(picture).save(stream, "PNG", compress_level=1)
    return stream.getvalue()
