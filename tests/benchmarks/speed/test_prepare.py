"""The rival is a plain loop, and the two are compared on the same pictures."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed import prepare
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from testing.dicom import dicom_bytes, ramp, raster_bytes


def test_rival_scales_by_minimum_and_maximum() -> None:
    image = np.linspace(100, 300, 512 * 512, dtype=np.float32).reshape(512, 512)
    square = prepare.rival_square(image)
    assert (square.min(), square.max()) == (0, 255)
    assert square[256, 0] == pytest.approx(127.5, abs=0.3)


def test_differences_are_levels_between_the_same_images(tmp_path: Path) -> None:
    dicom, jpeg = tmp_path / "image.dicom", tmp_path / "image.jpeg"
    dicom.write_bytes(dicom_bytes(ramp(600, 700)))
    jpeg.write_bytes(raster_bytes(ramp(600, 700, 255).astype(np.uint8), "jpeg", quality=95))
    with Decoder(ImagesConfig(), 1) as decoder:
        for path, baseline in ((dicom, prepare.rival_dicom), (jpeg, prepare.rival_jpeg)):
            found = prepare.differences(decoder, baseline, [path])
            assert 0 < found["mean_difference"] < 0.5
            assert found["max_difference"] < 2
        found = prepare.differences(decoder, lambda path: 255 - prepare.rival_dicom(path), [dicom])
        assert found["max_difference"] > 250
