"""Stream headers: sizes as the encoders wrote them."""

import imagecodecs
import numpy as np
import pytest

from benchmarks.fixtures.dicom import ramp, raster_bytes
from medclip_dcl.data.codestreams import Frame, read_jpeg, read_jpeg2000, require_size
from medclip_dcl.errors import ImageError

IMAGE = ramp(31, 47)
BYTES = ramp(31, 47, 255).astype(np.uint8)


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
