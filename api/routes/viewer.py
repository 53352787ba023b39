"""GET /: the viewer, one page with one module and one style sheet; POST /pixels: what it draws."""

import io
import json
from pathlib import Path

import numpy as np
from fastapi import APIRouter, Request, Response
from PIL import Image

from medclip_dcl.data.grayscale import GreyImage

from ..errors import ApiError, documented
from ..uploads import WholeImage, wants_picture

router = APIRouter(tags=["viewer"])
pages = APIRouter(include_in_schema=False)

_FOLDER = Path(__file__).parents[1] / "static"
_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "viewer.js": "text/javascript; charset=utf-8",
    "viewer.css": "text/css; charset=utf-8",
}
_FILES = {name: (_FOLDER / name).read_bytes() for name in _TYPES}


@pages.get("/")
async def page() -> Response:
    """Give the page."""
    return _file("index.html")


@pages.get("/static/{name}")
async def static(name: str) -> Response:
    """Give a file of the page; any other name is not found."""
    return _file(name)


def _file(name: str) -> Response:
    if name not in _FILES:
        raise ApiError("not_found")
    headers = {"Content-Type": _TYPES[name], "Cache-Control": "no-cache"}
    return Response(_FILES[name], headers=headers)


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
    """Give an image as a 16-bit grey PNG of full size."""
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
