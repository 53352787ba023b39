"""POST /ground: where on an image is a phrase answered?"""

from functools import partial
from io import BytesIO
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from PIL import Image
from torch import Tensor

from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.heatmaps import draw_heat
from medclip_dcl.inference.grounding import Grounding
from medclip_dcl.schemas import GroundAnswer, ImageFacts, PhraseAnswer

from ..errors import ApiError, documented
from ..model_manager import CurrentState
from ..uploads import FormImage, ImageToDraw, Phrases, wants_picture

router = APIRouter(tags=["questions"])

_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {}}, "description": "JSON, or a PNG where asked for"}
}


@router.post(
    "/ground",
    response_model=GroundAnswer,
    responses={**_PICTURE, **documented("not_acceptable", has_form=True, has_image=True)},
)
async def ground(
    request: Request,
    serving: CurrentState,
    phrases: Phrases,
    image: FormImage,
    whole_image: ImageToDraw,
    threshold: Annotated[
        float | None,
        Form(ge=-1, le=1, allow_inf_nan=False, description="score from which boxes are traced"),
    ] = None,
) -> GroundAnswer | Response:
    """Score every region of an image against phrases; a picture with `Accept: image/png`."""
    if wants_picture(request) and len(phrases) != 1:
        raise ApiError("not_acceptable")
    model = serving.predictor

    def answer(regions: Tensor) -> list[Grounding]:
        return model.ground_regions(regions, phrases, image.height_px, image.width_px, threshold)

    found = await serving.batcher.submit(request, model, image.pixels, answer)
    if whole_image is not None:
        picture = await serving.draw_slots.run(request, partial(overlay_png, whole_image, found[0]))
        return Response(picture, media_type="image/png")
    return GroundAnswer(
        model=model.digest,
        image=ImageFacts.of(image, out_of_range=model.is_out_of_range(image.pixels)),
        phrases=[PhraseAnswer.of(item) for item in found],
    )


def overlay_png(image: GreyImage, found: Grounding) -> bytes:
    """Draw where a phrase is answered onto the image: a PNG, its longer side at most 1024."""
    stream = BytesIO()
    Image.fromarray(draw_heat(image, [found.grid])).save(stream, "PNG", compress_level=1)
    return stream.getvalue()
