"""Images that were missed are fetched, whatever arrived under their names and the archive says."""

import io
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from pydicom.filewriter import write_file_meta_info
from pynetdicom import AE, _config

from hospital.tests.support.archive import StubArchive, nested, stub_archive
from hospital.tests.support.orthanc import dataset, gateway_settings, radiograph, send, wait_until
from medclip_hospital.dicomweb import DicomWeb
from medclip_hospital.gateway import launcher

REFUSED = {"ViewPosition": "LL"}  # once it is looked at


@pytest.fixture
def archive(monkeypatch):
    monkeypatch.setitem(DicomWeb.__init__.__kwdefaults__, "waits_s", (0.02, 0.02))
    with stub_archive() as archive:
        yield archive


@contextmanager
def running(folder: Path, service, archive: StubArchive, **given):
    catch_up = {"url": archive.url, "every_s": 0.05}
    settings = gateway_settings(folder, service.url, catch_up=catch_up, **given)
    with launcher.started(settings) as gateway:
        yield gateway


def uid(number: int) -> str:
    return f"1.2.826.0.1.3680043.10.1.{number}.3"


def refusals(gateway) -> set[tuple[object, ...]]:
    """UIDs and codes of images that were looked at in vain."""
    return set(gateway.journal._rows("select image_uid, code from images where state = 'refused'"))


def looks(archive: StubArchive, number: int) -> None:
    """Wait until the archive was looked through so many times more."""
    before = archive.count("/series")
    wait_until(lambda: archive.count("/series") >= before + 4 * number)  # two modalities, two pages


def damaged(number: int) -> bytes:
    """An image whose header names more rows than there are."""
    return radiograph(number, Rows=41)


def named(number: int, image: bytes, data: bytes | None = None) -> bytes:
    """An image under another's UID, which stands in the file meta alone; `data` in its place."""
    tags = dataset(image)
    tags.file_meta.MediaStorageSOPInstanceUID = uid(number)
    meta = io.BytesIO()
    write_file_meta_info(meta, tags.file_meta)
    plain = dataset(image).file_meta
    start = image.index(b"DICM") + 4 + 12 + plain.FileMetaInformationGroupLength
    return bytes(128) + b"DICM" + meta.getvalue() + (image[start:] if data is None else data)


def send_as_named(port: int, file: Path, monkeypatch) -> int:
    """Send a file under the UID of its file meta, unread."""
    monkeypatch.setattr(_config, "STORE_SEND_CHUNKED_DATASET", True)
    entity = AE(ae_title="MODALITY")
    entity.add_requested_context("1.2.840.10008.5.1.4.1.1.1", "1.2.840.10008.1.2.1")
    association = entity.associate("127.0.0.1", port, ae_title="MEDCLIP")
    status = association.send_c_store(file).Status
    association.release()
    return int(status)


def test_an_image_that_arrived_damaged_is_fetched_until_it_is_whole(tmp_path, service, archive):
    with running(tmp_path, service, archive) as gateway:
        assert send(gateway.port, [damaged(1)]) == [0]
        wait_until(lambda: refusals(gateway) == {(uid(1), "truncated")})
        archive.add(1, damaged(1))
        wait_until(lambda: archive.count(uid(1)) == 1)
        looks(archive, 2)
        assert archive.count(uid(1)) == 1  # what has not changed is not fetched each time
    archive.add(1, radiograph(1, **REFUSED))
    with running(tmp_path, service, archive) as gateway:
        wait_until(lambda: refusals(gateway) == {(uid(1), "truncated"), (uid(1), "view")})
        looks(archive, 2)
        assert archive.count(uid(1)) == 2


@pytest.mark.parametrize(
    "sent",
    [named(2, radiograph(1)), named(2, radiograph(1), b"noise" * 600)],
    ids=["other", "noise"],
)
def test_what_arrives_under_another_image_s_uid_is_refused_and_suppresses_nothing(
    tmp_path, service, archive, monkeypatch, sent: bytes
) -> None:
    archive.add(2, radiograph(2, **REFUSED))
    archive.odd = lambda request: request.answer(200, []) or True
    file = tmp_path / "sent.dcm"
    file.write_bytes(sent)
    with running(tmp_path, service, archive) as gateway:
        assert send_as_named(gateway.port, file, monkeypatch) == 0xA900
        assert sum(gateway.journal.counts().values()) == 0
        archive.odd = lambda _: False
        wait_until(lambda: refusals(gateway) == {(uid(2), "view")})


def health(gateway) -> tuple[int, str]:
    reply = httpx.get(f"http://127.0.0.1:{gateway.metrics_port}/health")
    return reply.status_code, reply.json()["status"]


def test_another_image_than_the_one_asked_for_is_not_taken_and_shown(tmp_path, service, archive):
    archive.add(1, radiograph(2, **REFUSED))
    archive.add(3, radiograph(3, **REFUSED))
    with running(tmp_path, service, archive) as gateway:
        wait_until(lambda: refusals(gateway) == {(uid(3), "view")})
        assert health(gateway) == (503, "catch_up")
        archive.add(1, radiograph(1, **REFUSED))
        wait_until(lambda: refusals(gateway) == {(uid(1), "view"), (uid(3), "view")})
        wait_until(lambda: health(gateway) == (200, "ok"))


def test_an_image_without_a_row_in_the_journal_is_known_by_its_file(tmp_path, service, archive):
    with running(tmp_path, service, archive) as gateway:
        assert send(gateway.port, [radiograph(1, **REFUSED)]) == [0]
    for file in (tmp_path / "spool").glob("journal.*"):
        file.unlink()
    archive.add(1, radiograph(1, **REFUSED))
    with running(tmp_path, service, archive) as gateway:
        wait_until(lambda: refusals(gateway) == {(uid(1), "view")})
        looks(archive, 2)
        assert archive.count(uid(1)) == 0


def cut(request) -> bool:
    request.answer(200, b"--x\r\nno head", "multipart/related; boundary=x")
    return True


ODD: tuple[Callable[..., object], ...] = (
    nested,
    lambda request: request.answer(500, b""),
    lambda request: request.answer(200, {"0020000D": None}),
    lambda request: request.answer(200, "rows"),
)


def test_an_odd_answer_is_shown_by_health_and_ends_no_catching_up(tmp_path, service, archive):
    with running(tmp_path, service, archive) as gateway:
        for number, answer in enumerate(ODD, start=1):
            archive.odd = lambda request, answer=answer: answer(request) or True
            wait_until(lambda: health(gateway) == (503, "catch_up"))
            archive.add(number, radiograph(number, **REFUSED))
            archive.odd = lambda _: False
            seen = {(uid(known), "view") for known in range(1, number + 1)}
            wait_until(lambda seen=seen: refusals(gateway) == seen)
            wait_until(lambda: health(gateway) == (200, "ok"))


def test_an_image_that_cannot_be_fetched_holds_up_no_other(tmp_path, service, archive) -> None:
    for number in (1, 2):
        archive.add(number, radiograph(number, **REFUSED))
    archive.odd = lambda request: request.path.endswith(uid(1)) and cut(request)
    with running(tmp_path, service, archive) as gateway:
        wait_until(lambda: refusals(gateway) == {(uid(2), "view")})
        wait_until(lambda: archive.count(uid(1)) >= 2)
        archive.odd = lambda _: False
        wait_until(lambda: len(refusals(gateway)) == 2)
