"""GET /: the viewer, one page with its modules and style sheet; POST /pixels: what it draws."""

import io
import json
from pathlib import Path

import numpy as np
from fastapi import APIRouter, Request, Response
from PIL import Image

from medclip_dcl.data.grayscale import GreyImage

from ..auth import STATIC
from ..errors import ApiError, documented
from ..uploads import WholeImage, wants_picture

router = APIRouter(tags=["viewer"])
pages = APIRouter(include_in_schema=False)

_PAGE = (Path(__file__).parents[1] / "static/index.html").read_bytes()
_FILES = {name: file.read_bytes() for name, file in STATIC.items()}
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


@pages.get("/")
async def page() -> Response:
    """Return the page."""
    return _answer(_PAGE, "text/html; charset=utf-8")


@pages.get("/static/{name}")
async def static(name: str) -> Response:
    """Return a file of the page; any other name is not found."""
    if name not in _FILES:
        raise ApiError("not_found")
    return _answer(_FILES[name], _TYPES[Path(name).suffix])


def _answer(data: bytes, kind: str) -> Response:
    return Response(data, headers={"Content-Type": kind, "Cache-Control": "no-cache"})


@router.post(
    "/pixels",
    response_class=Response,
    responses={
        200: {
            "description": "16-bit little-endian greys, row by row, described by the header "
            "X-Image; a 16-bit PNG with `Accept: image/png`",
            "content": {"application/octet-stream": {}, "image/png": {}},
        },
        **documented(has_form=True, has_image=True),
    },
)
def pixels(request: Request, image: WholeImage) -> Response:
    """Decode an image and give its pixels back."""
    headers = {"X-Image": _facts(image)}
    if wants_picture(request):
        return Response(image_png(image), media_type="image/png", headers=headers)
    greys = image.pixels.astype("<u2", copy=False).tobytes()
    return Response(greys, media_type="application/octet-stream", headers=headers)


def image_png(image: GreyImage) -> bytes:
    """Return an image as a 16-bit grey PNG of full size."""
    stream = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(image.pixels))
    picture.save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _facts(image: GreyImage) -> str:
    height, width = image.pixels.shape
    facts = {
        "width": width,
        "height": height,
        "spacing_mm": image.spacing_mm,
        "window": image.window,
        "bits_stored": image.bits_stored,
        "source": image.source,
        "inverted": image.inverted,
    }
    return json.dumps(facts)
