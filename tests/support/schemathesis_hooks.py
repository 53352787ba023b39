"""What schemathesis cannot know: what an image looks like, and which findings an index has.

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
_TEXTS, _LISTS_OF_TEXTS = (
    {"text", "findings", "box", "exclude_patient"},
    {"view", "phrase", "split", "finding"},
)
_TOO_LONG = "0" * 5000

_matched = REQUESTS_TRANSPORT.get_first_matching_media_type(_FORM)
assert _matched is not None
_serialize = _matched[1]


@REQUESTS_TRANSPORT.serializer(_FORM)
def _with_images(context: Any, body: Any) -> dict[str, Any]:
    """Send images where any bytes fit the schema, and findings that the index has.

    A form carries texts alone: what should be one, or a list of them, and is not, goes as one that
    is too long for any.
    """
    if isinstance(body, dict):
        body = dict(body)
        image = body.get("image")
        if isinstance(image, list):  # of /embed
            body["image"] = [_image(item) for item in image]
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
    return _serialize(context, body)


def _known(name: str) -> str:
    """A finding that every index knows, if the name fits the schema."""
    return name if len(name) > MAX_ID_CHARS else LABELS[len(name) % len(LABELS)]


def _image(drawn: Any) -> Binary:
    """An image where any bytes fit the schema; what is not a file at all is sent as one."""
    if isinstance(drawn, str | bytes):
        return Binary(IMAGES[len(drawn) % len(IMAGES)])
    return Binary(repr(drawn).encode())
