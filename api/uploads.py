"""Bytes and strings of a form -> a decoded image, a box, findings; nothing else gets in."""

import json
import math
import re
from typing import Any

from fastapi import Request, UploadFile

from medclip_dcl.data.images import SquareImage
from medclip_dcl.inference import Finding, parse_prompts

from .errors import ApiError
from .logging import state_of
from .settings import MAX_FINDINGS, MAX_TEXT_CHARS

_LARGE = 256 * 1024
_LONGEST_HEAD = 4096
_BOUNDARY = re.compile(
    rb"^multipart/form-data;\s*boundary=(?:\"([^\"]{1,70})\"|([^\s;\"]{1,70}))\s*$"
)


def set_image_aside(body: bytes, content_type: bytes) -> tuple[bytes, memoryview]:
    """Take a large file out of a form, so that its bytes are not copied field by field.

    Args:
        body: of the request.
        content_type: its Content-Type header.

    Returns:
        The form, in which the content of the file begins later, and what was taken out: nothing
        where there is no large file. Together they say what the body said, whatever the parser
        of the form makes of it: a prefix of one file's content is missing, no more. Whose it
        is needs no telling, since a form with two files is refused (`max_files` in api.app).
    """
    found = _BOUNDARY.search(content_type)
    if len(body) < _LARGE or found is None:
        return body, memoryview(b"")
    delimiter = b"--" + (found[1] or found[2])
    place = 0 if body.startswith(delimiter) else -1
    while place >= 0:
        start = body.find(b"\r\n\r\n", place, place + _LONGEST_HEAD) + 4
        end = body.find(b"\r\n" + delimiter, start)
        if start < 4 or end < 0:
            break
        if end - start >= _LARGE and b"filename=" in body[place:start]:
            return body[:start] + body[end:], memoryview(body)[start:end]
        place = end + 2
    return body, memoryview(b"")


async def read_upload(request: Request, upload: UploadFile) -> bytes | memoryview:
    """Read an uploaded file; its name is not looked at.

    Args:
        request: the request.
        upload: the file.

    Returns:
        All its bytes.
    """
    await upload.seek(0)  # a form may be read for two purposes
    rest = await upload.read()
    aside: memoryview = state_of(request.scope).image
    return b"".join((aside, rest)) if rest or not aside else aside


def wants_picture(request: Request) -> bool:
    """Return whether a picture is asked for instead of JSON.

    Args:
        request: the request.

    Returns:
        Whether its Accept header begins with `image/png`.
    """
    return request.headers.get("accept", "").startswith("image/png")


def plain_text(text: str) -> str:
    """Check a sentence that goes to the tokenizer.

    Args:
        text: what was sent.

    Returns:
        The text with every run of whitespace replaced by one space.

    Raises:
        ApiError: it is empty, too long, or holds what is not text.
    """
    words = " ".join(text.split())
    surrogate = any(0xD800 <= ord(character) < 0xE000 for character in words)
    if not words or len(words) > MAX_TEXT_CHARS or "\0" in words or surrogate:
        raise ApiError("invalid_request")
    return words


def parse_box(text: str, image: SquareImage) -> tuple[float, float, float, float]:
    """Read a box that is on an image.

    Args:
        text: JSON list [x, y, width, height], pixels of the image.
        image: the image.

    Returns:
        x, y, width and height as shares of the image's width and height.

    Raises:
        ApiError: it is malformed, empty, or leaves the image.
    """
    tree = _strict_json(text)
    is_list = isinstance(tree, list) and len(tree) == 4
    if not is_list or not all(type(item) in {int, float} for item in tree):
        raise ApiError("invalid_request")
    height_px, width_px = image.height_px, image.width_px
    try:
        x, y, width, height = (float(item) for item in tree)
    except OverflowError as error:
        raise ApiError("invalid_request") from error
    inside = x >= 0 and y >= 0 and x + width <= width_px and y + height <= height_px
    if not all(map(math.isfinite, (x, y, width, height))) or min(width, height) < 1 or not inside:
        raise ApiError("invalid_request")
    return x / width_px, y / height_px, width / width_px, height / height_px


def parse_findings(text: str | None) -> tuple[Finding, ...] | None:
    """Read the findings that a client asks for.

    Args:
        text: JSON list of objects with `name`, `positive` and `negative`; None or
            empty: those that the model was published with.

    Returns:
        The findings; None for the model's own.

    Raises:
        ApiError: it is not JSON, or beyond a limit.
        QueryError: an entry is malformed.
    """
    if not text:
        return None
    findings = parse_prompts(_strict_json(text))
    prompts = [side for finding in findings for side in (*finding.positive, *finding.negative)]
    if len(findings) > MAX_FINDINGS or len(prompts) > 8 * MAX_FINDINGS:
        raise ApiError("invalid_request")
    for text in (*prompts, *(finding.name for finding in findings)):
        plain_text(text)
    return findings


def _strict_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ApiError("invalid_request") from error


def _refuse(_constant: str) -> None:
    raise ValueError("not a number is not JSON")
