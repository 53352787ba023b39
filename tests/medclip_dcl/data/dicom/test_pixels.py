"""Pixel elements: native, compressed, cut short, or at odds with their header."""

import struct

import imagecodecs
import numpy as np
import pytest

from medclip_dcl.data.images import open_image
from tests.support.dicom import (
    BASELINE,
    BIG_ENDIAN,
    J2K,
    JPEG_LS,
    RLE,
    SV1,
    dicom_bytes,
    ramp,
    refusal,
    scaled,
)

IMPLICIT, EXPLICIT = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1"


def test_pixels_that_disagree_with_the_header_are_refused():
    image, stream = ramp(), imagecodecs.jpegls_encode(ramp())
    for tags, reason in (
        ({"Rows": 20}, "size_mismatch"),
        ({"padding": image.tobytes()}, "size_mismatch"),
        ({"padding": 2 * image[::-1].tobytes()}, "size_mismatch"),
        ({"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7}, "size_mismatch"),
        ({"syntax": JPEG_LS, "frame": stream, "Rows": 41}, "size_mismatch"),
        ({"syntax": JPEG_LS, "frame": stream[:-400]}, "truncated"),
        ({"syntax": BASELINE, "frame": stream}, "corrupt"),
    ):
        assert refusal(dicom_bytes(image, **tags)) == reason, tags.keys()
    file = dicom_bytes(image)
    at = file.index(b"\xe0\x7f\x10\x00OW") + 4
    assert np.array_equal(open_image(file[:at] + b"UN" + file[at + 2 :]).pixels, scaled(image))


@pytest.mark.parametrize("syntax", [IMPLICIT, BIG_ENDIAN, EXPLICIT])
@pytest.mark.parametrize(("kind", "top"), [(np.uint8, 255), (np.uint16, 4095)])
@pytest.mark.parametrize(
    "padding", [b"\0\0", b"\xff" * 4, bytes(range(256)) * 3, bytes(100_000)], ids=len
)
def test_padding_behind_native_pixels_is_cut_off(syntax, kind, top, padding) -> None:
    """DICOM PS3.5, 8.1.1; four tests of pydicom's `test_decoders_base.py` ask the same."""
    image = ramp(31, 47, top).astype(kind)
    file = dicom_bytes(image, syntax=syntax, padding=b"\0" * (image.nbytes % 2) + padding)
    if kind == np.uint8 and syntax == BIG_ENDIAN:
        file = file.replace(b"OW", b"OB")
    assert np.array_equal(open_image(file).pixels, scaled(image))


SIGNED = np.linspace(-2048, 2047, 40 * 50).round().astype(np.int16).reshape(40, 50)
SAME_BITS = (SIGNED & 4095).astype(np.uint16)
WIDE = ramp(top=60_000)


def jpeg2000(samples: np.ndarray, precision: int = 16, form: str = "j2k") -> bytes:
    """A lossless stream whose samples have so many bits."""
    options = {"codecformat": form, "level": 0, "bitspersample": precision}
    return bytes(imagecodecs.jpeg2k_encode(samples, **options))


def bits_of(image: np.ndarray) -> int:
    return int(image.max()).bit_length()


@pytest.mark.parametrize(
    ("samples", "precision", "sign", "stored", "expected"),
    [
        (SIGNED, 12, 0, 12, SIGNED),
        (SIGNED, 16, 0, 12, SIGNED),
        (SIGNED, 12, 0, 16, SIGNED),
        (SIGNED, 16, 1, 12, SIGNED),
        (SAME_BITS, 12, 1, 12, SIGNED),
        (SAME_BITS, 16, 1, 12, SIGNED),
        (SAME_BITS, 12, 1, 16, SIGNED),
        # more bits than the header names
        (WIDE, 16, 0, 12, WIDE),
        (ramp(), 12, 0, 10, ramp()),
        (2 * SIGNED, 16, 0, 12, SIGNED),
        (2 * SIGNED, 16, 1, 12, SIGNED),
        (ramp().astype(np.int16), 16, 0, 12, ramp()),
    ],
)
def test_where_header_and_stream_disagree_the_streams_sign_and_bits_count(
    samples, precision, sign, stored, expected
):
    tags = {"PixelRepresentation": sign, "BitsStored": stored, "HighBit": stored - 1}
    file = dicom_bytes(ramp(), syntax=J2K, frame=jpeg2000(samples, precision), **tags)
    assert np.abs(open_image(file).pixels.astype(int) - scaled(expected)).max() <= 1


@pytest.mark.parametrize(
    ("syntax", "encode"),
    [
        (SV1, lambda image: imagecodecs.ljpeg_encode(image, bitspersample=bits_of(image))),
        (JPEG_LS, imagecodecs.jpegls_encode),
        (J2K, lambda image: jpeg2000(image, bits_of(image))),
        (J2K, lambda image: jpeg2000(image, bits_of(image), "jp2")),
    ],
)
def test_lossless_streams_give_the_native_picture_whatever_is_allocated(syntax, encode) -> None:
    small = np.zeros(WIDE.shape, np.uint8)
    for image, header in ((ramp(), ramp()), (WIDE, small)):
        file = dicom_bytes(header, syntax=syntax, frame=bytes(encode(image)))
        assert np.array_equal(open_image(file).pixels, scaled(image))


@pytest.mark.parametrize("padding", [b"\0", b"\0" * 9, b"\x80" * 4, b"\x81\7" * 3])
def test_padding_of_rle_segments_is_cut_off(padding: bytes) -> None:
    """pydicom's `test_decoders_pydicom.py` reads segments that unpack to more than a plane."""
    bytes_of = ((ramp() >> shift).astype(np.uint8).ravel() for shift in (8, 0))
    high, low = (bytes(imagecodecs.packbits_encode(plane)) + padding for plane in bytes_of)
    header = struct.pack("<16I", 2, 64, 64 + len(high), *[0] * 13)
    file = dicom_bytes(ramp(), syntax=RLE, frame=header + high + low)
    assert np.array_equal(open_image(file).pixels, scaled(ramp()))


@pytest.mark.parametrize("starts", [(64, 2**31), (64, 76), (64, 64), (70, 64), (63, 70)])
def test_rle_segments_that_are_not_in_the_frame_are_refused_before_they_are_read(starts):
    header = struct.pack("<16I", 2, *starts, *[0] * 13)
    for frame in (header + bytes(12), header[:12]):
        assert refusal(dicom_bytes(ramp(), syntax=RLE, frame=frame)) == "corrupt"
