"""Streams: sizes as the encoders wrote them; what a decoder made up is told from what is there."""

import imagecodecs
import numpy as np
import pytest

from benchmarks.fixtures.dicom import dicom_bytes, ramp, raster_bytes
from medclip_dcl.data.codestreams import (
    Frame,
    read_jpeg,
    read_jpeg2000,
    require_size,
    require_tiles,
    require_whole,
)
from medclip_dcl.data.images import open_image
from medclip_dcl.errors import ImageError

IMAGE = ramp(31, 47)
BYTES = ramp(31, 47, 255).astype(np.uint8)
NOISE = np.random.default_rng(0).integers(0, 256, (160, 203), dtype=np.uint8)
END = b"\xff\xd9"


@pytest.mark.parametrize(
    ("stream", "process", "precision"),
    [
        (raster_bytes(BYTES, "jpeg"), "dct", 8),
        (raster_bytes(BYTES, "jpeg", progressive=True, comment=b"x" * 300), "dct", 8),
        (bytes(imagecodecs.ljpeg_encode(IMAGE, bitspersample=12)), "lossless", 12),
        (bytes(imagecodecs.jpegls_encode(IMAGE)), "ls", 16),
    ],
    ids=["baseline", "progressive", "lossless", "jpeg_ls"],
)
def test_jpeg_header_is_read(stream: bytes, process: str, precision: int) -> None:
    frame = read_jpeg(stream)
    assert (frame.rows, frame.columns, frame.components) == (31, 47, 1)
    assert (frame.process, frame.precision) == (process, precision)


@pytest.mark.parametrize("form", ["j2k", "jp2"])
def test_jpeg2000_header_is_read_boxed_or_bare(form: str) -> None:
    frame, stream = read_jpeg2000(
        bytes(imagecodecs.jpeg2k_encode(IMAGE, codecformat=form, level=0))
    )
    assert frame == Frame(31, 47, 1, 16, "j2k")
    assert stream[:2] == b"\xff\x4f"


@pytest.mark.parametrize("stream", [b"", b"\xff\xd8", b"\xff\xd8\xff\xd9" * 9, b"\xff\xd8" * 900])
def test_stream_without_header_is_refused(stream: bytes) -> None:
    with pytest.raises(ImageError):
        read_jpeg(stream)
    with pytest.raises(ImageError):
        read_jpeg2000(stream)


def test_one_bit_per_block_is_the_least() -> None:
    frame = Frame(800, 800, 1, 8, "dct")  # 10,000 blocks: 1,250 bytes
    require_size(frame, 800, 800, 1250)
    with pytest.raises(ImageError, match="truncated"):
        require_size(frame, 800, 800, 1249)
    with pytest.raises(ImageError, match="size_mismatch"):
        require_size(frame, 800, 801, 9999)


def test_headers_on_which_a_decoder_would_read_astray_are_refused() -> None:
    stream = bytes(imagecodecs.ljpeg_encode(IMAGE, bitspersample=12))
    with pytest.raises(ImageError, match="Huffman"):
        read_jpeg(stream.replace(b"\xff\xc4", b"\xff\xe4"))
    at = stream.index(b"\xff\xc3") + 2
    longer = stream[:at] + (0x200B).to_bytes(2, "big") + stream[at + 2 :]
    with pytest.raises(ImageError, match="length"):
        read_jpeg(longer)


def test_images_of_many_tiles_and_scans_are_no_bombs() -> None:
    image = ramp(64, 64)
    stream = bytearray(imagecodecs.jpeg2k_encode(image, codecformat="j2k", level=0))
    at = stream.index(b"\xff\x90")
    left, right = bytes(stream[at:-2]), bytearray(stream[at:-2])
    right[5] = 1  # the second tile
    stream[8:12] = (128).to_bytes(4, "big")  # two tiles of 64 columns side by side
    two = bytes(stream[:at]) + left + bytes(right) + b"\xff\xd9"
    require_tiles(two)
    pixels = imagecodecs.jpeg2k_decode(two)
    assert np.array_equal(pixels, np.hstack([image, image]))
    with pytest.raises(ImageError, match="truncated"):
        require_tiles(bytes(stream[:at]) + left + b"\xff\xd9")
    grey = ramp(60, 60, 255).astype(np.uint8)
    assert read_jpeg(raster_bytes(grey, "jpeg", progressive=True)).rows == 60


def with_mid_grey(rows: int, columns: int = 203) -> np.ndarray:
    image = NOISE.copy()
    image[-rows:, -columns:] = 128
    return image


def decoded(stream: bytes) -> np.ndarray:
    return np.asarray(imagecodecs.jpeg8_decode(stream))


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 40, 150, 160])
def test_mid_grey_that_was_written_is_no_fault(rows: int, optimize: bool) -> None:
    for quality in (5, 75, 100):
        for columns in (203, 30, 8):
            image = with_mid_grey(rows, columns)
            stream = raster_bytes(image, "jpeg", quality=quality, optimize=optimize)
            require_whole(stream, decoded(stream), 8)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("optimize", [False, True])
def test_stream_that_was_cut_and_closed_again_is_refused(share: float, optimize: bool) -> None:
    whole = raster_bytes(NOISE, "jpeg", quality=90, optimize=optimize)
    start = whole.index(b"\xff\xda") + 10
    cut = whole[: start + int(share * (len(whole) - start))] + END
    with pytest.raises(ImageError, match="truncated"):
        require_whole(cut, decoded(cut), 8)
    image = dicom_bytes(NOISE, bits_stored=8, syntax="1.2.840.10008.1.2.4.50", frame=cut)
    for source in (cut, image):
        with pytest.raises(ImageError, match="truncated"):
            open_image(source)


def test_cut_before_the_mid_grey_that_was_written_is_refused() -> None:
    whole = raster_bytes(with_mid_grey(40), "jpeg", quality=90)
    cut = whole[: len(whole) // 2] + END
    with pytest.raises(ImageError, match="truncated"):
        require_whole(cut, decoded(cut), 8)


def test_twelve_bits_have_another_mid_grey() -> None:
    image = NOISE.astype(np.uint16) * 16
    whole = bytes(imagecodecs.jpeg8_encode(image, bitspersample=12))
    require_whole(whole, decoded(whole), 12)
    cut = whole[: len(whole) // 2] + END
    with pytest.raises(ImageError, match="truncated"):
        require_whole(cut, decoded(cut), 12)


def test_streams_that_are_not_examined_pass() -> None:
    for options in ({"progressive": True}, {"restart_marker_blocks": 4}):
        stream = raster_bytes(with_mid_grey(40), "jpeg", **options)
        require_whole(stream, decoded(stream), 8)
