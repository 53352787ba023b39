"""The gate: what goes in comes out the same way up, and what cannot is refused by name."""

import csv
import io
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import imagecodecs
import numpy as np
import psutil
import pytest
from PIL import Image

from medclip_dcl.data.images import open_image
from medclip_dcl.data.limits import REASONS
from medclip_dcl.errors import ImageError
from testing.dicom import J2K, JPEG_LS, dicom_bytes, ramp, raster_bytes, refusal, scaled


@pytest.mark.parametrize("form", ["L", "I;16"])
def test_png_keeps_its_bits(form: str) -> None:
    stored = ramp(top=255).astype(np.uint8) if form == "L" else ramp(top=60000)
    image = open_image(raster_bytes(stored, "png"))
    assert np.array_equal(image.pixels, scaled(stored))
    assert image.bits_stored == (8 if form == "L" else 16)


def test_colours_of_a_png_become_luma() -> None:
    colours = np.zeros((1, 3, 3), dtype=np.uint8)
    colours[0, 0], colours[0, 1], colours[0, 2] = (0, 0, 0), (0, 255, 0), (255, 255, 255)
    image = open_image(raster_bytes(colours, "png"))
    assert image.pixels[0, 1] == round(150 / 255 * 65535)  # 0.587 x 255, BT.601


def test_jpeg_is_turned_as_its_tag_says() -> None:
    stored = np.zeros((16, 32), dtype=np.uint8)
    stored[:, 16:] = 255
    turned = Image.Exif()
    turned[274] = 3  # upside down
    image = open_image(raster_bytes(stored, "jpeg", quality=95, exif=turned))
    assert image.pixels[:, :12].min() > 60000 > 5000 > image.pixels[:, 20:].max()


def test_truncated_file_is_refused_wherever_it_is_cut() -> None:
    file = dicom_bytes(ramp())
    for end in (131, 200, 400, len(file) - 2000, len(file) - 2):
        assert refusal(file[:end]) in {"unknown_format", "truncated", "bad_tags", "no_pixel_data"}
    raster = raster_bytes(ramp(200, 200, 255).astype(np.uint8), "jpeg")
    assert refusal(raster[: len(raster) // 2]) in {"corrupt", "truncated"}


ITEM, ITEM_END = b"\xfe\xff\x00\xe0\0\0\0\0", b"\xfe\xff\xdd\xe0\0\0\0\0"


def test_a_png_of_many_chunks_is_refused() -> None:
    png = raster_bytes(ramp().astype(np.uint16), "png")
    chunk = b"\0\0\0\0meDi" + struct.pack(">I", zlib.crc32(b"meDi"))
    assert open_image(png[:33] + 100 * chunk + png[33:]).pixels.shape == ramp().shape
    assert refusal(png[:33] + 70_000 * chunk + png[33:]) == "corrupt"


def test_gate_and_worker_load_no_deep_learning() -> None:
    code = (
        "import sys; import medclip_dcl.data.images, medclip_dcl.data.decode_worker;"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_random_bytes_give_a_picture_or_a_reason() -> None:
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
            image = open_image(bytes(file))
            assert image.pixels.ndim == 2
        except ImageError as error:
            codes.append(error.code)
    assert 0 < len(codes) < 200
    assert set(codes) <= set(REASONS)
    assert np.array_equal(open_image(io.BytesIO(sound[0]).getvalue()).pixels, scaled(stored))


# Real DICOM files: every row of the test data's manifest behaves as it expects


def listed(test_data: Path) -> list[dict[str, str]]:
    with (test_data / "dicom/manifest.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.real_data
def test_every_file_is_read_or_refused_as_expected(test_data: Path) -> None:
    astray, refused = [], []
    found = listed(test_data)
    assert len(found) >= 56
    caller = psutil.Process()
    before = caller.memory_info().rss
    for row in found:
        start = time.monotonic()
        try:
            image = open_image(test_data / "dicom" / row["file"])
            outcome = "decode"
            shape = f"{image.pixels.shape[0]}x{image.pixels.shape[1]}"
            assert image.constant or (image.pixels.min() == 0 and image.pixels.max() == 65535)
            assert row["dec_shape"] in {shape, ""}
            assert "PHISENT" not in repr(image)
        except ImageError as error:
            outcome = "error"
            refused.append(error)
        assert time.monotonic() - start < 10
        assert caller.memory_info().rss - before < 256 * 2**20
        if row["expect"] not in {outcome, "decode_or_error"}:
            astray.append((row["file"], row["expect"], outcome))
    assert astray == []
    assert {error.code for error in refused} <= set(REASONS)
    assert not any("PHI" in str(error) for error in refused)


@pytest.mark.real_data
def test_all_encodings_of_one_image_give_one_picture(test_data: Path) -> None:
    files = sorted((test_data / "dicom/files").glob("eq_*.dcm"))
    assert len(files) >= 9
    first, *others = (open_image(path).pixels for path in files)
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.real_data
def test_padding_of_a_real_image_leaves_the_rest_unchanged(test_data: Path) -> None:
    folder = test_data / "dicom/files"
    inner = open_image(folder / "pixel_padding.dcm").pixels[30:-30, 30:-30]
    assert np.array_equal(inner, open_image(folder / "eq_explicit_le.dcm").pixels)


@pytest.mark.real_data
def test_wrong_photometric_tag_gives_the_negative(test_data: Path) -> None:
    folder = test_data / "dicom/files"
    image = open_image(folder / "cxr_pa_jpeg_baseline.dcm").pixels.astype(int)
    negative = open_image(folder / "cxr_pa_jpeg_baseline_mono1_tag.dcm").pixels.astype(int)
    assert np.abs(image + negative - 65535).max() <= 1
