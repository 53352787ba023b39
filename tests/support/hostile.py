"""Requests made to make a service fall over, echo or remember, each with a name.

What they bring, canaries above all, may come back in no answer, log line or figure.
"""

import json
from collections.abc import Iterator

from tests.support.dicom import dicom_bytes, ramp
from tests.support.service import png
from tests.support.wire import BOUNDARY, Part, Request, form

CANARY = "PHISENTINEL"
_C = CANARY.encode()
IMAGE = png()

TEXTS: dict[str, bytes] = {
    "empty": b"",
    "zero character": b"\0",
    "zero character inside": b"a\0b " + _C,
    "lone surrogate in utf-8": b"\xed\xa0\x80" + _C,
    "not utf-8": b"\xff\xfe\xfa" + _C,
    "right to left": "\u202eTFEL\u202c".encode() + _C,
    "astral": "\U0001f9e0\U0010ffff".encode() + _C,
    "longest": b"w" * 1000,
    "one too long": b"w" * 1001,
    "longer than a field": b"w" * 70_000,
    "path": b"../../../../etc/passwd" + _C,
    "url": b"http://127.0.0.1:9/" + _C,
    "template": b"{{7*7}}${7*7}#{7*7}<%= 7*7 %>" + _C,
    "lookup": b"${jndi:ldap://127.0.0.1/" + _C + b"}",
    "script": b"<script>" + _C + b"</script>",
    "query language": b"' OR '1'='1'; DROP TABLE images; -- " + _C,
    "line breaks": b"a\r\nX-Injected: " + _C + b"\r\n\r\n",
    "terminal": b"\x1b]0;" + _C + b"\x07\x1b[2J",
    "not a number": b"NaN",
    "overflow": b"1e999",
    "negative": b"-1",
    "huge integer": b"9" * 5000,
    "null": b"null",
    "nested lists": b"[" * 20_000,
    "nested objects": b'{"a":' * 20_000,
    "object": b'{"__proto__": {"x": 1}, "name": "' + _C + b'"}',
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
}
"""Name -> what is put where a field's value belongs."""

SOUND: dict[str, tuple[Part, ...]] = {
    "/classify": (Part("image", IMAGE, "image.png"),),
    "/ground": (Part("image", IMAGE, "image.png"), Part("phrase", b"effusion")),
    "/embed": (Part("image", IMAGE, "image.png"), Part("image", IMAGE, "image.png")),
    "/retrieve": (Part("target", b"image"), Part("text", b"Heart size is normal.")),
    "/pixels": (Part("image", IMAGE, "image.png"),),
}
"""Route -> the parts of a form that it answers."""

FIELDS = {
    "/classify": ("findings", "explain"),
    "/ground": ("phrase", "threshold"),
    "/embed": ("text", "what", "format"),
    "/retrieve": ("text", "target", "k", "split", "view", "exclude_patient", "box"),
}
"""Route -> its fields next to the image."""

_JSON: dict[str, object] = {
    "no list": {"name": CANARY},
    "missing side": [{"name": CANARY, "positive": "a"}],
    "unknown key": [{"name": "a", "positive": "a", "negative": "b", CANARY: 1}],
    "twice": [{"name": "a", "positive": "a", "negative": "b"}] * 2,
    "many": [{"name": f"f{n}", "positive": "a", "negative": "b"} for n in range(33)],
    "many prompts": [{"name": "a", "positive": ["a"] * 300, "negative": "b"}],
    "list as name": [{"name": ["a"], "positive": "a", "negative": "b"}],
    "surrogate": [{"name": "\ud800", "positive": "\udfff", "negative": CANARY}],
}
_BOXES = (
    *("[0,0,1]", "[0,0,1,1,1]", "[NaN,0,1,1]", "[0,0,Infinity,1]", "[0,0,1e999,1]", "[-1,0,9,9]"),
    *("[0,0,-5,5]", "[0,0,0,0]", "[60,0,10,10]", "[true,0,9,9]", '["0",0,9,9]', "[[0],0,9,9]"),
    *("{}", "0", '"' + CANARY + '"', f"[{'9' * 400},0,1,1]", f"[1{'0' * 400},0,1,1]", "[0,0,9,9]x"),
)
CHARSETS = (
    *("utf-16", "utf-7", "idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape"),
    *("zlib_codec", "base64_codec", "rot13", "mbcs", "nowhere", "", "a\\b", '"', "utf-8; x"),
)
"""Charsets that a form may claim."""


def named_requests() -> Iterator[tuple[str, Request]]:
    for path, fields in FIELDS.items():
        for name in fields:
            for title, value in TEXTS.items():
                yield f"{path} {name}: {title}", _asked(path, Part(name, value))
    for title, tree in _JSON.items():
        part = Part("findings", json.dumps(tree).encode())
        yield f"/classify findings as JSON: {title}", _asked("/classify", part)
    for box in _BOXES:
        parts = (Part("target", b"image"), Part("image", IMAGE, "f.png"), Part("box", box.encode()))
        yield f"/retrieve box {box[:24]}", Request("/retrieve", body=form(*parts))
    for title, value in TEXTS.items():
        part = Part("image", IMAGE, value.replace(b"\n", b"").replace(b"\r", b""))
        yield f"file name: {title}", Request("/pixels", body=form(part))
        part = Part("image", value, "image.dcm")
        yield f"as an image: {title}", Request("/classify", body=form(part))
    yield from _forms()
    yield from _heads()
    yield from _raw()


def _forms() -> Iterator[tuple[str, Request]]:
    image = Part("image", IMAGE, f"{CANARY}.png")
    secret = dicom_bytes(ramp(96, 64), PatientName=f"{CANARY}^A", PatientID=CANARY)
    broken = dicom_bytes(ramp(96, 64), PatientName=CANARY, Rows=9)
    for title, body in {
        "canary in DICOM tags": form(Part("image", secret, "a")),
        "canary in a broken image's tags": form(Part("image", broken, "a")),
        "no body": b"",
        "only the end": f"--{BOUNDARY}--\r\n".encode(),
        "never ends": form(image)[:-30],
        "no blank line": f"--{BOUNDARY}\r\nContent-Disposition: form-data\r\n".encode(),
        "name of bytes": form(Part(b"\xff\xfe" + _C, b"x")),
        "name with a quote": form(Part('image"; filename="' + CANARY, IMAGE)),
        "image as a field": form(Part("image", IMAGE)),
        "two images": form(image, image),
        "none twice": form(*[Part("image", _C, "image.png")] * 2),
        "large ones and none": form(
            Part("image", IMAGE + bytes(300_000), "a"), Part("image", b"", "b"), image
        ),
        "33 images": form(*[image] * 33),
        "65 fields": form(image, *[Part("phrase", b"x")] * 65),
        "17 phrases": form(image, *[Part("phrase", b"x")] * 17),
        "no disposition": f"--{BOUNDARY}\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode(),
        "transfer encoding": form(
            Part("image", b"aGVsbG8=", "a", b"Content-Transfer-Encoding: base64\r\n")
        ),
        "long part header": form(Part("image", IMAGE, "a", b"X: " + b"y" * 60_000 + b"\r\n")),
        "many part headers": form(Part("image", IMAGE, "a", b"X: y\r\n" * 5000)),
        "extended name": form(Part("a", IMAGE, None, b"X: filename*=utf-8''%00" + _C + b"\r\n")),
        "too large": form(Part("image", bytes(5 << 20), "a")),
        "unknown field": form(image, Part(CANARY, _C)),
    }.items():
        for path in FIELDS:
            yield f"{path} form: {title}", Request(path, body=body)


def _heads() -> Iterator[tuple[str, Request]]:
    sound = form(*SOUND["/classify"])
    for title, headers in {
        "no content type": {"Content-Type": None},
        "plain text": {"Content-Type": "text/plain"},
        "urlencoded": {"Content-Type": "application/x-www-form-urlencoded"},
        "no boundary": {"Content-Type": "multipart/form-data"},
        "long boundary": {"Content-Type": "multipart/form-data; boundary=" + "b" * 9000},
        "bytes in the boundary": {"Content-Type": b"multipart/form-data; boundary=\xff\xfe"},
        "two boundaries": {"Content-Type": f"multipart/form-data; boundary=x; boundary={BOUNDARY}"},
        "gzip": {"Content-Encoding": "gzip"},
        "canary as encoding": {"Content-Encoding": CANARY},
        "canary as id": {"X-Request-ID": "two words " + CANARY},
        "bytes as id": {"X-Request-ID": b"\xff\xfe"},
        "accept everything": {"Accept": "*/*;q=" + CANARY},
        "forwarded": {"X-Forwarded-For": CANARY, "X-Forwarded-Host": CANARY},
        "cookie": {"Cookie": "session=" + CANARY},
        "upgrade": {"Upgrade": "websocket", "Connection": "Upgrade"},
        "expect canary": {"Expect": CANARY},
        "wrong key": {"X-API-Key": CANARY * 4},
        "key of bytes": {"X-API-Key": b"\xff" * 40},
        "basic": {"X-API-Key": None, "Authorization": "Basic " + CANARY},
        "other host": {"Host": CANARY + ".example"},
        "no host": {"Host": None},
        "many headers": {f"X-{n}": CANARY for n in range(300)},
        "large head": {"X-Large": "y" * 200_000},
        "length too large": {"Content-Length": str(10**12)},
        "length negative": {"Content-Length": "-1"},
        "length of words": {"Content-Length": CANARY},
        "length too small": {"Content-Length": "10"},
        "chunked and length": {"Transfer-Encoding": "chunked"},
        "unknown transfer": {"Transfer-Encoding": "gzip, chunked", "Content-Length": None},
    }.items():
        yield f"head: {title}", Request("/classify", body=sound, headers=dict(headers))
    for charset in CHARSETS:
        kind = f"multipart/form-data; boundary={BOUNDARY}; charset={charset}"
        body = form(Part("target", b"image"), Part("text", b"xn--\xff\\ud800 " + _C))
        request = Request("/retrieve", body=body, headers={"Content-Type": kind})
        yield f"charset {charset}", request


def _raw() -> Iterator[tuple[str, Request]]:
    for path in (
        *("//", "/.", "/..", "/%", "/%zz", "/%00", "/%2e%2e/", "/static/..%2f..%2fapp.py", "*"),
        *("/images/..%2f..%2fartifact.json", "/images/%00", "/images/" + "x" * 9000, "/images/"),
        *("/images/%ff%fe", "/v1/images//etc/passwd", "/classify?image=http://x", "/%ed%a0%80"),
        *("http://evil.example/model", "/model?" + CANARY, "/model#" + CANARY, "/;/model", "/\\"),
        *("/static/" + CANARY, "/" + CANARY, "/docs?" + CANARY, "/.git/config", "/%c0%ae%c0%ae/"),
    ):
        for method in ("GET", "POST", "DELETE"):
            yield f"{method} {path[:40]}", Request(path, method)
    for method in ("HEAD", "OPTIONS", "TRACE", "CONNECT", "PUT", "GÉT", "get", "G" * 500, CANARY):
        yield f"method {method[:9]}", Request("/classify", method)
    lines = {
        "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\r\n\r\n",
        "http/0.9": b"GET /model\r\n\r\n",
        "folded header": b"GET /model HTTP/1.1\r\nHost: localhost\r\nX-API-Key:\r\n KEY\r\n\r\n",
        "space before colon": b"GET /model HTTP/1.1\r\nHost: localhost\r\nX-API-Key : KEY\r\n\r\n",
        "two keys": b"GET /model HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\n"
        b"X-API-Key: KEY\r\n"
        b"Connection: close\r\n\r\n",
        "two lengths": b"POST /classify HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\n"
        b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "bad chunk": b"POST /classify HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\n"
        b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n" + _C + b"\r\n0\r\n\r\n",
        "huge chunk": b"POST /classify HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 16 + b"\r\n",
        "two requests": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        b"GET /model?" + _C + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "line feeds": b"GET /health HTTP/1.1\nHost: localhost\nConnection: close\n\n",
    }
    for title, data in lines.items():
        yield f"raw: {title}", Request("/", raw=data)


def _asked(path: str, part: Part) -> Request:
    kept = [sound for sound in SOUND[path] if sound.name != part.name]
    return Request(path, body=form(*kept, part))
