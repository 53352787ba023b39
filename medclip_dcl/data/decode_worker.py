"""The decode worker: a process of its own that reads images until its socket closes.

A request is a header and the descriptor of the file's bytes, the answer a header and
the descriptor of the pixels. The worker holds no other file, has a memory cap, and an
alarm that ends it should its parent be gone while a decoder hangs. DICOM is read by
`dicom.reader`, JPEG and PNG here, through Pillow held to these two formats.
"""

import importlib
import io
import os
import resource
import signal
import socket
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data import codestreams, grayscale
from medclip_dcl.data.dicom.reader import read_dicom
from medclip_dcl.data.images import NOT_INSTALLED, Closed, receive, scratch, send
from medclip_dcl.data.limits import Fit, ImagesConfig, is_dicom

_MID_GREY = 128  # what a decoder puts where its stream has ended
_WORD_MODES = {"I;16", "I;16L", "I;16B", "I;16N", "I"}
_TURNS = dict(  # orientation of EXIF -> what brings the picture upright; 1 is upright
    enumerate(
        (
            Image.Transpose.FLIP_LEFT_RIGHT,
            Image.Transpose.ROTATE_180,
            Image.Transpose.FLIP_TOP_BOTTOM,
            Image.Transpose.TRANSPOSE,
            Image.Transpose.ROTATE_270,
            Image.Transpose.TRANSVERSE,
            Image.Transpose.ROTATE_90,
        ),
        start=2,
    )
)


def read_image(data: bytes, settings: ImagesConfig) -> grayscale.DecodedImage:
    """Read an image of any accepted format in this process, without protection.

    Raises:
        ImageError: the file is refused, and the code says why.
    """
    with _faults_coded():
        return read_dicom(data, settings) if is_dicom(data) else _read_raster(data, settings)


@contextmanager
def _faults_coded() -> Iterator[None]:
    # Whatever a library raises on malformed bytes becomes one of the codes; its own words may quote
    # the file and are dropped.
    try:
        yield
    except ImageError:
        raise
    except MemoryError as error:
        raise ImageError("memory", "decoding exceeds images.memory_mb") from error
    except RecursionError as error:
        raise ImageError("too_many_elements", "sequences are nested too deeply") from error
    except (EOFError, zlib.error) as error:
        raise ImageError("truncated", "the data end too early") from error
    except Exception as error:
        raise ImageError("corrupt", "the decoder cannot read the file") from error


def main(descriptor: int, text: str) -> None:
    """Run a worker; `descriptor`: its end of the socket pair, `text`: the settings as JSON."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    settings = ImagesConfig.model_validate_json(text)
    _cap_memory(settings.memory_mb << 20)
    with socket.socket(fileno=descriptor) as channel:
        _serve(channel, settings)


def _serve(channel: socket.socket, settings: ImagesConfig) -> None:
    send(channel, {"ready": True})
    while True:
        try:
            request, handle = receive(channel)
        except Closed:
            return
        # The parent kills at the deadline; the alarm is for a worker whose parent is gone. A C
        # decoder that hangs never lets a handler run: the default action ends the process.
        signal.setitimer(signal.ITIMER_REAL, 2 * settings.deadline_s + 1)
        answer, pixels = _answer(request, handle, settings)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if pixels is None:
            send(channel, answer)
            continue
        try:
            with scratch(pixels.data) as handle:
                send(channel, answer, handle)
        except OSError as error:  # of this machine, not of the image
            send(channel, {"errno": error.errno})


def _read_raster(data: bytes, settings: ImagesConfig) -> grayscale.DecodedImage:
    """Read JPEG or PNG, scaled by minimum and maximum as a DICOM image is."""
    # Pillow checks this before it allocates.
    Image.MAX_IMAGE_PIXELS = settings.max_pixels
    # What Pillow warns of in metadata makes no pixel doubtful; of a bomb up to twice the limit it
    # only warns too.
    with warnings.catch_warnings(record=True) as faults:
        warnings.simplefilter("always")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image = _read_with_pillow(data)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise ImageError("too_many_pixels", "exceeds images.max_megapixels") from error
    if any("EXIF" in str(fault.message) for fault in faults):
        image.facts["ignored"] = ("EXIF",)
    return image


def _read_with_pillow(data: bytes) -> grayscale.DecodedImage:
    source = "jpeg" if data[:1] == b"\xff" else "png"
    if source == "jpeg":
        codestreams.require_bits(codestreams.read_jpeg(data), len(data))
    plain = codestreams.plain_jpeg(data) if source == "jpeg" else codestreams.plain_png(data)
    # No other parser of Pillow's is to see these bytes.
    with Image.open(io.BytesIO(plain), formats=("JPEG", "PNG")) as image:
        image.load()
        last = image.width - 1, image.height - 1
        # Pillow fills a cut stream with mid-grey, silently; few whole images end in it.
        if source == "jpeg" and image.mode == "L" and image.getpixel(last) == _MID_GREY:
            codestreams.require_whole(plain, np.asarray(image), 8)
        words = _words(_upright(image))
    shades = grayscale.shade(words, _straight, inverted=False)
    levels = (shades.low, shades.high) if words.dtype == np.uint8 else None
    facts = {"bits_stored": 8 * words.dtype.itemsize, "source": source, "levels": levels}
    return grayscale.DecodedImage(shades, facts)


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # noqa: BLE001 (Pillow raises anything on a malformed block)
        warnings.warn("EXIF cannot be read", stacklevel=1)
        return image
    turn = _TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)


def _straight(words: grayscale.Values) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    return words.astype(np.float64), np.ones(len(words), dtype=bool)


def _words(image: Image.Image) -> grayscale.Words:
    """Return grey levels: 16 bits stay, colours become luma (BT.601), transparent is black."""
    if image.mode in _WORD_MODES:
        wide = np.asarray(image).astype(np.int64)
        if wide.size and (wide.min() < 0 or wide.max() > np.iinfo(np.uint16).max):
            raise ImageError("corrupt", "grey levels exceed 16 bits")
        return wide.astype(np.uint16)
    if image.mode != "L":
        has_alpha = image.has_transparency_data
        if has_alpha:
            opaque = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", opaque.size, "black"), opaque)
        image = image.convert("L")
    return np.asarray(image, dtype=np.uint8)


def _answer(
    request: dict[str, Any], handle: int | None, settings: ImagesConfig
) -> tuple[dict[str, Any], Any]:
    try:
        data = _contents(handle)
        if "function" in request:
            return _separated(request["function"], data, settings)
        shades, facts = read_image(data, settings)
        facts |= {"shape": shades.words.shape, "constant": shades.constant}
        if "size_px" not in request:
            return facts, shades.pixels
        fit = request["fit"] and Fit(**request["fit"])
        return facts, grayscale.square_of(
            *(shades.words, shades.table, facts.get("levels")),
            *(request["size_px"], request["equalize"], fit),
        )
    except ImageError as error:
        return {"code": error.code, "message": error.message}, None
    except MemoryError:
        return {"code": "memory", "message": "decoding exceeds images.memory_mb"}, None


def _separated(name: str, data: bytes, settings: ImagesConfig) -> tuple[dict[str, Any], Any]:
    module, _, function = name.partition(":")
    try:
        take_apart = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError):  # its package is gone, and what names it was left
        return {"code": NOT_INSTALLED, "message": f"{name} cannot be imported"}, None
    with _faults_coded():
        if not is_dicom(data):
            raise ImageError("unknown_format", "the file is not DICOM; give a DICOM image")
        header, pixel_digest, stripped = take_apart(data, settings)
    facts = {"header": len(header), "stripped": len(stripped), "pixel_digest": pixel_digest}
    return facts, np.frombuffer(header + stripped, np.uint8)


def _contents(handle: int | None) -> bytes:
    assert handle is not None, "every request carries a file"
    # Not mmap: after an image that hit the cap, malloc has free memory but the address space has
    # none; and a file that is cut while it is mapped kills the process.
    with os.fdopen(handle, "rb", buffering=0) as file:
        try:
            file.seek(0)
            return file.readall()
        except OSError as error:
            raise ImageError("missing", "the file cannot be read") from error


def _cap_memory(allowed: int) -> None:
    """Allow so much address space beyond what the code itself has taken."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the image
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return  # no such file and no such limit outside Linux: the deadline alone stands
    ceiling = pages * resource.getpagesize() + allowed
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
