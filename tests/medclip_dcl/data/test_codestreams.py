"""Streams: sizes as the encoders wrote them; what a decoder made up is told from what is there."""

import struct
from itertools import product

import imagecodecs
import numpy as np
import pytest

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data import codestreams
from medclip_dcl.data.codestreams import Frame, read_jpeg, read_jpeg2000
from tests.support.dicom import BASELINE, dicom_bytes, ramp, raster_bytes, refusal

NOISE = np.random.default_rng(0).integers(0, 256, (160, 203), dtype=np.uint8)
END = b"\xff\xd9"


def test_a_size_of_too_few_bytes_or_another_is_refused() -> None:
    frame = Frame(800, 800, 1, 8, "dct")  # 10,000 blocks: 1,250 bytes
    codestreams.require_size(frame, 800, 800, 1250)
    for columns, size, reason in ((800, 1249, "truncated"), (801, 9999, "size_mismatch")):
        with pytest.raises(ImageError, match=reason):
            codestreams.require_size(frame, 800, columns, size)


def with_mid_grey(rows: int, columns: int = 203) -> np.ndarray:
    image = NOISE.copy()
    image[-rows:, -columns:] = 128
    return image


def require(stream: bytes) -> None:
    codestreams.require_whole(stream, np.asarray(imagecodecs.jpeg8_decode(stream)), 8)


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 40, 150, 160])
def test_mid_grey_that_was_written_is_no_fault(rows: int, optimize: bool) -> None:
    for quality, columns in product((5, 75, 100), (203, 30, 8)):
        image = with_mid_grey(rows, columns)
        require(raster_bytes(image, "jpeg", quality=quality, optimize=optimize))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("optimize", [False, True])
def test_stream_that_was_cut_and_closed_again_is_refused(share: float, optimize: bool) -> None:
    whole = raster_bytes(NOISE, "jpeg", quality=90, optimize=optimize)
    start = whole.index(b"\xff\xda") + 10
    cut = whole[: start + int(share * (len(whole) - start))] + END
    image = dicom_bytes(NOISE, syntax=BASELINE, frame=cut)
    assert {refusal(cut), refusal(image)} == {"truncated"}
    with pytest.raises(ImageError, match="truncated"):
        require(cut)


def test_no_cut_hides_behind_mid_grey_fill_bytes_or_an_interval_of_no_restarts():
    for image in (with_mid_grey(40), NOISE):
        whole = raster_bytes(image, "jpeg", quality=90)
        cut = whole[: len(whole) // 2] + END
        for extra in (b"", b"\xff", b"\xff\xdd\0\4\0\0"):
            require(whole[:2] + extra + whole[2:])
            with pytest.raises(ImageError, match="truncated"):
                require(cut[:2] + extra + cut[2:])
    assert read_jpeg(raster_bytes(NOISE, "jpeg", progressive=True)).rows == 160  # scans, no bomb


# Streams made by hand, byte by byte


# SOF0: length, precision, size, and three bytes for its component (T.81, B.2.2)
FRAME = b"\xff\xc0\x00\x0b\x08" + struct.pack(">HH", 31, 47) + b"\1\1\x11\0"
LOSSLESS = bytes(imagecodecs.ljpeg_encode(ramp(31, 47), bitspersample=12))
START, COMMENT, SCAN = b"\xff\xd8", b"\xff\xfe\x00\x05abc", b"\xff\xda\x00\x02"


@pytest.mark.parametrize(
    "before",
    [b"", COMMENT, b"\xff" * 60_000, b"\xff\x01", b"\xff\xd0\xff\xd7", COMMENT * 999, b"junk\0"],
)
def test_a_jpeg_frame_is_found_behind_other_segments(before: bytes) -> None:
    assert read_jpeg(START + before + FRAME) == Frame(31, 47, 1, 8, "dct")


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (START + COMMENT * 1000 + FRAME, "more than 1000 segments"),
        (START + SCAN + FRAME, "no JPEG frame header"),
        (START + END + FRAME, "no JPEG frame header"),
        (START + b"\xff" * 2**16 + FRAME, "no JPEG frame header"),
        (b"\xff\xd9" + FRAME, "does not start"),
        (b"", "does not start"),
        (START + FRAME[:9], "ends in its frame header"),
        (START + FRAME.replace(b"\x0b", b"\x0c"), "another length"),
        (START + FRAME + SCAN * 101, "more than 100 scans"),
        (LOSSLESS.replace(b"\xff\xc4", b"\xff\xe4"), "no Huffman codes"),
    ],
)
def test_a_jpeg_without_a_plain_frame_is_refused(stream: bytes, fault: str) -> None:
    with pytest.raises(ImageError, match=fault):
        read_jpeg(stream)


def image_size(right: int = 10, bottom: int = 7, left: int = 0, top: int = 0, tiles=(4, 4, 0, 0)):
    """SOC and SIZ: the image's edges, width, height and origin of tiles (T.800, A.5.1)."""
    numbers = b"".join(n.to_bytes(4, "big") for n in (right, bottom, left, top, *tiles))
    return b"\xff\x4f\xff\x51\0\x29\0\0" + numbers + b"\0\1\x8b\1\1"


def tile_part(number: int, length: int = 12) -> bytes:
    return b"\xff\x90\0\x0a" + number.to_bytes(2, "big") + length.to_bytes(4, "big") + b"\0\1"


def tile_parts(*numbers: int) -> bytes:
    return b"".join(map(tile_part, numbers))


def test_a_jpeg2000_image_is_what_its_edges_enclose() -> None:
    stream = image_size(right=50, bottom=40, left=3, top=9)
    assert read_jpeg2000(stream) == (Frame(31, 47, 1, 12, "j2k", signed=True), stream)
    assert read_jpeg2000(stream[:44])[0].rows == 31
    with pytest.raises(ImageError, match="size segment"):
        read_jpeg2000(stream[:43])
    for nothing in (b"", START, (START + END) * 9):
        with pytest.raises(ImageError):
            read_jpeg2000(nothing)


def test_every_tile_that_the_size_needs_must_be_there() -> None:
    six = image_size()  # ten by seven in tiles of four by four: three across, two down
    five = six + tile_parts(0, 1, 2, 3, 4)
    for whole in (
        five + tile_parts(5),
        five + tile_parts(5) + END,
        six + tile_parts(5, 0, 3, 1, 4, 2, 2) + END,
        five + tile_part(5, 0) + b"to the end",
        image_size(8, 8) + COMMENT + tile_parts(0, 1, 2, 3),
        image_size(tiles=(4, 4, 2, 0)) + tile_parts(0, 1, 2, 3),  # eight columns of tiles
    ):
        codestreams.require_tiles(whole)
    for stream, fault in (
        (five, "lacks tiles"),
        (five + tile_parts(5, 6), "lacks tiles"),
        (five + END + tile_parts(5), "lacks tiles"),
        (five + tile_part(5, 13), "is cut"),
        (five + tile_part(5, 11), "is cut"),
    ):
        with pytest.raises(ImageError, match=f"truncated.*{fault}"):
            codestreams.require_tiles(stream)


def box(kind: bytes, content: bytes = b"", form: str = "short") -> bytes:
    if form == "long":
        return b"\0\0\0\1" + kind + (16 + len(content)).to_bytes(8, "big") + content
    length = 0 if form == "to the end" else 8 + len(content)
    return length.to_bytes(4, "big") + kind + content


SIGNATURE = box(b"jP  ", b"\r\n\x87\n")


@pytest.mark.parametrize("form", ["short", "long", "to the end"])
def test_the_stream_of_a_jp2_file_is_found_behind_other_boxes(form: str) -> None:
    others = box(b"ftyp", b"jp2 ") + box(b"free", b"abc", "long") + box(b"free") * 60
    file = SIGNATURE + others + box(b"jp2c", image_size(), form)
    for more in (b"",) if form == "to the end" else (b"", box(b"free", b"abc")):
        assert read_jpeg2000(file + more)[1] == image_size()


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(box(b"free") * 63, id="many"),
        pytest.param(box(b"free", form="to the end"), id="the last"),
        pytest.param(b"\0\0\0\7free", id="too short"),
        pytest.param(b"\0\0\0\4", id="half a header"),
        pytest.param(b"\0\0\0\1free" + bytes(8), id="endless"),
        pytest.param(b"\0\0\0\xfffree", id="beyond"),
    ],
)
def test_a_jp2_file_whose_boxes_lead_astray_is_refused(others: bytes) -> None:
    with pytest.raises(ImageError, match="no code stream"):
        read_jpeg2000(SIGNATURE + others + box(b"jp2c", image_size()))
