"""Blocks that a decoder made up are told from those that a stream holds."""

import imagecodecs
import numpy as np
import pytest

from benchmarks.fixtures.dicom import dicom_bytes, raster_bytes
from medclip_dcl.data.codestreams import require_whole
from medclip_dcl.data.images import open_image
from medclip_dcl.errors import ImageError

NOISE = np.random.default_rng(0).integers(0, 256, (160, 203), dtype=np.uint8)
END = b"\xff\xd9"


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
