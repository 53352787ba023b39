"""Requests that no one thought of: sound ones, spoilt at random but named by a number for good."""

import json
import random
from dataclasses import replace

from tests.synthetic.hostile import CANARY, CHARSETS, FIELDS, SOUND, TEXTS
from tests.synthetic.wire import BOUNDARY, Part, Request, form


def mutant(number: int) -> Request:
    """Draw a request: a sound one, spoilt in one to three places; a number names it for good."""
    draw = random.Random(f"service {number}")
    path = draw.choice(sorted(SOUND))
    parts = list(SOUND[path])
    if path in FIELDS and draw.random() < 0.6:
        name = draw.choice(FIELDS[path])
        parts = [part for part in parts if part.name != name]
        value = draw.choice([*TEXTS.values(), _json(draw)])
        parts += [Part(name, _spoilt(draw, value[:4000]))] * draw.choice((1, 1, 1, 2, 20))
    draw.shuffle(parts)
    request = Request(draw.choice(("", "/v1")) + path, body=form(*parts))
    for _ in range(draw.randint(0, 2)):
        request = _change(draw, request)
    return request


def _change(draw: random.Random, request: Request) -> Request:
    kind = draw.choice(("body", "body", "header", "path", "method"))
    if kind == "body":
        return replace(request, body=_spoilt(draw, request.body))
    if kind == "header":
        name = draw.choice(("Content-Type", "Accept", "X-Request-ID", "Host", "X-API-Key", "Range"))
        kinds = f"multipart/form-data; boundary={BOUNDARY}; charset={draw.choice(CHARSETS)}"
        value = draw.choice(
            (_spoilt(draw, kinds.encode()), kinds.encode(), CANARY.encode(), b"image/png")
        )
        value = bytes(byte for byte in value if byte >= 32 and byte != 127)
        if name == "X-Request-ID":
            value = b"two words: " + value  # one plain word would be taken for an id
        return replace(request, headers={**request.headers, name: value.strip()})
    if kind == "path":
        tail = _spoilt(draw, str(request.path).encode() + b"?" + CANARY.encode())
        tail = bytes(byte for byte in tail if 32 < byte < 127)
        return replace(request, path=b"/" + tail.lstrip(b"/"))
    return replace(request, method=draw.choice(("GET", "PUT", "OPTIONS", "PATCH", "HEAD", "QUERY")))


def _spoilt(draw: random.Random, data: bytes) -> bytes:
    """Flip, cut, repeat, insert or leave."""
    spoilt = bytearray(data)
    at = draw.randrange(len(spoilt) + 1)
    how = draw.randrange(6)
    if how == 0 and spoilt:
        spoilt[min(at, len(spoilt) - 1)] ^= 1 << draw.randrange(8)
    elif how == 1:
        del spoilt[at : at + draw.choice((1, 8, 200))]
    elif how == 2:
        spoilt[at:at] = spoilt[at : at + 64] * draw.choice((1, 3))
    elif how == 3:
        spoilt[at:at] = draw.randbytes(draw.choice((1, 4, 30)))
    elif how == 4:
        spoilt[at:at] = draw.choice(
            (b"\0", b"\r\n", CANARY.encode(), b'"', b"\xed\xa0\x80", b"--", b"%00")
        )
    return bytes(spoilt)


def _json(draw: random.Random, depth: int = 0) -> bytes:
    """A random tree, not always JSON."""

    def tree(level: int) -> object:
        leaf: list[object] = [0, -1, 1e308, 1.5, True, None, CANARY, "", "\ud800", "a\0", 10**30]
        if level > 3 or draw.random() < 0.4:
            return draw.choice([*leaf, float("nan"), float("inf")])
        if draw.random() < 0.5:
            return [tree(level + 1) for _ in range(draw.randrange(5))]
        names = ("name", "positive", "negative", "label", CANARY)
        return {draw.choice(names): tree(level + 1) for _ in range(draw.randrange(4))}

    return json.dumps(tree(depth)).encode()
