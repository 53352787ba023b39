"""The gate: what goes in comes out the same way up, and what cannot is refused by name."""

import csv
import io
import os
import re
import resource
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import imagecodecs
import numpy as np
import psutil
import pytest
from PIL import Image, ImageOps

from medclip_dcl.core.errors import ConfigError, ImageError, StudyError
from medclip_dcl.data import decode_worker, images
from medclip_dcl.data.grayscale import square
from medclip_dcl.data.limits import REASONS, ImagesConfig, is_dicom, require_image
from tests.support.bombs import BOMBS, zeros
from tests.support.dicom import J2K, JPEG_LS, dicom_bytes, ramp, raster_bytes, refusal, scaled

CONFIG = ImagesConfig()


def test_a_png_keeps_its_bits_and_colours_become_luma() -> None:
    for stored, bits in ((ramp(top=255).astype(np.uint8), 8), (ramp(top=60000), 16)):
        image = images.open_image(raster_bytes(stored, "png"))
        assert np.array_equal(image.pixels, scaled(stored))
        assert image.bits_stored == bits
    colours = np.array([[(0, 0, 0), (0, 255, 0), (255, 255, 255)]], np.uint8)
    image = images.open_image(raster_bytes(colours, "png"))
    assert image.pixels[0, 1] == round(150 / 255 * 65535)  # 0.587 x 255, BT.601


def test_a_truncated_file_is_refused_wherever_it_is_cut_and_a_png_of_many_chunks():
    file = dicom_bytes(ramp())
    for end in (131, 200, 400, len(file) - 2000, len(file) - 2):
        assert refusal(file[:end]) in {"unknown_format", "truncated", "bad_tags", "no_pixel_data"}
    raster = raster_bytes(ramp(200, 200, 255).astype(np.uint8), "jpeg")
    assert refusal(raster[: len(raster) // 2]) in {"corrupt", "truncated"}
    png = raster_bytes(ramp().astype(np.uint16), "png")
    chunk = b"\0\0\0\0meDi" + struct.pack(">I", zlib.crc32(b"meDi"))
    assert images.open_image(png[:33] + 100 * chunk + png[33:]).pixels.shape == ramp().shape
    assert refusal(png[:33] + 70_000 * chunk + png[33:]) == "corrupt"


# Metadata that are damaged, around pixels that are whole

STORED = ramp(16, 32, 255).astype(np.uint8)
EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\1"  # a directory of one entry
UPSIDE_DOWN = EXIF + b"\1\x12\0\3\0\0\0\1\0\3\0\0\0\0\0\0"
DAMAGED = {
    "directory cut": UPSIDE_DOWN[:20],
    "no directory": EXIF[:10],
    "no TIFF file": b"Exif\0\0" + bytes(20),
    "entry beyond the end": EXIF + b"\1\x12\0\3\0\1\0\0\0\0\xff\xff\0\0\0\0",
    "orientation 9": UPSIDE_DOWN.replace(b"\0\1\0\3\0\0\0\0\0\0", b"\0\1\0\x09\0\0\0\0\0\0"),
    "orientation in words": EXIF + b"\1\x12\0\2\0\0\0\4top\0\0\0\0\0",
}


def segment(kind: int, content: bytes) -> bytes:
    return b"\xff" + bytes([kind]) + (2 + len(content)).to_bytes(2, "big") + content


def chunk(kind: bytes, content: bytes, crc: int | None = None) -> bytes:
    crc = zlib.crc32(kind + content) if crc is None else crc
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)


OF_JPEG = [
    *(segment(0xE1, exif) for exif in DAMAGED.values()),
    segment(0xE1, DAMAGED["no TIFF file"])[:-9] + b"\xff\0\xff\xff" + bytes(9),
    segment(0xE2, b"ICC_PROFILE\0\1\2cut"),
    segment(0xE2, b"MPF\0MM\0*\xff\xff\xff\xff"),
    segment(0xED, b"Photoshop 3.0\0" + b"8BIM\4\4\0\0\xff\xff"),
    segment(0xFE, b"\xff\xd9\xff\xda"),
    segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta"),
    segment(0xFE, b"") + b"junk between segments",
]
OF_PNG = [
    *(chunk(b"eXIf", exif.removeprefix(b"Exif\0\0")) for exif in DAMAGED.values()),
    chunk(b"eXIf", UPSIDE_DOWN[6:], crc=1),
    chunk(b"tEXt", b"Comment\0cut", crc=2),
    chunk(b"tEXt", b"no separator"),
    chunk(b"zTXt", b"Comment\0\0no deflate stream"),
    chunk(b"zTXt", b"Comment\0\0" + zeros()),
    chunk(b"zTXt", b"Raw profile type exif\0\0cut"),
    chunk(b"iCCP", b"icc\0\0" + zeros()),
    chunk(b"iCCP", b"icc\0\x09cut"),
    chunk(b"pHYs", b"\0"),
    chunk(b"cHRM", b"\0"),
    chunk(b"acTL", bytes(8)),
    chunk(b"acTL", b"\0\0\0\2\0\0\0\0") + chunk(b"fcTL", b"cut"),
]


@pytest.mark.parametrize(
    ("form", "start", "before"),
    [*(("jpeg", 2, before) for before in OF_JPEG), *(("png", 33, before) for before in OF_PNG)],
)
def test_damaged_metadata_hide_no_pixels(form: str, start: int, before: bytes) -> None:
    """As https://github.com/python-pillow/Pillow/issues/8348, 5528, 5273 and 4852."""
    file = raster_bytes(STORED, form)
    image = images.open_image(file[:start] + before + file[start:])
    assert np.array_equal(image.pixels, images.open_image(file).pixels)


def test_an_orientation_is_followed_wherever_it_can_be_read_and_else_named() -> None:
    png, jpeg = raster_bytes(STORED, "png"), raster_bytes(STORED, "jpeg")
    for file in (
        png[:33] + chunk(b"eXIf", UPSIDE_DOWN[6:]) + png[33:],
        png[:-12] + chunk(b"eXIf", UPSIDE_DOWN[6:]) + png[-12:],
        jpeg[:2] + segment(0xE1, b"Exif\0\0" + UPSIDE_DOWN) + jpeg[2:],  # twice, as Pillow/8348
    ):
        turned = images.open_image(file)
        assert turned.ignored == ()
        assert turned.pixels[0, 0] > turned.pixels[-1, -1]
    cut = jpeg[:2] + segment(0xE1, DAMAGED["directory cut"]) + jpeg[2:]
    assert images.open_image(cut).ignored == ("EXIF",)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_as_pillow_does(orientation: int) -> None:
    tag = Image.Exif()
    tag[274] = orientation
    png = raster_bytes(STORED, "png", exif=tag)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(png)))
    assert np.array_equal(images.open_image(png).pixels, scaled(np.asarray(upright)))


FAULTS = (ValueError, RecursionError, MemoryError, EOFError, zlib.error)


@pytest.mark.parametrize(
    "fault",
    [*(kind("a name") for kind in FAULTS), UnicodeDecodeError("utf-8", b"", 0, 0, "a name")],
)
def test_no_refusal_shows_the_name_of_a_class(fault, monkeypatch):
    monkeypatch.setattr(decode_worker, "read_dicom", Mock(side_effect=fault))
    with pytest.raises(ImageError) as refused:
        decode_worker.read_image(dicom_bytes(ramp()), CONFIG)
    require_plain(refused.value)


def require_plain(error: ImageError) -> None:
    """A refusal is a code of the table and words: no class, no value of the file."""
    assert error.code in REASONS
    others = r"[a-z](Error|Exception|Warning)\b|a name|PHI|object at|Traceback"
    assert not re.search(others, str(error))


def test_random_bytes_give_a_picture_or_a_reason_in_plain_words():
    random = np.random.default_rng(3)
    stored = ramp(12, 12)
    jpeg2000 = bytes(imagecodecs.jpeg2k_encode(stored, codecformat="jp2", level=0))
    sound = [
        dicom_bytes(stored),
        dicom_bytes(stored, syntax=J2K, frame=jpeg2000),
        dicom_bytes(stored, syntax=JPEG_LS, frame=bytes(imagecodecs.jpegls_encode(stored))),
        raster_bytes(stored.astype(np.uint8), "jpeg"),
        raster_bytes(stored, "png"),
    ]
    codes = []
    for round_number in range(200):
        file = bytearray(sound[round_number % len(sound)])
        for _ in range(int(random.integers(1, 6))):
            file[int(random.integers(len(file)))] = int(random.integers(256))
        try:
            assert images.open_image(bytes(file)).pixels.ndim == 2
        except ImageError as error:
            require_plain(error)
            codes.append(error.code)
    assert 0 < len(codes) < 200
    for code, meaning in REASONS.items():
        require_plain(ImageError(code, meaning))


@contextmanager
def soon_and_in_little_memory() -> Iterator[None]:
    caller = psutil.Process()
    before, start = caller.memory_info().rss, time.monotonic()
    yield
    assert time.monotonic() - start < 10
    assert caller.memory_info().rss - before < 256 * 2**20


@pytest.mark.real_data
def test_every_file_is_read_or_refused_as_expected(test_data: Path) -> None:
    with (test_data / "dicom/manifest.csv").open(encoding="utf-8", newline="") as stream:
        found = list(csv.DictReader(stream))
    assert len(found) >= 56
    astray = []
    with soon_and_in_little_memory():
        for row in found:
            try:
                image = images.open_image(test_data / "dicom" / row["file"])
            except ImageError as error:
                outcome = "error"
                require_plain(error)
            else:
                outcome = "decode"
                assert image.constant or (image.pixels.min(), image.pixels.max()) == (0, 65535)
                assert row["dec_shape"] in {"{}x{}".format(*image.pixels.shape), ""}
                assert "PHISENT" not in repr(image)
            if row["expect"] not in {outcome, "decode_or_error"}:
                astray.append((row["file"], row["expect"], outcome))
    assert astray == []


@pytest.mark.real_data
def test_all_encodings_of_one_image_give_one_picture(test_data: Path) -> None:
    files = sorted((test_data / "dicom/files").glob("eq_*.dcm"))
    assert len(files) >= 9
    first, *others = (images.open_image(path).pixels for path in files)
    assert all(np.array_equal(first, other) for other in others)


def children() -> set[psutil.Process]:
    return {*psutil.Process().children()}


def test_worker_that_hangs_or_dies_is_replaced_and_costs_one_image_at_most() -> None:
    before, data = children(), dicom_bytes(ramp())
    with images.Decoder(ImagesConfig(deadline_s=1), 1) as decoder, ThreadPoolExecutor(1) as thread:
        decoder.open(data)
        (hanging,) = children() - before
        hanging.suspend()
        start = time.monotonic()
        with pytest.raises(ImageError, match=r"^deadline"):
            decoder.open(data)
        assert 0.9 < time.monotonic() - start < 5
        assert not hanging.is_running()
        assert decoder.open(data).pixels.any()
        (at_work,) = children() - before  # the image is read by the next one
        at_work.suspend()
        image = thread.submit(decoder.open, data)
        time.sleep(0.3)
        at_work.kill()
        assert image.result().pixels.any()
        (idle,) = children() - before  # that it died is no image's fault
        idle.kill()
        idle.wait(5)
        assert decoder.open(data).pixels.any()


def test_a_package_that_was_removed_is_named_and_no_image_s_fault(monkeypatch) -> None:
    data = dicom_bytes(ramp())
    with images.Decoder(CONFIG, 1) as decoder:
        for name in ("medclip_nowhere:separate", "medclip_dcl.data.images:nothing"):
            monkeypatch.setattr(images, "_separation", lambda name=name: name)
            with pytest.raises(ConfigError, match=rf"pip install \./hospital .*\({name} cannot be"):
                decoder.separate(data)
        assert decoder.open(data).pixels.any()


def test_image_on_which_two_workers_die_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Mock(side_effect=images._WorkerDied("worker_died", "died on this image"))
    monkeypatch.setattr(images._Worker, "ask", ask)
    with images.Decoder(CONFIG, 1) as decoder, pytest.raises(ImageError, match=r"^worker_died"):
        decoder.open(dicom_bytes(ramp()))
    assert ask.call_count == 2


def test_memory_beyond_the_cap_is_refused_and_the_worker_lives_on() -> None:
    large = raster_bytes(np.zeros((6000, 6000), dtype=np.uint8), "png")
    with images.Decoder(ImagesConfig(memory_mb=48), 1) as decoder:
        with pytest.raises(ImageError, match=r"^memory"):
            decoder.open(large)
        assert decoder.open(dicom_bytes(ramp())).pixels.any()


def test_threads_share_a_pool_and_no_worker_outlives_it() -> None:
    before, files = children(), [dicom_bytes(ramp(20 + number, 30)) for number in range(16)]
    with images.Decoder(CONFIG, 2) as decoder, ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(decoder.open, files))
    assert [item.pixels.shape[0] for item in opened] == [20 + number for number in range(16)]
    assert children() <= before
    with pytest.raises(ImageError):
        decoder.open(files[0])
    assert threading.active_count() < 50


def test_square_of_the_worker_is_the_square_of_the_picture(tmp_path: Path) -> None:
    image, path = dicom_bytes(ramp(90, 70), photometric="MONOCHROME1"), tmp_path / "image.dcm"
    path.write_bytes(image)
    for equalize in (False, True):
        answer = images.shared_decoder(CONFIG).square(path, 32, equalize=equalize)
        assert (answer.height_px, answer.width_px) == (90, 70)
        assert np.array_equal(answer.pixels, square(images.open_image(image), 32, equalize))


def test_worker_that_cannot_start_is_no_images_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with images.Decoder(CONFIG, 1) as decoder, pytest.raises(StudyError, match="cannot start"):
        decoder.open(dicom_bytes(ramp()))


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_by_name(name: str) -> None:
    data = BOMBS[name].make()
    with soon_and_in_little_memory(), pytest.raises(ImageError) as refused:
        images.open_image(data)
    require_plain(refused.value)
    assert refused.value.code in BOMBS[name].reasons


# Messages and arrays between a process and its decode workers


def test_messages_carry_a_header_and_one_descriptor_and_arrays_must_be_whole():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    longest = {"a": "x" * (65_536 - len('{"a": ""}'))}
    with ours, theirs, images.scratch(b"pixels") as file:
        images.send(ours, longest)
        images.send(ours, {"b": [1]}, file)
        assert images.receive(theirs) == (longest, None)
        header, handle = images.receive(theirs)
        assert header == {"b": [1]}
        assert os.pread(handle, 9, 0) == b"pixels"
        os.close(handle)
        before = psutil.Process().num_fds()
        for astray in (b"\3\0\0\0abc", struct.pack("<I", 65_537)):
            socket.send_fds(ours, [astray], [file])
            with pytest.raises(images.Closed):
                images.receive(theirs)
            assert psutil.Process().num_fds() == before
        theirs.settimeout(0.01)
        with pytest.raises(TimeoutError):
            images.receive(theirs)
        ours.sendall(b"\3\0")
        ours.close()
        with pytest.raises(images.Closed):  # in the middle of a message
            images.receive(theirs)
        with pytest.raises(images.Closed):
            images.send(theirs, {"a": 1})
        with pytest.raises(images.Closed):
            images.send(theirs, {"a": 1}, file)
    words = np.arange(6, dtype=np.uint16)
    with images.scratch(words.data) as file:
        copied = images.read_array(file, (2, 3), np.uint16)
        os.pwrite(file, bytes(12), 0)
        assert np.array_equal(copied, words.reshape(2, 3))
        with pytest.raises(images.Closed):
            images.read_array(file, (13,), np.uint8)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no limits of another process")
def test_no_room_to_hand_an_image_over_is_not_the_images_fault() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    data = raster_bytes(noise, "PNG")  # more than 4096 bytes; the answer has two for a pixel
    before, usual = children(), resource.getrlimit(resource.RLIMIT_FSIZE)
    with images.Decoder(CONFIG, 1) as decoder:
        decoder.open(data)
        (worker,) = children() - before
        for suffers in (worker.pid, os.getpid()):
            resource.prlimit(suffers, resource.RLIMIT_FSIZE, (4000, usual[1]))
            try:
                with pytest.raises(OSError, match="File too large"):
                    decoder.open(data)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, usual)
            assert decoder.open(data).pixels.shape == (64, 64)  # by another worker


def test_without_files_in_memory_images_go_by_temporary_ones(monkeypatch, tmp_path):
    """As on macOS, which has no memfd: the same pictures, nothing left."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(images, "_BOOT", "import os; del os.memfd_create;" + images._BOOT)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    data = dicom_bytes(ramp())
    with images.Decoder(CONFIG, 1) as decoder:
        decoder.open(data)
        before = psutil.Process().num_fds()
        assert np.array_equal(decoder.open(data).pixels, scaled(ramp()))
        assert psutil.Process().num_fds() == before
    assert list(tmp_path.iterdir()) == []


def test_refused_by_first_bytes_and_size(tmp_path):
    file, path, pipe = dicom_bytes(ramp()), tmp_path / "image.dcm", tmp_path / "pipe"
    path.write_bytes(file)
    os.mkfifo(pipe)
    assert images.open_image(str(path)).pixels.any()
    assert refusal(b"") == "empty"
    assert refusal(b"file,view\nimages/a.jpg,PA\n" * 20) == "unknown_format"
    assert refusal(file, max_bytes=len(file) - 1) == "too_many_bytes"
    require_image(file, len(file), max_bytes=len(file))
    for missing in (Path("/nowhere/image.dcm"), "/nowhere/image.dcm", Path("/dev/null"), pipe):
        assert refusal(missing) == "missing"  # at once: nobody may ever write to the pipe
    assert is_dicom(bytes(128) + b"DICM")
    for data in (bytes(127) + b"DICM", bytes(129) + b"DICM", b"DICM" + bytes(128), bytes(132), b""):
        assert not is_dicom(data)
