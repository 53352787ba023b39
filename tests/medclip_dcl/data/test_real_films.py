"""Real DICOM files: every row of the test data's manifest behaves as it expects."""

import csv
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from medclip_dcl.data.images import REASONS, open_image
from medclip_dcl.errors import ImageError

pytestmark = pytest.mark.real_data


def rows(test_data: Path) -> list[dict[str, str]]:
    with (test_data / "dicom/manifest.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_file_is_read_or_refused_as_expected(test_data: Path) -> None:
    astray, refused = [], []
    found = rows(test_data)
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


def test_all_encodings_of_one_image_give_one_picture(test_data: Path) -> None:
    files = sorted((test_data / "dicom/files").glob("eq_*.dcm"))
    assert len(files) >= 9
    first, *others = (open_image(path).pixels for path in files)
    assert all(np.array_equal(first, other) for other in others)


def test_padding_of_a_real_image_leaves_the_rest_unchanged(test_data: Path) -> None:
    folder = test_data / "dicom/files"
    inner = open_image(folder / "pixel_padding.dcm").pixels[30:-30, 30:-30]
    assert np.array_equal(inner, open_image(folder / "eq_explicit_le.dcm").pixels)


def test_wrong_photometric_tag_gives_the_negative(test_data: Path) -> None:
    folder = test_data / "dicom/files"
    image = open_image(folder / "cxr_pa_jpeg_baseline.dcm").pixels.astype(int)
    negative = open_image(folder / "cxr_pa_jpeg_baseline_mono1_tag.dcm").pixels.astype(int)
    assert np.abs(image + negative - 65535).max() <= 1
