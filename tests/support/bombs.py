"""Files made to exhaust a reader: small, and far larger, deeper or longer once believed."""

import struct
import zlib
from collections.abc import Callable
from functools import cache, partial

import imagecodecs
import numpy as np

from tests.support.dicom import dicom_bytes, ramp, raster_bytes

RLE, BASELINE, LOSSLESS, JPEG_LS, J2K, DEFLATED = (
    f"1.2.840.10008.1.2.{tail}" for tail in ("5", "4.50", "4.70", "4.80", "4.90", "1.99")
)
_MODALITY = b"\x08\x00\x60\x00CS"
_ITEM_OPEN = b"\xfe\xff\x00\xe0\xff\xff\xff\xff"
_HUGE = np.broadcast_to(np.uint8(0), (13_300, 13_300))
_LARGE = np.broadcast_to(np.uint16(0), (6_300, 6_300))


class Bomb:
    """A hostile file: how it is made, and the reasons that may be given for refusing it."""

    def __init__(self, make: Callable[[], bytes], *reasons: str) -> None:
        self.make, self.reasons = make, frozenset(reasons)


def empty_image(rows: int, columns: int, **tags: object) -> bytes:
    """A DICOM file that declares a size and holds hardly a pixel."""
    return dicom_bytes(ramp(4, 4), **{"Rows": rows, "Columns": columns, **tags})


def compressed(claim: np.ndarray, syntax: str, frame: bytes) -> bytes:
    """A DICOM file that declares `claim`'s size around a compressed frame."""
    tags = {"Rows": claim.shape[0], "Columns": claim.shape[1]}
    return dicom_bytes(ramp(4, 4).astype(claim.dtype), syntax=syntax, frame=frame, **tags)


def stream_claim(stream: bytes, marker: bytes, rows: int, columns: int) -> bytes:
    """A stream of any kind of JPEG whose frame header claims another size."""
    at = stream.index(marker) + 5
    return stream[:at] + struct.pack(">HH", rows, columns) + stream[at + 4 :]


def jpeg_claim(rows: int, columns: int, padding: int = 0) -> bytes:
    """A JPEG stream of 16 x 16 pixels whose header claims more."""
    sound = raster_bytes(np.zeros((16, 16), dtype=np.uint8), "jpeg")
    stream = stream_claim(sound, b"\xff\xc0", rows, columns)
    return stream[:-2] + b"\0" * padding + stream[-2:]


def ljpeg_claim() -> bytes:
    stream = bytes(imagecodecs.ljpeg_encode(ramp(), bitspersample=12))
    return stream_claim(stream, b"\xff\xc3", *_LARGE.shape)


def jpeg_ls_claim() -> bytes:
    return stream_claim(bytes(imagecodecs.jpegls_encode(ramp())), b"\xff\xf7", *_LARGE.shape)


def j2k_claim(rows: int, columns: int, tile: int = 0) -> bytes:
    """A JPEG 2000 stream of 40 x 50 pixels that claims more, in tiles of that size."""
    stream = bytearray(imagecodecs.jpeg2k_encode(ramp(), codecformat="j2k", level=0))
    stream[8:16] = struct.pack(">II", columns, rows)
    if tile:
        stream[24:32] = struct.pack(">II", tile, tile)
    return bytes(stream)


def j2k_box_loop() -> bytes:
    """A JP2 box of length 0 before the code stream: it reaches to the end, and repeats for ever."""
    stream = bytes(imagecodecs.jpeg2k_encode(ramp(), codecformat="jp2", level=0))
    return stream[:12] + b"\0\0\0\0free" + stream[12:]


def rle_frame(rows: int, columns: int) -> bytes:
    """An RLE frame of two segments, each pair of bytes 128 zeros."""
    run = b"\x81\x00" * min(rows * columns // 128, 200_000)
    return struct.pack("<16I", 2, 64, 64 + len(run), *[0] * 13) + run + run


def deflate_bomb() -> bytes:
    """A deflated data set of a gigabyte of zeros: a thousandth of its inflated size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    sound = dicom_bytes(ramp(), syntax=DEFLATED)
    start = 132 + 12 + int.from_bytes(sound[140:144], "little")  # after the file meta group
    return sound[:start] + block * 1024


def scan_bomb() -> bytes:
    """A progressive JPEG file that goes over 36 megapixels again and again."""
    stream = raster_bytes(np.zeros((6000, 6000), dtype=np.uint8), "jpeg", progressive=True)
    at = stream.rindex(b"\xff\xda")
    return stream[:at] + stream[at:-2] * 5000 + stream[-2:]


def filled_jpeg(marker: bytes, fill: bytes = b"\xff") -> bytes:
    """A small JPEG file with 60 MB of fill bytes, as the standard allows, before a marker."""
    stream = raster_bytes(ramp(64, 64, 255).astype(np.uint8), "jpeg")
    at = stream.index(marker)
    return stream[:at] + fill * (60_000_000 // len(fill)) + stream[at:]


def png_claim(rows: int, columns: int) -> bytes:
    """A PNG file of 4 x 4 pixels whose header, checksum included, claims more."""
    stream = raster_bytes(ramp(4, 4, 255).astype(np.uint8), "png")
    header = b"IHDR" + struct.pack(">II", columns, rows) + stream[24:29]
    return stream[:12] + header + struct.pack(">I", zlib.crc32(header)) + stream[33:]


def before_modality(data: bytes) -> bytes:
    """A sound image with elements put before its Modality."""
    sound = dicom_bytes(ramp())
    at = sound.index(_MODALITY)
    return sound[:at] + data + sound[at:]


def nested(levels: int, length: bytes = b"\xff\xff\xff\xff") -> bytes:
    start = b"\x08\x00\x40\x11SQ\0\0" + length + b"\xfe\xff\x00\xe0" + length
    return before_modality(start * levels)


@cache
def zeros() -> bytes:
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(bytes(2**20)) for _ in range(200)) + packer.flush()


BOMBS: dict[str, Bomb] = {
    "native_65535": Bomb(lambda: empty_image(65535, 65535), "too_many_pixels"),
    "million_frames": Bomb(lambda: empty_image(4, 4, NumberOfFrames="1000000"), "not_single_frame"),
    "long_rows": Bomb(lambda: empty_image(4, 4, Rows=("UL", 2**32 - 1)), "too_many_pixels"),
    "native_40_mp": Bomb(lambda: empty_image(6300, 6300), "truncated"),
    "rle_65535": Bomb(
        lambda: empty_image(65535, 65535, syntax=RLE, frame=rle_frame(9, 99)), "too_many_pixels"
    ),
    "rle_40_mp": Bomb(
        lambda: compressed(_LARGE, RLE, rle_frame(9, 99)), "size_mismatch", "corrupt"
    ),
    "rle_unpacks": Bomb(
        lambda: compressed(ramp(), RLE, rle_frame(9999, 9999)), "size_mismatch", "corrupt"
    ),
    "deflate": Bomb(deflate_bomb, "too_many_bytes"),
    "jpeg_13300_in_small_image": Bomb(
        lambda: compressed(np.zeros((16, 16), np.uint8), BASELINE, jpeg_claim(13_300, 13_300)),
        "size_mismatch",
    ),
    "jpeg_13300_in_dicom": Bomb(
        lambda: compressed(_HUGE, BASELINE, jpeg_claim(13_300, 13_300)), "too_many_pixels"
    ),
    "jpeg_13300": Bomb(lambda: jpeg_claim(13_300, 13_300), "too_many_pixels", "truncated"),
    "jpeg_13300_padded": Bomb(lambda: jpeg_claim(13_300, 13_300, 400_000), "too_many_pixels"),
    "jpeg_6000": Bomb(lambda: jpeg_claim(6000, 6000), "truncated"),
    "jpeg_6000_in_dicom": Bomb(
        lambda: compressed(np.zeros((6000, 6000), np.uint8), BASELINE, jpeg_claim(6000, 6000)),
        "truncated",
    ),
    "jpeg_scans": Bomb(scan_bomb, "corrupt"),
    **{
        f"jpeg_fill_before_{name}": Bomb(partial(filled_jpeg, marker), "corrupt")
        for name, marker in {"scan": b"\xff\xda", "end": b"\xff\xd9", "table": b"\xff\xdb"}.items()
    },
    "jpeg_empty_segments": Bomb(lambda: filled_jpeg(b"\xff\xda", b"\xff\xfe\0\2"), "corrupt"),
    "lossless_claim": Bomb(lambda: compressed(_LARGE, LOSSLESS, ljpeg_claim()), "truncated"),
    "jpeg_ls_claim": Bomb(lambda: compressed(_LARGE, JPEG_LS, jpeg_ls_claim()), "corrupt"),
    "j2k_box_loop": Bomb(lambda: compressed(ramp(), J2K, j2k_box_loop()), "corrupt"),
    "j2k_claim": Bomb(lambda: compressed(_LARGE, J2K, j2k_claim(6300, 6300)), "truncated"),
    "j2k_one_tile": Bomb(
        lambda: compressed(_LARGE, J2K, j2k_claim(6300, 6300, 6300)), "corrupt", "truncated"
    ),
    "j2k_tiles": Bomb(
        lambda: compressed(_LARGE, J2K, j2k_claim(6300, 6300, 1)), "corrupt", "truncated"
    ),
    "j2k_65535": Bomb(lambda: compressed(ramp(), J2K, j2k_claim(65535, 65535)), "size_mismatch"),
    "million_elements": Bomb(
        lambda: before_modality(b"\x08\x00\x50\x00SH\0\0" * 1_000_000), "too_many_elements"
    ),
    "million_private_elements": Bomb(
        lambda: before_modality(b"\x09\x00\x10\x10LO\x02\x00ab" * 1_000_000), "too_many_elements"
    ),
    "nested_sequences": Bomb(lambda: nested(100_000), "too_many_elements"),
    "nested_unknowns": Bomb(
        lambda: before_modality((b"\x09\x00\x10\x10UN\0\0\xff\xff\xff\xff" + _ITEM_OPEN) * 100_000),
        *("too_many_elements", "truncated"),  # what UN holds is in implicit VR
    ),
    "sequence_longer_than_file": Bomb(
        lambda: nested(1, b"\xf0\xff\xff\x7f"),
        *("truncated", "corrupt", "bad_tags", "no_pixel_data"),
    ),
    "png_billion_pixels": Bomb(lambda: png_claim(31_623, 31_623), "too_many_pixels"),
    "png_169_mp": Bomb(lambda: png_claim(13_000, 13_000), "too_many_pixels"),
    "png_6000": Bomb(lambda: png_claim(6000, 6000), "corrupt", "truncated"),
    "tiff": Bomb(lambda: b"II*\0" + bytes(400), "unknown_format"),
    "eps": Bomb(lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n" + bytes(400), "unknown_format"),
    "icon": Bomb(lambda: b"\0\0\1\0\1\0" + bytes(400), "unknown_format"),
    "gzip": Bomb(lambda: zlib.compress(bytes(2**20), wbits=31), "unknown_format"),
}
"""Name -> bomb: those that peers fell to, and their relatives."""
