"""The one gate through which films enter: limits first, decoding in a process of its own."""

import atexit
import os
import threading
from pathlib import Path

from medclip_dcl.config.studies import ImagesConfig
from medclip_dcl.studies.decoder import Decoder, SquareImage
from medclip_dcl.studies.grey import GreyImage
from medclip_dcl.studies.reasons import REASONS

__all__ = ["REASONS", "Decoder", "GreyImage", "SquareImage", "open_image", "shared_decoder"]

_decoders: dict[tuple[int, ImagesConfig, int], Decoder] = {}
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
    return shared_decoder(settings).open(source)


def shared_decoder(settings: ImagesConfig, workers: int = 1) -> Decoder:
    """Give this process's pool for some settings; it is kept until the process ends.

    Args:
        settings: settings of images.
        workers: decode processes; each starts when it is first needed.

    Returns:
        The same pool at every call.
    """
    key = os.getpid(), settings, workers  # a forked child must not share its parent's sockets
    with _lock:
        if key not in _decoders:
            decoder = Decoder(settings, workers)
            atexit.register(decoder.close)
            _decoders[key] = decoder
        return _decoders[key]
