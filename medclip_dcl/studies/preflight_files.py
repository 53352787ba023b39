"""Report files by their encoding, and films as the one gate sees them."""

import contextlib
import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medclip_dcl.artifacts.files import path_under
from medclip_dcl.errors import ImageError, StudyError
from medclip_dcl.studies.codestreams import read_jpeg
from medclip_dcl.studies.headers import read_picture_header
from medclip_dcl.studies.images import Decoder
from medclip_dcl.studies.limits import Limits
from medclip_dcl.studies.pointers import is_pointer
from medclip_dcl.studies.records import Film
from medclip_dcl.studies.selection import LONGEST_REPORT
from medclip_dcl.studies.sniff import is_dicom, is_film

Row = dict[str, Any]

_KEY_DIGITS = 32
_NEAR = 1 << 16
_PNG = b"\x89PNG\r\n\x1a\n"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def encoding_of(data: bytes) -> str:
    """Name the encoding of a report file.

    Args:
        data: all its bytes.

    Returns:
        `ASCII`, `UTF-8`, `UTF-8 with BOM`, `UTF-16`, `pointer file`, `empty`, `with NUL`
        or `not UTF-8`.
    """
    if not data:
        return "empty"
    if is_pointer(data):
        return "pointer file"
    if data.startswith(_UTF16):
        return "UTF-16"
    if b"\0" in data:
        return "with NUL"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8"
    if data.startswith(b"\xef\xbb\xbf"):
        return "UTF-8 with BOM"
    return "ASCII" if data.isascii() else "UTF-8"


def count_encodings(
    root: Path, paths: Iterable[str], finished: Callable[[int], None]
) -> dict[str, int]:
    """Count report files by their encoding.

    Args:
        root: folder that the paths are relative to.
        paths: paths of report files; those that are missing are left out.
        finished: told how many files have been read.

    Returns:
        Encoding, as `encoding_of` names it, or `too long`, -> files, most frequent first.
    """
    counts: Counter[str] = Counter()
    for path in paths:
        with contextlib.suppress(StudyError), path_under(root, path).open("rb") as stream:
            data = stream.read(LONGEST_REPORT + 1)
            counts["too long" if len(data) > LONGEST_REPORT else encoding_of(data)] += 1
        finished(1)
    return dict(counts.most_common())


def look_at_film(film: Film, root: Path, decoder: Decoder) -> Row:
    """Open a film and say what it is.

    Args:
        film: the film.
        root: folder that its path is relative to.
        decoder: the gate's workers.

    Returns:
        A row with the columns of `artifacts.preflight.FILMS`.
    """
    row = _row(film, opened=True)
    try:
        image = decoder.open(path_under(root, film.path))
    except ImageError as error:
        return row | {"code": error.code}
    height, width = image.pixels.shape
    return row | {
        "code": "constant" if image.constant else "",
        "source": image.source,
        "bits_stored": image.bits_stored,
        "inverted": image.inverted,
        "height_px": height,
        "width_px": width,
        "pixels_key": "" if image.constant else pixels_key(image.pixels),
    }


def look_at_header(film: Film, root: Path, limits: Limits) -> Row:
    """Say of a film what its first bytes tell, without opening it.

    Args:
        film: the film.
        root: folder that its path is relative to.
        limits: what the gate would hold it to.

    Returns:
        A row with the columns of `artifacts.preflight.FILMS`; a header that tells nothing
        leaves them empty, for the gate alone refuses such a film.
    """
    row = _row(film, opened=False)
    path = path_under(root, film.path)
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(_NEAR)
    if not is_film(head):
        return row | {"code": "unknown_format" if size else "empty"}
    facts = _picture(path, head)
    if facts is None:
        return row
    is_burned_in = facts.pop("burned_in", False)
    if size > limits.max_bytes:
        return row | {"code": "too_many_bytes"}
    if facts["height_px"] * facts["width_px"] > limits.max_pixels:
        return row | {"code": "too_many_pixels"}
    if is_burned_in and limits.reject_burned_in:
        return row | {"code": "burned_in"}
    return row | facts


def _row(film: Film, *, opened: bool) -> Row:
    return {
        "image_id": film.image_id,
        "opened": opened,
        "code": "",
        "source": "",
        "bits_stored": None,
        "inverted": False,
        "height_px": None,
        "width_px": None,
        "pixels_key": "",
    }


def _picture(path: Path, head: bytes) -> Row | None:
    if is_dicom(head):
        picture = read_picture_header(path)
        return None if picture is None else {"source": "dicom", **asdict(picture)}
    if head.startswith(_PNG):
        width, height, bits = struct.unpack_from(">IIB", head.ljust(25, b"\0"), 16)
        return {"source": "png", "bits_stored": bits, "height_px": height, "width_px": width}
    try:
        frame = read_jpeg(head)
    except ImageError:
        return None
    size = {"height_px": frame.rows, "width_px": frame.columns}
    return {"source": "jpeg", "bits_stored": frame.precision, **size}


def pixels_key(pixels: npt.NDArray[np.uint16]) -> str:
    """Name a picture by what is seen on it, however the file stores it.

    Args:
        pixels: uint16 (height, width), as the gate gives them.

    Returns:
        32 hexadecimal digits: half of the SHA-256 of size and grey values.
    """
    digest = hashlib.sha256(f"{pixels.shape[0]} {pixels.shape[1]} ".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()[:_KEY_DIGITS]
