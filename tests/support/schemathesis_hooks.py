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
_TEXTS = {"text", "findings", "box", "exclude_patient"}
_LISTS_OF_TEXTS = {"view", "phrase", "split", "finding"}

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
        body = {name: _sendable(name, value) for name, value in body.items()}
    return _serialize(context, body)


def _sendable(name: str, value: Any) -> Any:
    if name == "image":  # of /embed several
        return [*map(_image, value)] if isinstance(value, list) else _image(value)
    if name in _LISTS_OF_TEXTS and not isinstance(value, list):
        value = [None]
    if name in _LISTS_OF_TEXTS | _TEXTS:
        value = [*map(_text, value)] if isinstance(value, list) else _text(value)
    return [*map(_known, value)] if name == "finding" else value


def _text(drawn: Any) -> str:
    return drawn if isinstance(drawn, str) else "0" * 5000


def _known(name: str) -> str:
    """A finding that every index knows, if the name fits the schema."""
    return name if len(name) > MAX_ID_CHARS else LABELS[len(name) % len(LABELS)]


def _image(drawn: Any) -> Binary:
    """An image where any bytes fit the schema; what is not a file at all is sent as one."""
    if isinstance(drawn, str | bytes):
        return Binary(IMAGES[len(drawn) % len(IMAGES)])
    return Binary(repr(drawn).encode())
