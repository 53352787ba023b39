"""The one gate through which films enter: limits first, decoding in a process of its own."""

import atexit
import os
import threading
from pathlib import Path

from medclip_dcl.config.studies import ImagesConfig
from medclip_dcl.studies.decoder import Decoder, SquareImage
from medclip_dcl.studies.grey import GreyImage
from medclip_dcl.studies.reasons import REASONS

__all__ = ["REASONS", "Decoder", "GreyImage", "SquareImage", "open_image"]

_decoders: dict[tuple[int, ImagesConfig], Decoder] = {}
_lock = threading.Lock()


def open_image(source: Path | bytes, settings: ImagesConfig = ImagesConfig()) -> GreyImage:  # noqa: B008 (frozen)
    """Read a film safely: DICOM, JPEG or PNG.

    The bytes are decoded in a worker process with a deadline and a memory cap, which is
    started at the first call and kept; who reads many films side by side holds a `Decoder`.

    Args:
        source: path of a regular file, or the whole file.
        settings: limits, and whether a VOI window is applied.

    Returns:
        The picture.

    Raises:
        ImageError: the film is refused; `code` is one of `REASONS`.
    """
    return _decoder(settings).open(source)


def _decoder(settings: ImagesConfig) -> Decoder:
    key = os.getpid(), settings  # a forked child must not share its parent's sockets
    with _lock:
        if key not in _decoders:
            decoder = Decoder(settings, 1)
            atexit.register(decoder.close)
            _decoders[key] = decoder
        return _decoders[key]
