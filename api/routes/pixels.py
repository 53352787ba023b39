"""POST /pixels: the decoded image, for a screen."""

from fastapi import APIRouter, Request, Response

from ..dependencies import WholeImage
from ..errors import documented
from ..rendering import image_bytes, image_facts, image_png

router = APIRouter(tags=["viewer"])


@router.post(
    "/pixels",
    response_class=Response,
    responses={
        200: {
            "description": "16-bit little-endian greys, row by row, described by the header "
            "X-Film; a 16-bit PNG with `Accept: image/png`",
            "content": {"application/octet-stream": {}, "image/png": {}},
        },
        **documented(has_form=True, has_image=True),
    },
)
def pixels(request: Request, image: WholeImage) -> Response:
    """Decode an image and give its pixels back."""
    headers = {"X-Film": image_facts(image)}
    if request.headers.get("accept", "").startswith("image/png"):
        return Response(image_png(image), media_type="image/png", headers=headers)
    return Response(image_bytes(image), media_type="application/octet-stream", headers=headers)
