"""Files of a source as the check sees them."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.fixtures.dicom import dicom_bytes, ramp, raster_bytes
from medclip_dcl.data.data_check import (
    count_encodings,
    encoding_of,
    look_at_header,
    look_at_image,
    pixels_key,
)
from medclip_dcl.data.images import Decoder, ImagesConfig, limits_of
from medclip_dcl.data.sources.records import LONGEST_REPORT, ImageRecord

TEXT = "Größe"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"clear", "ASCII"),
        (TEXT.encode(), "UTF-8"),
        (TEXT.encode("utf-8-sig"), "UTF-8 with BOM"),
        (TEXT.encode("utf-16"), "UTF-16"),
        (TEXT.encode("utf-16-be"), "with NUL"),
        (TEXT.encode("latin-1"), "not UTF-8"),
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "pointer file"),
    ],
)
def test_encodings_are_told_apart(data: bytes, name: str) -> None:
    assert encoding_of(data) == name


def test_report_files_are_counted_and_missing_ones_left_out(tmp_path: Path) -> None:
    for name, text in (("a", b"one"), ("b", b"two"), ("c", TEXT.encode())):
        (tmp_path / name).write_bytes(text)
    (tmp_path / "long").write_bytes(b"x" * (LONGEST_REPORT + 1))
    looked: list[int] = []
    counts = count_encodings(tmp_path, ["a", "b", "c", "d", "../e", "long"], looked.append)
    assert counts == {"ASCII": 2, "UTF-8": 1, "too long": 1}
    assert sum(looked) == 6


def test_the_same_picture_has_one_key_however_it_is_stored(tmp_path: Path) -> None:
    pixels = ramp(40, 50)
    files = {
        "plain": dicom_bytes(pixels),
        "inverse": dicom_bytes(pixels.max() - pixels, PhotometricInterpretation="MONOCHROME1"),
        "other": dicom_bytes(np.ascontiguousarray(pixels[:, ::-1])),
        "flat": dicom_bytes(np.full_like(pixels, 7)),
        "cut": dicom_bytes(pixels)[:-100],
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with Decoder(ImagesConfig(), 1) as decoder:
        rows = {
            name: look_at_image(ImageRecord(name, "s", "p", "PA", name), tmp_path, decoder)
            for name in files
        }
    assert rows["plain"]["pixels_key"] == rows["inverse"]["pixels_key"] != ""
    assert rows["other"]["pixels_key"] not in {"", rows["plain"]["pixels_key"]}
    assert [rows[name]["inverted"] for name in files] == [False, True, False, False, False]
    assert (rows["plain"]["height_px"], rows["plain"]["width_px"]) == (40, 50)
    assert (rows["flat"]["code"], rows["flat"]["pixels_key"]) == ("constant", "")
    assert (rows["cut"]["code"], rows["cut"]["source"], rows["cut"]["bits_stored"]) == (
        "truncated",
        "",
        None,
    )


def test_the_key_depends_on_the_shape() -> None:
    pixels = np.arange(12, dtype=np.uint16)
    assert pixels_key(pixels.reshape(3, 4)) != pixels_key(pixels.reshape(4, 3))


def test_first_bytes_tell_what_the_gate_tells(tmp_path: Path) -> None:
    pixels = ramp(40, 50)
    files = {
        "dicom": dicom_bytes(pixels, photometric="MONOCHROME1"),
        "png": raster_bytes(pixels, "png"),
        "jpeg": raster_bytes((pixels >> 4).astype(np.uint8), "jpeg"),
    }
    same = ("source", "bits_stored", "inverted", "height_px", "width_px", "code")
    with Decoder(ImagesConfig(), 1) as decoder:
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
            image = ImageRecord(name, "s", "p", "PA", name)
            header = look_at_header(image, tmp_path, limits_of(ImagesConfig()))
            opened = look_at_image(image, tmp_path, decoder)
            assert {key: header[key] for key in same} == {key: opened[key] for key in same}
            assert (header["opened"], header["pixels_key"]) == (False, "")
            assert header.keys() == opened.keys()


def test_first_bytes_refuse_what_needs_no_decoder(tmp_path: Path) -> None:
    pixels = ramp(40, 50)
    files = {
        "burned_in": dicom_bytes(pixels, BurnedInAnnotation="YES"),
        "unknown_format": b"<html>",
        "empty": b"",
        "too_many_pixels": dicom_bytes(ramp(60, 50)),
        "": dicom_bytes(pixels)[:200],  # what its header leaves open, the gate decides
    }
    limits = limits_of(ImagesConfig(max_megapixels=0.0025))
    for code, data in files.items():
        (tmp_path / "image").write_bytes(data)
        row = look_at_header(ImageRecord("image", "s", "p", "PA", "image"), tmp_path, limits)
        assert (row["code"], row["source"]) == (code, "")
