import asyncio
import mmap
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from api.bodies import find_large_files
from api.errors import ApiError
from api.uploads import parse_box, parse_findings
from medclip_dcl.data.grayscale import SquareImage
from medclip_dcl.errors import QueryError

LARGE = 256 * 1024
IMAGE = bytes(range(256)) * (LARGE // 256)
KIND = b"multipart/form-data; boundary=xyz"


def part(name: str, content: bytes, more: str = "") -> bytes:
    head = f'--xyz\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def parsed(body: bytes, kind: bytes = KIND) -> object:
    """What the form's parser makes of a body: fields, and the bytes of files."""

    async def parse() -> object:
        async def pieces() -> AsyncIterator[bytes]:
            yield body

        headers = Headers({"content-type": kind.decode()})
        try:
            form = await MultiPartParser(headers, pieces(), max_part_size=1 << 30).parse()
        except MultiPartException as error:
            return str(error)
        items = [
            (name, await value.read() if isinstance(value, UploadFile) else value)
            for name, value in form.multi_items()
        ]
        await form.close()
        return items

    return asyncio.run(parse())


END = b"--xyz--\r\n"
FILE = '; filename="a"'
BODIES = {
    "image alone": part("image", IMAGE, FILE) + END,
    "image between fields": part("k", b"3") + part("image", IMAGE, FILE) + part("text", b"a") + END,
    "a boundary that is none": part("image", IMAGE + b"\r\n--xyzzy" + IMAGE, FILE) + END,
    "a preamble": b"hello\r\n" + part("image", IMAGE, FILE) + END,
    "a large field": part("text", b"a" * LARGE) + END,
    "a field that is called a file": part("filename=x", b"a" * LARGE) + END,
    "no header": b"--xyz\r\n\r\n" + IMAGE + b"\r\n" + END,
    "two images": part("image", IMAGE, FILE) + part("image", IMAGE, FILE) + END,
    "small": part("image", b"image", FILE) + END,
    "almost large": part("image", IMAGE[:-1], FILE) + part("text", b"a" * 99) + END,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_what_is_set_aside_is_a_prefix_of_each_file_and_nothing_else_changes(body: bytes) -> None:
    form, aside = without_large_files(body)
    whole, rest = parsed(body), parsed(form)
    if isinstance(whole, str) or not aside:
        assert rest == whole
        return
    pieces = iter(aside)
    joined = [
        (name, there if here == there else next(pieces) + there)
        if isinstance(there, bytes)
        else (name, there if here == there else next(pieces).decode("latin-1") + there)
        for (name, here), (_, there) in zip(whole, rest, strict=True)
    ]
    assert joined == whole
    assert list(pieces) == []


def without_large_files(body: bytes) -> tuple[bytes, list[bytes]]:
    spans = find_large_files(body, len(body), KIND)
    left = body
    for start, end in reversed(spans):
        left = left[:start] + left[end:]
    return left, [body[start:end] for start, end in spans]


def test_a_large_image_is_found_between_fields() -> None:
    body = BODIES["image between fields"]
    ((start, end),) = found = find_large_files(body, len(body), KIND)
    assert body[start:end] == IMAGE
    assert found == find_large_files(body, len(body), b'multipart/form-data; boundary="xyz"')
    assert found == find_large_files(body, len(body), b"Multipart/form-data; a=b; " + KIND[21:])
    mapped = mmap.mmap(-1, 2 * len(body))
    mapped[: len(body)] = body
    assert find_large_files(mapped, len(body), KIND) == found
    mapped[len(body) :] = body  # of an earlier request, longer than this one
    cut = body[: end + 2]
    assert find_large_files(mapped, len(cut), KIND) == []


def test_small_images_that_are_large_together_are_found_in_order() -> None:
    contents = [bytes([number]) * (LARGE // 16 + number) for number in range(32)]
    contents[5] = b""
    body = b"".join(part("image", content, FILE) for content in contents) + part("k", b"3") + END
    assert without_large_files(body)[1] == contents
    assert find_large_files(body[: LARGE // 2], LARGE // 2, KIND) == []


@pytest.mark.parametrize(
    "before",
    [97 * part("k", b"3"), 2 * LARGE * b"\r\n--xyz\r\n\r\n"],
    ids=["too many parts", "empty parts"],
)
def test_a_file_that_the_form_may_not_have_is_not_looked_for(before: bytes) -> None:
    body = before + part("image", IMAGE, FILE) + END
    started = time.monotonic()
    assert find_large_files(body, len(body), KIND) == []
    assert time.monotonic() - started < 0.2


@pytest.mark.parametrize(
    "kind",
    [
        b"",
        b"text/plain",
        b"multipart/form-data",
        b"multipart/mixed; boundary=xyz",
        KIND + 70 * b"z",
    ],
)
def test_what_is_no_plain_form_stays_as_it_is(kind: bytes) -> None:
    body = BODIES["image alone"]
    assert find_large_files(body, len(body), kind) == []
    unended = body.removesuffix(b"\r\n" + END)
    assert find_large_files(unended, len(unended), KIND) == []


@pytest.mark.parametrize("text", ["\ud800", "[" * 100_000, "[NaN, 1, 2, 3]", '["1", 2, 3, 4]'])
def test_boxes_and_findings_that_are_no_strict_json_are_refused(text: str) -> None:
    image = SquareImage(
        np.zeros((8, 8), np.uint8), 96, 64, constant=True, source="png", inverted=False
    )
    with pytest.raises(ApiError, match="invalid_request"):
        parse_box(text, image)
    with pytest.raises((ApiError, QueryError)):
        parse_findings(text)


@pytest.mark.parametrize(
    "name", ["a large field", "no header", "a preamble", "small", "almost large"]
)
def test_small_files_and_fields_stay_in_the_form(name: str) -> None:
    assert find_large_files(BODIES[name], len(BODIES[name]), KIND) == []
