"""The decode worker: a process of its own that reads images until its socket closes.

A request is a header and the descriptor of the file's bytes, the answer a header and
the descriptor of the pixels. The worker holds no other file, has a memory cap, and an
alarm that ends it should its parent be gone while a decoder hangs.
"""

import json
import os
import resource
import signal
import socket
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

from medclip_dcl.data import ipc
from medclip_dcl.data.dicom.reader import read_dicom
from medclip_dcl.data.formats import is_dicom
from medclip_dcl.data.grayscale import DecodedImage, stretch
from medclip_dcl.data.ipc import Limits
from medclip_dcl.data.raster import read_raster
from medclip_dcl.errors import ImageError


def read_image(data: bytes, limits: Limits) -> DecodedImage:
    """Read an image of any accepted format in this process, without protection.

    Args:
        data: the whole file.
        limits: what the reader is held to.

    Raises:
        ImageError: the file is refused. Whatever a library raises on malformed bytes
            becomes one of the codes; its own words may quote the file and are dropped.
    """
    try:
        return read_dicom(data, limits) if is_dicom(data) else read_raster(data, limits)
    except ImageError:
        raise
    except MemoryError as error:
        raise ImageError("memory", "decoding exceeds images.memory_mb") from error
    except RecursionError as error:
        raise ImageError("too_many_elements", "sequences are nested too deeply") from error
    except (EOFError, zlib.error) as error:
        raise ImageError("truncated", "the data end too early") from error
    except Exception as error:
        raise ImageError("corrupt", f"the decoder raised {type(error).__name__}") from error


def serve(channel: socket.socket, limits: Limits) -> None:
    """Answer requests until the other side closes."""
    ipc.send(channel, {"ready": True})
    while True:
        try:
            request, handle = ipc.receive(channel)
        except ipc.Closed:
            return
        signal.setitimer(signal.ITIMER_REAL, 2 * limits.deadline_s + 1)  # default action: the end
        answer, pixels = _answer(request, handle, limits)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if pixels is None:
            ipc.send(channel, answer)
            continue
        with ipc.scratch(pixels) as scratch:
            ipc.send(channel, answer, scratch)


def main(descriptor: int, settings: str) -> None:
    """Run a worker.

    Args:
        descriptor: the worker's end of the socket pair.
        settings: `Limits` as JSON.
    """
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    limits = Limits(**json.loads(settings))
    _cap_memory(limits.memory_bytes)
    with socket.socket(fileno=descriptor) as channel:
        serve(channel, limits)


def _answer(
    request: dict[str, Any], handle: int | None, limits: Limits
) -> tuple[dict[str, Any], Any]:
    try:
        image = read_image(_contents(handle, request.get("bytes", 0)), limits)
        if "size_px" not in request:
            return _facts(image), image.shades.pixels
        size_px, equalize = request["size_px"], request["equalize"]
        return _facts(image), stretch(image.shades.words, image.shades.table, size_px, equalize)
    except ImageError as error:
        return {"code": error.code, "message": error.message}, None
    except MemoryError:
        return {"code": "memory", "message": "decoding exceeds images.memory_mb"}, None


def _facts(image: DecodedImage) -> dict[str, Any]:
    return {
        "shape": image.shades.words.shape,
        "bits_stored": image.bits_stored,
        "source": image.source,
        "inverted": image.inverted,
        "constant": image.shades.constant,
        "spacing_mm": image.spacing_mm,
        "window": image.window,
        "tags": image.tags,
    }


def _contents(handle: int | None, size: int) -> bytes:
    """Read a file, or its first bytes where a size is given."""
    if handle is None:
        raise ImageError("missing", "the request carries no file")
    # Not mmap: after an image that hit the cap, malloc has free memory but the address space has
    # none; and a file that is cut while it is mapped kills the process.
    try:
        size = size or os.fstat(handle).st_size
        data = os.pread(handle, size, 0)
        while 0 < len(data) < size and (more := os.pread(handle, size - len(data), len(data))):
            data += more
    except OSError as error:
        raise ImageError("missing", "the file cannot be read") from error
    finally:
        os.close(handle)
    if not data:
        raise ImageError("empty", "the file holds no bytes")
    return data


def _cap_memory(allowed: int) -> None:
    """Allow so much address space beyond what the code itself has taken."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return  # no such file and no such limit outside Linux: the deadline alone stands
    ceiling = pages * resource.getpagesize() + allowed
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
