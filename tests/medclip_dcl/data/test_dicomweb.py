"""An archive that pages badly, stores nothing, or answers nonsense; a real one is in pipelines."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.fixtures.dicom import ramp
from benchmarks.fixtures.hospital import radiograph
from medclip_dcl.client import Client
from medclip_dcl.data.sources.dicomweb import ArchivedImage, DicomWeb, read_dicomweb
from medclip_dcl.data.sources.records import SourceConfig
from medclip_dcl.errors import ArtifactUnwritable, ImageError, ServiceError
from medclip_dcl.files import STAGED

IMAGE = ArchivedImage("1.1", "1.2", "1.3")


def archive(answer: Callable[[httpx.Request], httpx.Response]) -> DicomWeb:
    return DicomWeb("http://archive/dicom-web/", transport=httpx.MockTransport(answer))


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


def test_an_archive_that_knows_no_offset_ends() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        is_series = request.url.path.endswith("/series")
        return httpx.Response(
            200, json=[row(study="1", series="2") if is_series else row(instance="3")]
        )

    with archive(answer) as web:
        assert web.images(["DX"]) == [ArchivedImage("1", "2", "3")]


@pytest.mark.parametrize(
    "body", ["<html>", json.dumps([{"0020000D": {}}]), json.dumps([row(study="../x", series="1")])]
)
def test_what_is_no_listing_is_refused(body: str) -> None:
    web = archive(lambda _: httpx.Response(200, text=body))
    with web, pytest.raises(ServiceError) as refused:
        web.images(["CR"])
    assert refused.value.code == "no_answer"


def test_a_part_is_given_as_it_is() -> None:
    file = b"DICM\r\n--almost\r\n\r\nthe end\r\n"
    body = b"\r\n--x y\r\nContent-Type: application/dicom\r\n\r\n" + file + b"\r\n--x y--\r\n"
    kind = {"Content-Type": 'multipart/related; type="application/dicom"; boundary="x y"'}
    with archive(lambda _: httpx.Response(200, content=body, headers=kind)) as web:
        assert web.fetch(IMAGE) == file
    cut = archive(lambda _: httpx.Response(200, content=body[:40], headers=kind))
    with cut as web, pytest.raises(ServiceError):
        web.fetch(IMAGE)
    with archive(lambda _: httpx.Response(404)) as web, pytest.raises(ImageError):
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


def test_an_image_without_objects_sends_the_archive_nothing() -> None:
    with archive(lambda _: httpx.Response(400)) as web:
        web.store({})  # a presentation state is made where there is a box


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
