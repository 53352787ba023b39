"""What is kept is durable under its digest; what is not leaves nothing."""

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from hospital.tests.support.orthanc import gateway_settings
from medclip_dcl.core.errors import ConfigError
from medclip_hospital.gateway import launcher
from medclip_hospital.gateway.journal import Journal
from medclip_hospital.gateway.spool import IncomingImage, Spool

DATA = b"an image" * 100


@pytest.fixture
def spool(tmp_path: Path):
    spool = Spool(tmp_path / "spool", max_bytes=2000)
    yield spool
    spool.close()


def written(spool: Spool, data: bytes, max_bytes: int = 1000) -> IncomingImage:
    part = IncomingImage(spool, max_bytes)
    for start in range(0, len(data), 300):
        part.write(data[start : start + 300])
    return part


def test_an_image_is_kept_under_the_digest_of_its_bytes(spool: Spool) -> None:
    part = written(spool, DATA)
    spool.keep(part)
    part.close()
    digest = hashlib.sha256(DATA).hexdigest()
    assert spool.image(digest).read_bytes() == DATA
    assert list(spool.digests()) == [digest]
    assert spool.bytes == len(DATA)
    assert list(spool.incoming.iterdir()) == []
    spool.remove([digest])
    assert (list(spool.digests()), spool.bytes) == ([], 0)


def test_an_image_that_two_senders_bring_at_a_time_is_counted_once(spool, monkeypatch) -> None:
    exists = Path.exists

    def looked(path: Path) -> bool:
        found = exists(path)
        time.sleep(0.02)
        return found

    parts = [written(spool, DATA) for _ in range(2)]
    monkeypatch.setattr(Path, "exists", looked)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(spool.keep, parts))
    assert spool.bytes == len(DATA)


def test_what_is_forgotten_or_too_old_leaves_neither_image_nor_objects(tmp_path) -> None:
    settings = gateway_settings(tmp_path, "http://127.0.0.1:9", remember_days=1e-9)
    with closing(Spool(settings.spool, 2000)) as spool:
        journal = Journal(settings.spool / "journal.sqlite3")
        gateway = launcher.Gateway(settings, spool, journal, 0, 0)
        config = tmp_path / "gateway.yaml"
        config.write_text(settings.model_dump_json())
        forget = ["forget", hashlib.sha256(DATA).hexdigest(), "--config", str(config)]
        for remove in (lambda: launcher.main(forget), gateway.tidy):
            part = written(spool, DATA)
            spool.keep(part)
            journal.add(part.digest, "1.2", "A")
            journal.refused(part.digest, "view")
            spool.write_objects(part.digest, {"1.2": b"names"})
            remove()
            gateway.tidy()
            assert not list((spool.folder / "objects").iterdir())
            assert (list(spool.digests()), spool.bytes, journal.counts()["refused"]) == ([], 0, 0)
        journal.close()


def test_a_part_that_is_too_large_stops_writing_and_leaves_nothing(spool: Spool) -> None:
    part = written(spool, DATA, max_bytes=500)
    assert part.failure == "too_large"
    assert part.size == len(DATA)
    assert part.path.stat().st_size <= 500
    part.close()
    assert list(spool.incoming.iterdir()) == []


def test_a_full_spool_takes_nothing(spool: Spool) -> None:
    for number in range(2):
        part = written(spool, bytes([number]) * 900)
        spool.keep(part)
        part.close()
    assert written(spool, DATA).failure == "spool_full"


GIBIBYTE = 1 << 30


@pytest.mark.parametrize(
    ("size_bytes", "free_bytes", "failure"),
    [
        (100 * GIBIBYTE, GIBIBYTE, ""),
        (100 * GIBIBYTE, 257 << 20, ""),
        (100 * GIBIBYTE, 256 << 20, "spool_full"),
        (100 * GIBIBYTE, 0, "spool_full"),
        (100 << 20, 6 << 20, ""),  # of a small disk a twentieth
        (100 << 20, 5 << 20, "spool_full"),
        (0, -1, "disk"),  # it fails
    ],
)
def test_what_was_acknowledged_has_a_reserve_on_the_disk(
    spool: Spool, monkeypatch, size_bytes: int, free_bytes: int, failure: str
) -> None:
    def disk(_: Path) -> SimpleNamespace:
        if free_bytes < 0:
            raise OSError(5, "Input/output error")
        block = 4096
        return SimpleNamespace(
            f_frsize=block, f_blocks=size_bytes // block, f_bavail=free_bytes // block
        )

    monkeypatch.setattr(os, "statvfs", disk)
    assert written(spool, DATA).failure == failure


def test_a_disk_that_takes_nothing_is_a_failure_and_no_exception(spool: Spool) -> None:
    spool.incoming.rmdir()
    part = written(spool, DATA)
    assert part.failure == "disk"
    part.close()


def test_a_second_gateway_is_refused_and_parts_are_swept_at_start(spool: Spool) -> None:
    left = written(spool, DATA)
    (spool.folder / "objects/d").mkdir()
    staged = spool.folder / "objects/d/.staged.1.dcm.ab"
    staged.touch()
    with pytest.raises(ConfigError, match="another gateway"):
        Spool(spool.folder, 2000)
    assert left.path.exists()
    spool.close()
    again = Spool(spool.folder, 2000)
    assert list(again.incoming.iterdir()) == []
    assert not staged.exists()
    spool._lock = again._lock  # closed by the fixture


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match=r"mode 755.*chmod 700"):
        Spool(tmp_path / "spool", 2000)


def test_objects_are_written_whole_and_an_earlier_attempt_is_gone(spool: Spool) -> None:
    spool.write_objects("d", {"1.2": b"old", "1.3": b"old"})
    spool.write_objects("d", {"1.2": b"new"})
    assert spool.object("d", "1.2").read_bytes() == b"new"
    assert not spool.object("d", "1.3").exists()
