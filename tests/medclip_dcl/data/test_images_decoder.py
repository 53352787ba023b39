"""The pool: a worker that hangs or dies costs one image, and no time beyond the deadline."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from medclip_dcl.data import images, ipc
from medclip_dcl.data.grayscale import square
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import REASONS, ImagesConfig
from medclip_dcl.errors import ImageError, StudyError
from testing.bombs import BOMBS
from testing.dicom import dicom_bytes, ramp, raster_bytes


def children() -> set[int]:
    """Decode workers of this process."""
    return {
        process.pid
        for process in psutil.Process().children()
        if any("data.decode_worker" in part for part in process.cmdline())
    }


def test_worker_that_hangs_is_killed_at_the_deadline_and_replaced() -> None:
    before = children()
    with Decoder(ImagesConfig(deadline_s=1), 1) as decoder:
        decoder.open(dicom_bytes(ramp()))
        (worker,) = children() - before
        os.kill(worker, signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(ImageError) as refused:
            decoder.open(dicom_bytes(ramp()))
        assert refused.value.code == "deadline"
        assert 0.9 < time.monotonic() - start < 5
        assert not psutil.pid_exists(worker)
        assert decoder.open(dicom_bytes(ramp())).pixels.any()


def test_worker_that_is_killed_on_an_image_is_replaced_and_the_image_read() -> None:
    before = children()
    with Decoder(ImagesConfig(), 1) as decoder, ThreadPoolExecutor(1) as thread:
        decoder.open(dicom_bytes(ramp()))
        (worker,) = children() - before
        os.kill(worker, signal.SIGSTOP)
        image = thread.submit(decoder.open, dicom_bytes(ramp()))
        time.sleep(0.3)
        os.kill(worker, signal.SIGKILL)
        assert image.result().pixels.any()


def test_image_on_which_two_workers_die_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def die(*_: object) -> None:
        asked.append(1)
        raise ipc.Closed

    monkeypatch.setattr(images, "send", die)
    with Decoder(ImagesConfig(), 1) as decoder:
        with pytest.raises(ImageError) as refused:
            decoder.open(dicom_bytes(ramp()))
        monkeypatch.undo()
        assert (refused.value.code, len(asked)) == ("worker_died", 2)
        assert decoder.open(dicom_bytes(ramp())).pixels.any()


def test_worker_that_died_idle_is_no_images_fault() -> None:
    before = children()
    with Decoder(ImagesConfig(), 1) as decoder:
        decoder.open(dicom_bytes(ramp()))
        (worker,) = children() - before
        os.kill(worker, signal.SIGKILL)
        psutil.Process(worker).wait(5)
        assert decoder.open(dicom_bytes(ramp())).pixels.any()


def test_memory_beyond_the_cap_is_refused_and_the_worker_lives_on() -> None:
    large = raster_bytes(np.zeros((6000, 6000), dtype=np.uint8), "png")
    with Decoder(ImagesConfig(memory_mb=48), 1) as decoder:
        with pytest.raises(ImageError) as refused:
            decoder.open(large)
        assert refused.value.code == "memory"
        assert decoder.open(dicom_bytes(ramp())).pixels.any()


def test_threads_share_a_pool_and_get_their_own_images() -> None:
    images = [ramp(20 + number, 30) for number in range(40)]
    with Decoder(ImagesConfig(), 2) as decoder, ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(decoder.open, [dicom_bytes(image) for image in images]))
    assert [item.pixels.shape[0] for item in opened] == [20 + number for number in range(40)]


def test_square_of_the_worker_is_the_square_of_the_picture(tmp_path: Path) -> None:
    image = dicom_bytes(ramp(90, 70), photometric="MONOCHROME1")
    path = tmp_path / "image.dcm"
    path.write_bytes(image)
    with Decoder(ImagesConfig(), 1) as decoder:
        for equalize in (False, True):
            answer = decoder.square(path, 32, equalize=equalize)
            assert (answer.height_px, answer.width_px) == (90, 70)
            assert np.array_equal(answer.pixels, square(decoder.open(image), 32, equalize))


def test_no_worker_outlives_its_pool() -> None:
    before = children()
    with Decoder(ImagesConfig(), 2) as decoder, ThreadPoolExecutor(4) as threads:
        list(threads.map(decoder.open, [dicom_bytes(ramp())] * 8))
    assert children() <= before
    with pytest.raises(ImageError):
        decoder.open(dicom_bytes(ramp()))
    assert threading.active_count() < 50


def test_worker_that_cannot_start_is_no_images_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with Decoder(ImagesConfig(), 1) as decoder, pytest.raises(StudyError, match="cannot start"):
        decoder.open(dicom_bytes(ramp()))


# Hostile files: each is refused by name, soon, and at no cost to who opened it


@pytest.fixture(scope="module")
def pool_of_one() -> Iterator[Decoder]:
    with Decoder(ImagesConfig(), 1) as pool:
        pool.open(dicom_bytes(ramp()))
        yield pool


def test_memory_is_kept_for_the_next_image_unless_one_took_too_much(
    pool_of_one: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = dicom_bytes(ramp())
    pool_of_one.open(file)
    kept = len(list(Path("/dev/fd").iterdir()))
    for most, left in ((len(file), kept), (len(file) - 1, kept - 1)):
        monkeypatch.setattr(images, "KEPT_BYTES", most)
        assert pool_of_one.open(file).pixels.any()
        assert len(list(Path("/dev/fd").iterdir())) == left


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_by_name(name: str, pool_of_one: Decoder) -> None:
    data = BOMBS[name].make()
    caller = psutil.Process()
    before, start = caller.memory_info().rss, time.monotonic()
    with pytest.raises(ImageError) as refused:
        pool_of_one.open(data)
    assert time.monotonic() - start < 10
    assert caller.memory_info().rss - before < 256 * 2**20
    assert refused.value.code in BOMBS[name].reasons <= set(REASONS)
