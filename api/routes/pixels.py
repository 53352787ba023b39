"""POST /pixels: the decoded film, for a screen."""

from fastapi import APIRouter, Request, Response

from api.dependencies import WholeFilm
from api.failures import documented
from api.pictures import film_bytes, film_facts, film_png

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
        **documented(has_form=True, has_film=True),
    },
)
def pixels(request: Request, film: WholeFilm) -> Response:
    """Decode a film and give its pixels back."""
    headers = {"X-Film": film_facts(film)}
    if request.headers.get("accept", "").startswith("image/png"):
        return Response(film_png(film), media_type="image/png", headers=headers)
    return Response(film_bytes(film), media_type="application/octet-stream", headers=headers)
