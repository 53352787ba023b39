"""GET /: the viewer, one page with one module and one style sheet, without any outside help."""

from pathlib import Path

from fastapi import APIRouter, Response

from ..errors import ApiError

router = APIRouter(tags=["viewer"], include_in_schema=False)

_FOLDER = Path(__file__).parents[1] / "static"
_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "viewer.js": "text/javascript; charset=utf-8",
    "viewer.css": "text/css; charset=utf-8",
}
_FILES = {name: (_FOLDER / name).read_bytes() for name in _TYPES}


@router.get("/")
async def page() -> Response:
    """Give the page."""
    return _file("index.html")


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """Give a file of the page; there are no others to be found."""
    return _file(name)


def _file(name: str) -> Response:
    if name not in _FILES:
        raise ApiError("not_found")
    headers = {"Content-Type": _TYPES[name], "Cache-Control": "no-cache"}
    return Response(_FILES[name], headers=headers)
