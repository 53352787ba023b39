"""Pixel elements: native, compressed, cut short, or at odds with their header."""

import struct

import imagecodecs
import numpy as np
import pytest

from medclip_dcl.data.images import open_image
from testing.dicom import J2K, JPEG_LS, RLE, SV1, dicom_bytes, ramp, raster_bytes, refusal, scaled

BASELINE = "1.2.840.10008.1.2.4.50"


def test_pixels_of_unknown_representation_are_words() -> None:
    file = dicom_bytes(ramp())
    at = file.index(b"\xe0\x7f\x10\x00OW") + 4
    assert np.array_equal(open_image(file[:at] + b"UN" + file[at + 2 :]).pixels, scaled(ramp()))


@pytest.mark.parametrize(
    ("syntax", "encode"),
    [
        (SV1, lambda image: imagecodecs.ljpeg_encode(image, bitspersample=12)),
        (JPEG_LS, imagecodecs.jpegls_encode),
        (J2K, lambda image: imagecodecs.jpeg2k_encode(image, codecformat="j2k", level=0)),
        (J2K, lambda image: imagecodecs.jpeg2k_encode(image, codecformat="jp2", level=0)),
    ],
    ids=["lossless", "jpeg_ls", "j2k", "j2k_in_jp2"],
)
def test_lossless_streams_give_the_native_picture(syntax: str, encode: object) -> None:
    image = ramp()
    file = dicom_bytes(image, syntax=syntax, frame=bytes(encode(image)))  # type: ignore[operator]
    assert np.array_equal(open_image(file).pixels, scaled(image))


def test_pixels_that_disagree_with_the_header_are_refused() -> None:
    image = ramp()
    assert refusal(dicom_bytes(image, Rows=20)) == "size_mismatch"
    stream = imagecodecs.jpegls_encode(image)
    assert refusal(dicom_bytes(image, syntax=JPEG_LS, frame=stream, Rows=41)) == "size_mismatch"
    assert refusal(dicom_bytes(image, syntax=JPEG_LS, frame=stream[:-400])) == "truncated"
    assert refusal(dicom_bytes(image, syntax=BASELINE, frame=stream)) == "corrupt"


def test_stream_too_short_for_its_claim_is_refused() -> None:
    small = bytearray(raster_bytes(np.zeros((16, 16), dtype=np.uint8), "jpeg"))
    at = small.index(b"\xff\xc0") + 5
    small[at : at + 4] = struct.pack(">HH", 6000, 6000)
    assert refusal(bytes(small)) == "truncated"
    claim = np.zeros((6000, 6000), dtype=np.uint8)
    file = dicom_bytes(claim, bits_stored=8, syntax=BASELINE, frame=bytes(small))
    assert refusal(file) == "truncated"


def test_rle_that_unpacks_to_too_much_is_refused() -> None:
    image = ramp()
    run = b"\x81\x00" * 100_000  # each pair is 128 zeros
    header = struct.pack("<16I", 2, 64, 64 + len(run), *[0] * 13)
    assert refusal(dicom_bytes(image, syntax=RLE, frame=header + run + run)) in {
        "size_mismatch",
        "corrupt",
    }


@pytest.mark.parametrize("starts", [(64, 2**31), (64, 76), (64, 64), (70, 64), (63, 70)])
def test_rle_segments_that_are_not_in_the_frame_are_refused_before_they_are_read(
    starts: tuple[int, int],
) -> None:
    header = struct.pack("<16I", 2, *starts, *[0] * 13)
    for frame in (header + bytes(12), header[:12]):
        assert refusal(dicom_bytes(ramp(), syntax=RLE, frame=frame)) == "corrupt"


def test_box_of_length_zero_ends_and_does_not_hang() -> None:
    image = ramp()
    stream = bytes(imagecodecs.jpeg2k_encode(image, codecformat="jp2", level=0))
    at = stream.index(b"jp2c") - 4
    endless = stream[:at] + b"\0\0\0\0" + stream[at + 4 :]
    file = dicom_bytes(image, syntax=J2K, frame=endless)
    assert np.array_equal(open_image(file).pixels, scaled(image))
    astray = stream[:12] + b"\0\0\0\0free" + stream[12:]
    assert refusal(dicom_bytes(image, syntax=J2K, frame=astray)) == "corrupt"
