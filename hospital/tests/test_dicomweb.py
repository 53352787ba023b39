"""An archive that pages badly, stores nothing, or answers nonsense; Orthanc is in `gateway/`."""

import gzip
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from hospital.tests.support import orthanc
from hospital.tests.support.answers import radiograph
from hospital.tests.support.archive import StubArchive, endless, stub_archive
from medclip_dcl.core.errors import ArtifactUnwritable, ConfigError, ImageError, ServiceError
from medclip_dcl.core.files import STAGED
from medclip_dcl.data.source_settings import SourceConfig
from medclip_hospital import dicomweb
from medclip_hospital.dicomweb import ArchivedImage, DicomWeb
from medclip_hospital.source import read_dicomweb
from tests.support.dicom import ramp
from tests.support.tls import HAS_OPENSSL, make_certificates

IMAGE = ArchivedImage("1.1", "1.2", "1.3")
Answer = Callable[[httpx.Request], httpx.Response]


def archive(answer: Answer, **given: Any) -> DicomWeb:
    transport = httpx.MockTransport(answer)
    return DicomWeb("http://archive/dicom-web/", waits_s=(), transport=transport, **given)


def row(**tags: str) -> dict[str, Any]:
    names = {"study": "0020000D", "series": "0020000E", "instance": "00080018"}
    return {names[name]: {"vr": "UI", "Value": [value]} for name, value in tags.items()}


def listing(page: Callable[[int, int], list[str]], remaining: int = 0) -> Answer:
    """An archive whose series are `page(offset, limit)`; each has one instance, `SERIES.9`.

    With every page it announces that `remaining` rows follow, or, below 0, so many in all.
    """

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/dicom-web")
        offset, limit = (int(request.url.params[name]) for name in ("offset", "limit"))
        if path == "/series":
            rows = [row(study="1", series=name) for name in page(offset, limit)]
            line = f"299 archive: There are {remaining} additional results that can be requested"
            headers = {"Warning": line} if remaining > 0 and rows else {}
            headers |= {"X-Total-Count": str(-remaining)} if remaining < 0 else {}
            return httpx.Response(200, json=rows, headers=headers)
        return httpx.Response(200, json=[] if offset else [row(instance=f"{path.split('/')[4]}.9")])

    return answer


def names(number: int) -> list[str]:
    return [f"2.{item}" for item in range(number)]


def pages(*given: list[str]) -> Callable[[int, int], list[str]]:
    """Pages of any length, whatever number is asked for."""
    starts = [sum(map(len, given[:number])) for number in range(len(given))]
    return lambda offset, _: given[starts.index(offset)] if offset in starts else []


@pytest.mark.parametrize(
    ("page", "listed"),
    [
        (pages(["1.1", "1.2"], ["1.2", "1.3"], ["1.4"]), ["1.1", "1.2", "1.3", "1.4"]),
        (lambda offset, limit: names(450)[offset : offset + limit], names(450)),
        (lambda offset, _: names(450)[offset : offset + 7], names(450)),  # fewer than asked for
        (lambda offset, _: [] if offset else names(450), names(450)),  # knows no limit
        (lambda _, __: [], []),
    ],
    ids=["repeats", "whole", "short", "no limit", "empty"],
)
def test_every_page_is_read(page: Callable[[int, int], list[str]], listed: list[str]) -> None:
    with archive(listing(page)) as web:
        images = web.images(["CR"], "20260101-20260131")
    assert [image.instance for image in images] == sorted(f"{name}.9" for name in listed)
    assert web.repeated_rows == 0


@pytest.mark.parametrize(
    ("page", "remaining", "fault"),
    [
        (lambda _, limit: names(250)[:limit], 0, "behind 200 rows"),  # knows no offset
        (lambda _, __: names(250), 0, "behind 250 rows"),  # nor a limit
        (lambda offset, limit: names(400)[offset % 400 :][:limit], 0, "behind 400 rows"),  # a ring
        (lambda _, __: names(12), 38, "behind 12 rows"),  # a cap of its own, announced
        (pages(names(100)), 300, "behind 100 rows"),  # fewer than announced
        (pages(names(100)), -101, "behind 100 rows"),
        (lambda offset, _: [f"2.{offset}"], 0, "more than 1000 rows"),  # new ones for ever
        (lambda offset, _: [f"2.{offset + n}" for n in range(2000)], 0, "more than 1000 rows"),
    ],
)
def test_a_list_that_is_incomplete_or_endless_is_refused(page, remaining, fault):
    web = archive(listing(page, remaining), most_listed=1000)
    with web, pytest.raises(ServiceError, match=fault) as refused:
        web.images(["CR"])
    assert refused.value.code == "listing"


@pytest.mark.parametrize("most", [1000, 12])
def test_an_archive_that_ignores_offset_may_have_more_and_is_named(most, caplog) -> None:
    with archive(listing(lambda _, limit: names(50)[: min(most, limit)])) as web:
        images = web.images(["CR"])
    (record,) = caplog.records
    assert len(images) == web.repeated_rows == min(most, 50)
    assert record.getMessage().startswith("http://archive/dicom-web/ answers the question for the")
    assert f"the {min(most, 50)} rows of the one before: it ignores `offset`" in record.getMessage()


def test_uids_that_are_padded_as_in_files_are_those_without() -> None:
    def padded(request: httpx.Request) -> httpx.Response:
        tree = [row(study="1.1\0", series="1.2 ", instance="1.3\0")]
        return httpx.Response(200, json=[] if request.url.params["offset"] != "0" else tree)

    with archive(padded) as web:
        assert web.images(["CR"]) == [("1.1", "1.2", "1.3")]


def test_all_series_of_a_listing_share_its_bounds() -> None:
    numbers = count()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/series"):
            rows = [] if request.url.params["offset"] != "0" else names(50)
            return httpx.Response(200, json=[row(study="1", series=name) for name in rows])
        return httpx.Response(200, json=[row(instance=f"3.{next(numbers)}") for _ in range(10)])

    with archive(answer, most_listed=300) as web, pytest.raises(ServiceError, match="than 300"):
        web.images(["CR"])
    assert next(numbers) < 600
    with archive(answer, listing_s=0) as web, pytest.raises(ServiceError, match="too long"):
        web.images(["CR"])


@pytest.mark.parametrize(
    "body",
    ["<html>", "{}", '"rows"', "[" * 100_000, json.dumps([{"0020000D": {}}]),
     json.dumps([row(study="../x", series="1")])],
)  # fmt: skip
def test_what_is_no_listing_is_refused(body: str) -> None:
    web = archive(lambda _: httpx.Response(200, text=body))
    with web, pytest.raises(ServiceError) as refused:
        web.images(["CR"])
    assert refused.value.code == "no_answer"


@pytest.mark.parametrize(
    "parameters",
    ['type="application/dicom"; boundary="x y"', 'start="<a; boundary=b>"; BOUNDARY = "x y"'],
)
def test_a_part_is_given_as_it_is(parameters: str) -> None:
    file = radiograph(ramp(16, 16), SOPInstanceUID="1.3", StudyInstanceUID="1.1")
    file += b"\r\n--almost\r\n\r\nthe end\r\n"
    body = b"\r\n--x y\r\nContent-Type: application/dicom\r\n\r\n" + file + b"\r\n--x y--\r\n"
    kind = {"Content-Type": f"multipart/related; {parameters}"}
    with archive(lambda _: httpx.Response(200, content=body, headers=kind)) as web:
        assert web.fetch(IMAGE) == file
    cut = archive(lambda _: httpx.Response(200, content=body[:40], headers=kind))
    with cut as web, pytest.raises(ImageError, match="wrong_image"):
        web.fetch(IMAGE)
    with archive(lambda _: httpx.Response(404)) as web, pytest.raises(ImageError, match="missing"):
        web.fetch(IMAGE)


def stored(*uids: str) -> dict[str, Any]:
    return {"Value": [{"00081155": {"Value": [uid]}} for uid in uids]}


def failed(uid: str, reason: int) -> dict[str, Any]:
    return {"Value": [{"00081155": {"Value": [uid]}, "00081197": {"Value": [reason]}}]}


@pytest.mark.parametrize(
    ("status", "tree", "code"),
    [
        (200, {"00081199": stored("1", "2"), "00081198": {"vr": "SQ"}}, ""),  # as Orthanc answers
        (409, {"00081199": stored("1"), "00081198": failed("2", 0x0111)}, ""),  # it has it already
        (200, {}, "not_stored"),  # a success that means nothing
        (200, {"00081199": stored("1")}, "not_stored"),
        (202, {"00081199": stored("1"), "00081198": failed("2", 0x0110)}, "not_stored"),
        (401, {}, "archive"),
        (500, {}, "archive"),
    ],
)
def test_only_objects_that_the_archive_names_are_stored(status, tree, code):
    refused = pytest.raises(ServiceError, match=f"^{code}: ") if code else nullcontext()
    with archive(lambda _: httpx.Response(status, json=tree)) as web, refused:
        web.store({"1": b"one", "2": b"two"})


def test_a_malformed_url_is_named() -> None:
    with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:80x.*Invalid port"):
        DicomWeb("http://127.0.0.1:80x")


# Real connections


@pytest.fixture
def stub() -> Iterator[StubArchive]:
    with stub_archive() as stub:
        yield stub


def numbered(number: int) -> bytes:
    return orthanc.radiograph(number, rows=16, columns=16)


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
            web.store({"1.3": b"object"})  # the gateway sends again by itself
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


def test_answers_end_at_a_size_or_a_time_and_are_not_compressed(stub, monkeypatch):
    monkeypatch.setattr(dicomweb, "_MOST_ANSWER_BYTES", 1 << 16)
    monkeypatch.setattr(dicomweb, "_MOST_BYTES", 1 << 16)

    def drip_head(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        with suppress(OSError):
            while not is_over.wait(0.05):
                request.wfile.write(b"x")

    zipped = {"Content_Encoding": "gzip"}
    is_over = threading.Event()
    for fault, reason in (
        (partial(endless, part=b"[" * 4096), "exceeds 65536 bytes"),
        (partial(endless, part=b" ", pause_s=0.05), "the time ran out"),
        (drip_head, "the time ran out"),
        (lambda request: request.answer(200, gzip.compress(b"[]" * 10), **zipped), "compressed"),
    ):
        stub.odd = lambda request, fault=fault: fault(request) or True  # type: ignore[misc]
        with DicomWeb(stub.url, deadline_s=0.3, waits_s=()) as web:
            for ask in (lambda: web.images(["CR"]), lambda: web.store({"1.3": b"object"})):
                start = time.monotonic()
                with pytest.raises(ServiceError, match=reason):
                    ask()
                assert time.monotonic() - start < 10
            with pytest.raises((ServiceError, ImageError)):
                web.fetch(IMAGE)
    is_over.set()
    assert {head["Accept-Encoding"] for head in stub.headers} == {"identity"}


@pytest.mark.skipif(not HAS_OPENSSL, reason="not installed: openssl")
def test_an_authority_is_trusted_once_it_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    files = make_certificates(tmp_path / "tls")
    with stub_archive(files.server_context()) as stub:
        for ca in (None, files.stranger):
            with DicomWeb(stub.url, ca=ca, waits_s=()) as web, pytest.raises(ServiceError) as error:
                web.images(["CR"])
            assert error.value.code == "certificate"
        with DicomWeb(stub.url, ca=files.ca) as web:
            assert web.images(["CR"]) == []
        monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
        settings = SourceConfig(kind="dicomweb", archive=stub.url)
        assert read_dicomweb(tmp_path / "images", settings, Path).images == []


# The source


def test_a_config_reads_an_archive_by_its_kind(stub: StubArchive, tmp_path: Path) -> None:
    from medclip_dcl.data.sources.readers import read_source

    stub.add(1, numbered(1))
    settings = SourceConfig(kind="dicomweb", archive=stub.url, root=str(tmp_path / "images"))
    (image,) = read_source(settings, Path).raw.images
    assert image.path == "1.2.826.0.1.3680043.10.1.1.1/1.2.826.0.1.3680043.10.1.1.3.dcm"
    with pytest.raises(ConfigError, match=r"needs source\.archive"):
        read_source(settings.model_copy(update={"archive": ""}), Path)


def test_what_a_killed_mirror_left_half_written_is_neither_listed_nor_kept(tmp_path, monkeypatch):
    file = radiograph(ramp(16, 16), SOPInstanceUID="1.3", StudyInstanceUID="1.1")
    monkeypatch.setattr(DicomWeb, "images", lambda *_: [IMAGE])
    monkeypatch.setattr(DicomWeb, "fetch", lambda *_: file)
    (tmp_path / "1.1").mkdir()
    for left in (file, file[:700]):  # killed before the rename, or in the middle
        (tmp_path / "1.1" / f"{STAGED}1.3.dcm.{len(left)}").write_bytes(left)
    studies = read_dicomweb(tmp_path, SourceConfig(kind="dicomweb", archive="http://a"), Path)
    assert [image.path for image in studies.images] == ["1.1/1.3.dcm"]
    assert studies.rejects == []
    assert [path.name for path in tmp_path.rglob("*.dcm*")] == ["1.3.dcm"]


def test_a_full_disk_under_a_mirror_is_named(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DicomWeb, "images", lambda *_: [IMAGE])
    monkeypatch.setattr(DicomWeb, "fetch", lambda *_: b"DICM")
    monkeypatch.setattr(os, "fsync", full)
    settings = SourceConfig(kind="dicomweb", archive="http://archive")
    with pytest.raises(ArtifactUnwritable, match="mirror could not be written: No space"):
        read_dicomweb(tmp_path / "mirror", settings, Path)


def test_what_comes_in_an_image_s_place_is_a_reject_and_asked_for_again(stub, tmp_path):
    sent = {1: numbered(3), 2: numbered(2), 4: b"<html>", 5: numbered(5)[:300]}
    for number, file in sent.items():
        stub.add(number, file)
    settings = SourceConfig(kind="dicomweb", archive=stub.url)

    def listed() -> tuple[list[str], dict[str, str]]:
        studies = read_dicomweb(tmp_path, settings, Path)
        ids = [image.image_id.split(".")[-2] for image in studies.images]
        return ids, {reject.id.split(".")[-2]: reject.reason for reject in studies.rejects}

    assert listed() == (["2"], dict.fromkeys("145", "wrong_image"))
    assert len(list(tmp_path.rglob("*.dcm"))) == 1
    for number in (1, 4, 5):
        stub.add(number, numbered(number))
    assert listed() == (["1", "2", "4", "5"], {})
