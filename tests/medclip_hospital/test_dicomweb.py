"""An archive that pages badly, stores nothing, or answers nonsense; a real one is in pipelines."""

import gzip
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from medclip_dcl.client import Client
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.errors import ArtifactUnwritable, ImageError, ServiceError
from medclip_dcl.files import STAGED
from medclip_hospital import dicomweb
from medclip_hospital.dicomweb import ArchivedImage, DicomWeb
from medclip_sources.dicom_folder import read_dicomweb
from testing.dicom import ramp
from testing.dicomweb import StubArchive, endless, stub_archive
from testing.hospital import radiograph
from testing.hub import Handler

IMAGE = ArchivedImage("1.1", "1.2", "1.3")


def archive(answer: Callable[[httpx.Request], httpx.Response]) -> DicomWeb:
    transport = httpx.MockTransport(answer)
    return DicomWeb("http://archive/dicom-web/", waits_s=(), transport=transport)


def row(**tags: str) -> dict[str, Any]:
    names = {"study": "0020000D", "series": "0020000E", "instance": "00080018"}
    return {names[name]: {"vr": "UI", "Value": [value]} for name, value in tags.items()}


def listing(pages: list[list[str]]) -> Callable[[httpx.Request], httpx.Response]:
    """Series in pages, whatever number was asked for; each has one instance."""

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/dicom-web")
        offset = int(request.url.params["offset"])
        if path == "/series":
            starts = [sum(map(len, pages[:number])) for number in range(len(pages))]
            found = pages[starts.index(offset)] if offset in starts else []
            if offset == 0:
                passes.append(dict(request.url.params))
            return httpx.Response(200, json=[row(study="1", series=name) for name in found])
        series = path.split("/")[4]
        return httpx.Response(200, json=[] if offset else [row(instance=f"{series}.9")])

    passes: list[dict[str, str]] = []
    answer.passes = passes  # type: ignore[attr-defined]
    return answer


def test_pages_are_read_to_the_empty_one_and_repeats_counted_once() -> None:
    answer = listing([["1.1", "1.2"], ["1.2", "1.3"], ["1.4"]])
    with archive(answer) as web:
        found = web.images(["CR"], "20260101-20260131")
    assert [image.instance for image in found] == ["1.1.9", "1.2.9", "1.3.9", "1.4.9"]
    assert len(answer.passes) == 2  # a repeat: another pass, which brings nothing new
    assert answer.passes[0]["Modality"] == "CR"
    assert answer.passes[0]["StudyDate"] == "20260101-20260131"


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "{}",
        '"rows"',
        "[" * 100_000,
        json.dumps([{"0020000D": {}}]),
        json.dumps([row(study="../x", series="1")]),
    ],
)
def test_what_is_no_listing_is_refused(body: str) -> None:
    web = archive(lambda _: httpx.Response(200, text=body))
    with web, pytest.raises(ServiceError) as refused:
        web.images(["CR"])
    assert refused.value.code == "no_answer"


def test_a_part_is_given_as_it_is() -> None:
    file = radiograph(ramp(16, 16), SOPInstanceUID="1.3", StudyInstanceUID="1.1")
    file += b"\r\n--almost\r\n\r\nthe end\r\n"
    body = b"\r\n--x y\r\nContent-Type: application/dicom\r\n\r\n" + file + b"\r\n--x y--\r\n"
    kind = {"Content-Type": 'multipart/related; type="application/dicom"; boundary="x y"'}
    with archive(lambda _: httpx.Response(200, content=body, headers=kind)) as web:
        assert web.fetch(IMAGE) == file
    cut = archive(lambda _: httpx.Response(200, content=body[:40], headers=kind))
    with cut as web, pytest.raises(ImageError, match="wrong_image"):
        web.fetch(IMAGE)
    with archive(lambda _: httpx.Response(404)) as web, pytest.raises(ImageError, match="missing"):
        web.fetch(IMAGE)


def test_what_a_killed_mirror_left_half_written_is_neither_listed_nor_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = radiograph(ramp(16, 16), SOPInstanceUID="1.3", StudyInstanceUID="1.1")
    monkeypatch.setattr(DicomWeb, "images", lambda *_: [IMAGE])
    monkeypatch.setattr(DicomWeb, "fetch", lambda *_: file)
    (tmp_path / "1.1").mkdir()
    for left in (file, file[:700]):  # killed before the rename, or in the middle
        (tmp_path / "1.1" / f"{STAGED}1.3.dcm.{len(left)}").write_bytes(left)
    settings = SourceConfig(kind="dicomweb", archive="http://archive")
    found = read_dicomweb(tmp_path, settings, Path)
    assert [image.path for image in found.images] == ["1.1/1.3.dcm"]
    assert found.rejects == []
    assert [path.name for path in tmp_path.rglob("*.dcm*")] == ["1.3.dcm"]


def test_a_full_disk_under_a_mirror_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DicomWeb, "images", lambda *_: [IMAGE])
    monkeypatch.setattr(DicomWeb, "fetch", lambda *_: b"DICM")
    monkeypatch.setattr(os, "fsync", full)
    settings = SourceConfig(kind="dicomweb", archive="http://archive")
    with pytest.raises(ArtifactUnwritable, match="mirror could not be written: No space"):
        read_dicomweb(tmp_path / "mirror", settings, Path)


def stored(*uids: str) -> dict[str, Any]:
    return {"Value": [{"00081155": {"Value": [uid]}} for uid in uids]}


def failed(uid: str, reason: int) -> dict[str, Any]:
    return {"Value": [{"00081155": {"Value": [uid]}, "00081197": {"Value": [reason]}}]}


@pytest.mark.parametrize(
    ("status", "tree"),
    [
        (200, {"00081199": stored("1", "2"), "00081198": {"vr": "SQ"}}),  # as Orthanc answers
        (409, {"00081199": stored("1"), "00081198": failed("2", 0x0111)}),  # it has it already
    ],
)
def test_stored_objects_are_counted(status: int, tree: dict[str, Any]) -> None:
    with archive(lambda _: httpx.Response(status, json=tree)) as web:
        web.store({"1": b"one", "2": b"two"})


@pytest.mark.parametrize("kind", [Client, DicomWeb])
def test_a_malformed_url_is_named(kind: type) -> None:
    with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:80x.*Invalid port"):
        kind("http://127.0.0.1:80x")


@pytest.mark.parametrize(
    ("status", "tree", "code"),
    [
        (200, {}, "not_stored"),  # a success that means nothing
        (200, {"00081199": stored("1")}, "not_stored"),
        (202, {"00081199": stored("1"), "00081198": failed("2", 0x0110)}, "not_stored"),
        (401, {}, "archive"),
        (500, {}, "archive"),
    ],
)
def test_objects_that_are_not_stored_are_not_taken_for_stored(
    status: int, tree: dict[str, Any], code: str
) -> None:
    web = archive(lambda _: httpx.Response(status, json=tree))
    with web, pytest.raises(ServiceError) as refused:
        web.store({"1": b"one", "2": b"two"})
    assert refused.value.code == code


# Real connections


@pytest.fixture
def stub() -> Iterator[StubArchive]:
    with stub_archive() as stub:
        yield stub


def numbered(number: int) -> bytes:
    """An image with the UIDs under which the stub holds it."""
    root = f"1.2.826.0.1.3680043.10.1.{number}"
    return radiograph(
        ramp(16, 16),
        SOPInstanceUID=f"{root}.3",
        SeriesInstanceUID=f"{root}.2",
        StudyInstanceUID=f"{root}.1",
    )


def broken(request: BaseHTTPRequestHandler) -> None:
    """Close in the middle of an answer."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[")
    request.close_connection = True


@pytest.mark.parametrize("fault", [broken, lambda request: request.answer(503, b"")])
def test_a_question_without_an_answer_is_asked_three_times(stub: StubArchive, fault: Any) -> None:
    stub.add(1, numbered(1))
    faults: Counter[str] = Counter()

    def twice(request: BaseHTTPRequestHandler) -> bool:
        faults[request.path] += 1
        return faults[request.path] <= 2 and (fault(request) or True)

    stub.odd = twice
    with DicomWeb(stub.url, waits_s=(0, 0)) as web:
        (image,) = web.images(["CR"])
        assert web.fetch(image) == numbered(1)
    assert set(faults.values()) == {3}
    stub.odd = lambda request: fault(request) or True
    with DicomWeb(stub.url, waits_s=(0, 0)) as web:
        with pytest.raises(ServiceError):
            web.fetch(image)
        asked = len(stub.asked)
        with pytest.raises(ServiceError):
            web.store({"1.3": b"object"})  # the gateway and the jobs send again by themselves
    assert len(stub.asked) == asked + 1


def test_series_are_asked_for_side_by_side(stub: StubArchive) -> None:
    for number in range(4):
        stub.add(number, numbered(number))
    together = threading.Barrier(4)

    def met(request: BaseHTTPRequestHandler) -> bool:
        if "/instances?" in request.path and "offset=0" in request.path:
            together.wait(20)
        return False

    stub.odd = met
    with DicomWeb(stub.url, waits_s=()) as web:
        assert len(web.images(["CR"])) == 4


def test_answers_end_at_a_size_or_a_time_and_are_not_compressed(
    stub: StubArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dicomweb, "_MOST_ANSWER_BYTES", 1 << 16)
    monkeypatch.setattr(dicomweb, "_MOST_BYTES", 1 << 16)

    def drip_head(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        with suppress(OSError):
            while not is_over.wait(0.05):
                request.wfile.write(b"x")

    def squeezed(request: BaseHTTPRequestHandler) -> None:
        assert isinstance(request, Handler)
        request.answer(200, gzip.compress(b"[]" * 10), Content_Encoding="gzip")

    is_over = threading.Event()
    for fault, said in (
        (partial(endless, part=b"[" * 4096), "exceeds 65536 bytes"),
        (partial(endless, part=b" ", pause_s=0.05), "the time ran out"),
        (drip_head, "the time ran out"),
        (squeezed, "compresses"),
    ):
        stub.odd = lambda request, fault=fault: fault(request) or True  # type: ignore[misc]
        with DicomWeb(stub.url, deadline_s=1, waits_s=()) as web:
            for ask in (lambda: web.images(["CR"]), lambda: web.store({"1.3": b"object"})):
                begun = time.monotonic()
                with pytest.raises(ServiceError, match=said):
                    ask()
                assert time.monotonic() - begun < 10
            with pytest.raises((ServiceError, ImageError)):
                web.fetch(IMAGE)
    is_over.set()
    assert {head["Accept-Encoding"] for head in stub.headers} == {"identity"}


def test_a_listing_with_new_pages_for_ever_ends(
    stub: StubArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dicomweb, "_MOST_PAGES", 20)

    def more(request: BaseHTTPRequestHandler) -> bool:
        assert isinstance(request, Handler)
        request.answer(200, [row(study="1", series=f"2.{len(stub.asked)}")])
        return True

    stub.odd = more
    with DicomWeb(stub.url) as web, pytest.raises(ServiceError, match="more than 20 pages"):
        web.images(["CR"])
    assert len(stub.asked) == 20


def test_what_comes_in_an_image_s_place_is_a_reject_and_asked_for_again(
    stub: StubArchive, tmp_path: Path
) -> None:
    stub.add(1, numbered(3))
    stub.add(2, numbered(2))
    stub.add(4, b"<html>")
    stub.add(5, numbered(5)[:600])
    settings = SourceConfig(kind="dicomweb", archive=stub.url)

    def listed() -> tuple[list[str], dict[str, str]]:
        found = read_dicomweb(tmp_path, settings, Path)
        ids = [image.image_id.split(".")[-2] for image in found.images]
        return ids, {reject.id.split(".")[-2]: reject.reason for reject in found.rejects}

    assert listed() == (["2"], dict.fromkeys("145", "wrong_image"))
    assert len(list(tmp_path.rglob("*.dcm"))) == 1
    for number in (1, 4, 5):
        stub.add(number, numbered(number))
    assert listed() == (["1", "2", "4", "5"], {})
