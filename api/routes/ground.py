"""POST /ground: where on an image is a phrase answered?"""

import asyncio
from io import BytesIO
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Form, Request, Response
from PIL import Image
from torch import Tensor

from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.inference import Grounding, upsample
from medclip_dcl.schemas import GroundAnswer, ImageFacts, PhraseAnswer

from ..errors import ApiError, documented
from ..model_manager import CurrentState
from ..uploads import FormImage, ImageToDraw, Phrases, wants_picture

router = APIRouter(tags=["questions"])

LONGEST_PX = 1024
"""Longest side of a picture that is drawn here."""

_OPACITY = 0.55
_EVEN = 1e-3  # scores this close to the mean are shown as weak as they are
_HEAT = np.array(
    [[0, 0, 0], [68, 1, 84], [187, 55, 84], [249, 142, 9], [252, 255, 164]], dtype=np.float32
)

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
        picture = await asyncio.to_thread(overlay_png, whole_image, found[0])
        return Response(picture, media_type="image/png")
    return GroundAnswer(
        model=model.digest,
        image=ImageFacts.of(image, out_of_range=model.is_out_of_range(image.pixels)),
        phrases=[PhraseAnswer.of(item) for item in found],
    )


def overlay_png(image: GreyImage, found: Grounding) -> bytes:
    """Draw where a phrase is answered onto the image: a PNG, its longer side at most 1024."""
    height, width = image.pixels.shape
    scale = min(1.0, LONGEST_PX / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    grey8 = Image.fromarray((image.pixels >> 8).astype(np.uint8))
    grey = np.asarray(grey8.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    heat = upsample(found.grid, *size)
    # scores above the image's mean, as shares of the highest; none where all are alike
    above = np.clip(heat - heat.mean(), 0, None)
    share = np.asarray(above / max(float(above.max()), _EVEN), dtype=np.float32)
    opacity = (_OPACITY * share)[..., None]
    mixed = (1 - opacity) * grey[..., None] + opacity * _coloured(share)
    stream = BytesIO()
    Image.fromarray(mixed.round().astype(np.uint8)).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _coloured(heat: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    stops = np.linspace(0, 1, len(_HEAT))
    channels = [np.interp(heat, stops, _HEAT[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).astype(np.float32)
