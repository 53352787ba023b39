"""Requests that no one thought of: sound ones, spoilt at random but named by a number for good."""

import json
import random
from dataclasses import replace

from tests.synthetic.hostile import CANARY, CHARSETS, FIELDS, SOUND, TEXTS
from tests.synthetic.wire import BOUNDARY, Part, Request, form


def mutant(number: int) -> Request:
    """Draw a request: a sound one, spoilt in one to three places; a number names it for good."""
    rng = random.Random(f"service {number}")
    path = rng.choice(sorted(SOUND))
    parts = list(SOUND[path])
    if path in FIELDS and rng.random() < 0.6:
        name = rng.choice(FIELDS[path])
        parts = [part for part in parts if part.name != name]
        value = rng.choice([*TEXTS.values(), _json(rng)])
        parts += [Part(name, _spoilt(rng, value[:4000]))] * rng.choice((1, 1, 1, 2, 20))
    rng.shuffle(parts)
    request = Request(rng.choice(("", "/v1")) + path, body=form(*parts))
    for _ in range(rng.randint(0, 2)):
        request = _change(rng, request)
    return request


def _change(rng: random.Random, request: Request) -> Request:
    kind = rng.choice(("body", "body", "header", "path", "method"))
    if kind == "body":
        return replace(request, body=_spoilt(rng, request.body))
    if kind == "header":
        name = rng.choice(("Content-Type", "Accept", "X-Request-ID", "Host", "X-API-Key", "Range"))
        kinds = f"multipart/form-data; boundary={BOUNDARY}; charset={rng.choice(CHARSETS)}"
        value = rng.choice(
            (_spoilt(rng, kinds.encode()), kinds.encode(), CANARY.encode(), b"image/png")
        )
        value = bytes(byte for byte in value if byte >= 32 and byte != 127)
        if name == "X-Request-ID":
            value = b"two words: " + value  # one plain word would be taken for an id
        return replace(request, headers={**request.headers, name: value.strip()})
    if kind == "path":
        tail = _spoilt(rng, str(request.path).encode() + b"?" + CANARY.encode())
        tail = bytes(byte for byte in tail if 32 < byte < 127)
        return replace(request, path=b"/" + tail.lstrip(b"/"))
    return replace(request, method=rng.choice(("GET", "PUT", "OPTIONS", "PATCH", "HEAD", "QUERY")))


def _spoilt(rng: random.Random, data: bytes) -> bytes:
    """Flip, cut, repeat, insert or leave."""
    spoilt = bytearray(data)
    at = rng.randrange(len(spoilt) + 1)
    how = rng.randrange(6)
    if how == 0 and spoilt:
        spoilt[min(at, len(spoilt) - 1)] ^= 1 << rng.randrange(8)
    elif how == 1:
        del spoilt[at : at + rng.choice((1, 8, 200))]
    elif how == 2:
        spoilt[at:at] = spoilt[at : at + 64] * rng.choice((1, 3))
    elif how == 3:
        spoilt[at:at] = rng.randbytes(rng.choice((1, 4, 30)))
    elif how == 4:
        spoilt[at:at] = rng.choice(
            (b"\0", b"\r\n", CANARY.encode(), b'"', b"\xed\xa0\x80", b"--", b"%00")
        )
    return bytes(spoilt)


def _json(rng: random.Random, depth: int = 0) -> bytes:
    """A random tree, not always JSON."""

    def tree(level: int) -> object:
        leaf: list[object] = [0, -1, 1e308, 1.5, True, None, CANARY, "", "\ud800", "a\0", 10**30]
        if level > 3 or rng.random() < 0.4:
            return rng.choice([*leaf, float("nan"), float("inf")])
        if rng.random() < 0.5:
            return [tree(level + 1) for _ in range(rng.randrange(5))]
        names = ("name", "positive", "negative", "label", CANARY)
        return {rng.choice(names): tree(level + 1) for _ in range(rng.randrange(4))}

    return json.dumps(tree(depth)).encode()
