"""What schemathesis cannot know: what an image looks like, where a box is on one, that names of
findings differ, and which findings an index has.

Loaded by schemathesis itself through the variable SCHEMATHESIS_HOOKS. What it drew stays as it
is, since its checks look at it; only what goes over the wire is exchanged.
"""

from typing import Any

from schemathesis.transport.requests import REQUESTS_TRANSPORT
from schemathesis.transport.serialization import Binary

from api.settings import MAX_ID_CHARS
from medclip_dcl.text.labeler.lexicon import LABELS
from tests.support.dicom import dicom_bytes, ramp
from tests.support.service import png

IMAGES = (png(), png((40, 120), seed=5), dicom_bytes(ramp(96, 64)))
_FORM = "multipart/form-data"
_SHORTEST_PX, _MOST_BOXES = 20, 32
_TEXTS, _LISTS_OF_TEXTS = {"text"}, {"view", "phrase", "split", "finding"}
_TOO_LONG = "0" * 5000

_matched = REQUESTS_TRANSPORT.get_first_matching_media_type(_FORM)
assert _matched is not None
_serialize = _matched[1]


@REQUESTS_TRANSPORT.serializer(_FORM)
def _with_images(context: Any, body: Any) -> dict[str, Any]:
    """Send images where any bytes fit the schema, boxes that are on them, names that differ.

    A form carries texts alone: what should be one, or a list of them, and is not, goes as one that
    is too long for any.
    """
    if isinstance(body, dict):
        body = dict(body)
        image, box, boxes = body.get("image"), body.get("box"), body.get("boxes")
        if isinstance(image, list):  # of /embed, with as many boxes
            body["image"] = [_image(item) for item in image]
            if isinstance(boxes, list) and boxes:
                drawn = [_on_image(boxes[number % len(boxes)]) for number in range(len(image))]
                body["boxes"] = drawn if len(boxes) <= _MOST_BOXES else boxes
        elif "image" in body:
            body["image"] = _image(image)
        for name in _LISTS_OF_TEXTS & body.keys():
            items = body[name] if isinstance(body[name], list) else [None]
            body[name] = [item if isinstance(item, str) else _TOO_LONG for item in items]
        for name in _TEXTS & body.keys():
            if isinstance(body[name], list):
                body[name] = [item if isinstance(item, str) else _TOO_LONG for item in body[name]]
            elif not isinstance(body[name], str):
                body[name] = _TOO_LONG
        if "finding" in body:
            body["finding"] = [_known(item) for item in body["finding"]]
        if isinstance(body.get("findings"), list):
            body["findings"] = [_renamed(*numbered) for numbered in enumerate(body["findings"])]
        if "box" in body:
            body["box"] = _on_image(box)
    return _serialize(context, body)


def _known(name: str) -> str:
    """A finding that every index knows, if the name fits the schema."""
    return name if len(name) > MAX_ID_CHARS else LABELS[len(name) % len(LABELS)]


def _image(drawn: Any) -> Binary:
    """An image where any bytes fit the schema; what is not a file at all is sent as one."""
    if isinstance(drawn, str | bytes):
        return Binary(IMAGES[len(drawn) % len(IMAGES)])
    return Binary(repr(drawn).encode())


def _on_image(box: Any) -> Any:
    """A box that is on every image, if it is one."""
    if not isinstance(box, list) or [type(item) in {int, float} for item in box] != [True] * 4:
        return box
    x, y, width, height = (abs(item) % _SHORTEST_PX for item in box)
    return box if min(box) < 0 else [x, y, 1 + width, 1 + height]


def _renamed(number: int, finding: Any) -> Any:
    """A finding whose name, if it is one, ends with its number."""
    name = finding.get("name") if isinstance(finding, dict) else None
    if not isinstance(name, str) or not name.strip() or len(name) > 900:
        return finding
    return {**finding, "name": f"{name}{number}"}
