"""The one gate through which images enter: a pool of processes, which alone decode."""

import atexit
import functools
import io
import json
import math
import os
import queue
import re
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from medclip_dcl.core.errors import ConfigError, ImageError, QueryError, StudyError
from medclip_dcl.data.grayscale import GreyImage, SquareImage, grey_of_array, square
from medclip_dcl.data.limits import PREAMBLE, Fit, ImagesConfig, require_image

_START_S = 120.0  # of an import of the decoders on a busy machine
_GRACE_S = 5.0
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "LANG")
_QUIET_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    # glibc would map and unmap memory for each image, and fault its pages in: malloc keeps 256 MiB
    "MALLOC_MMAP_THRESHOLD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# pydicom would import an HTTP client, for sample files that it can fetch: a worker must have none.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]);"
    "sys.modules.update(requests=None, tqdm=None);"
    "from medclip_dcl.data.decode_worker import main; main(int(sys.argv[1]), sys.argv[2])"
)


class ImageHeader(NamedTuple):
    """Whose image it is, and what it looks like: all that a DICOM answer needs of the file."""

    data_set: bytes  # the cleaned header in explicit VR, little endian, without pixels
    pixel_digest: str  # SHA-256 of the pixel element as it is stored


class SeparatedImage(NamedTuple):
    """A DICOM image taken apart: whose it is stays here, the rest may go to a service."""

    header: ImageHeader  # identity and geometry
    stripped: bytes  # a DICOM file that holds the pixels, what they mean, and no identity


_NO_SEPARATION = (
    "nothing installed separates an image from whose it is; run pip install ./hospital in the "
    "checkout"
)


@functools.cache
def _separation() -> str:
    points = [*entry_points(group="medclip_dcl.separation", name="dicom")]
    if not points:
        raise ConfigError(_NO_SEPARATION)
    return str(points[0].value)


NOT_INSTALLED = "not_installed"
ImageSource = Path | bytes | memoryview  # the path of a regular file, or the whole file


# A pool of its own because no executor of the standard library fits: a worker must be killed at its
# deadline and replaced without harm to the others, must have a memory cap and no inherited file,
# and must not import the caller's main module. What goes wrong in one costs one image.
class Decoder:
    """A pool of decode workers; threads may share it, and wait while all are busy."""

    def __init__(self, settings: ImagesConfig, workers: int) -> None:
        self._settings = settings
        # Last in, first out: a worker starts only where those that run are busy.
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._all: list[_Worker] = [_Worker(settings) for _ in range(max(1, workers))]
        for worker in self._all:
            self._idle.put(worker)

    def open(self, source: ImageSource) -> GreyImage:
        """Read an image from the path of a regular file, or from the whole file.

        Raises:
            ImageError: the image is refused; `code` is one of `limits.REASONS`.
            StudyError: no decode worker can be started.
            OSError: this machine has no room to hand the image over.
        """
        facts, pixels = self._ask(source, {})
        del facts["shape"]
        # JSON has no tuples
        facts = {name: tuple(x) if isinstance(x, list) else x for name, x in facts.items()}
        return GreyImage(pixels, **facts)

    def square(
        self, source: ImageSource, size_px: int, *, equalize: bool, fit: Fit | None = None
    ) -> SquareImage:
        """Return `grayscale.square` of what `open` gives, made in the worker; raises as `open`."""
        own = None if fit is None else asdict(fit)
        facts, pixels = self._ask(source, {"size_px": size_px, "equalize": equalize, "fit": own})
        height, width = facts["shape"]
        return SquareImage(
            pixels, height, width, facts["constant"], facts["source"], facts.get("inverted", False)
        )

    def separate(self, source: ImageSource) -> SeparatedImage:
        """Take a DICOM image apart into its cleaned header and the image without identity.

        An installed package does it, by the entry point `dicom` of `medclip_dcl.separation`:
        `module:name` of (file's bytes, ImagesConfig) -> (header, SHA-256 of pixels, the rest).

        Raises as `open`, and with that package's codes; ConfigError where there is none.
        """
        facts, joined = self._ask(source, {"function": _separation()})
        data, at = joined.tobytes(), facts["header"]
        return SeparatedImage(ImageHeader(data[:at], facts["pixel_digest"]), data[at:])

    def close(self) -> None:
        """End all workers; an image that is being read is refused."""
        for worker in self._all:
            worker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _ask(
        self, source: ImageSource, request: dict[str, Any]
    ) -> tuple[dict[str, Any], npt.NDArray[Any]]:
        with _checked(source, self._settings.max_bytes) as checked:
            worker = self._idle.get()
            try:
                with nullcontext(checked) if isinstance(checked, int) else scratch(checked) as file:
                    try:
                        facts, pixels = worker.ask(request, file)
                    except _WorkerDied:  # of this image, or by a killer of processes: once more
                        facts, pixels = worker.ask(request, file)
            finally:
                self._idle.put(worker)
        if pixels is None:
            if facts["code"] == NOT_INSTALLED:
                raise ConfigError(f"{_NO_SEPARATION} ({facts['message']})")
            raise ImageError(facts["code"], facts["message"])
        return facts, pixels


class _WorkerDied(ImageError):
    pass


class _Worker:
    """One process and the socket to it; started when first asked, replaced when lost."""

    def __init__(self, settings: ImagesConfig) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._closed = False

    def ask(
        self, request: dict[str, Any], file: int
    ) -> tuple[dict[str, Any], npt.NDArray[Any] | None]:
        try:
            channel = self._started()
            channel.settimeout(self._settings.deadline_s)
            send(channel, request, file)
            facts, answer = receive(channel)
            if answer is None:
                if "errno" in facts:
                    raise OSError(facts["errno"], os.strerror(facts["errno"]))
                return facts, None
            try:
                size = request.get("size_px")
                if size:
                    return facts, read_array(answer, (size, size), np.uint8)
                if "function" in request:
                    length = facts["header"] + facts["stripped"]
                    return facts, read_array(answer, (length,), np.uint8)
                return facts, read_array(answer, facts["shape"], np.uint16)
            finally:
                os.close(answer)
        except BaseException as error:
            self.kill()  # also at a stop in the middle of a message: the next would not fit it
            if isinstance(error, TimeoutError):
                raise ImageError("deadline", "decoding exceeds images.deadline_s") from error
            if isinstance(error, Closed):
                raise _WorkerDied("worker_died", "the decode worker died on this image") from error
            raise

    # `close` may call this from another thread while `ask` waits: closing the socket ends the wait,
    # and the lock lets one of the two have process and socket.
    def kill(self) -> None:
        with self._lock:
            channel, process = self._channel, self._process
            self._channel = self._process = None
        if channel is not None:
            channel.close()
        if process is not None:  # SIGKILL: a decoder in C would not see anything milder
            process.kill()
            process.wait(_GRACE_S)

    def stop(self) -> None:
        self._closed = True
        self.kill()

    def _started(self) -> socket.socket:
        if self._closed:
            raise ImageError("worker_died", "the decoder has been closed")
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # it died idle, not on an image
        if self._channel is None:
            channel, process = _spawn(self._settings)
            with self._lock:
                self._channel, self._process = channel, process
            channel.settimeout(_START_S)
            try:
                receive(channel)
            except (Closed, TimeoutError) as error:  # not the image's fault: none is rejected
                raise StudyError(
                    "a decode worker cannot start; is memory left, and the installation whole?"
                ) from error
        assert self._channel is not None
        return self._channel


def _spawn(settings: ImagesConfig) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    # A bare interpreter: multiprocessing would import the caller's main. `-I` ignores PYTHON*
    # variables and the current folder, so the path is handed over, and so is a short environment.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    package = str(Path(__file__).resolve().parents[2])
    path = json.dumps([package, *(entry for entry in sys.path if entry)])
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    try:
        number = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _BOOT, str(number), settings.model_dump_json(), path],
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment | _QUIET_VARIABLES,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours, process


@contextmanager
def _checked(source: ImageSource, max_bytes: int) -> Iterator[int | bytes | memoryview]:
    """Check size and first bytes; a path becomes a descriptor, so none is exchanged meanwhile."""
    if not isinstance(source, Path):
        require_image(bytes(source[:PREAMBLE]), len(source), max_bytes)
        yield source
        return
    try:
        handle = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe never waits
    except (OSError, ValueError) as error:
        raise ImageError("missing", "the file cannot be opened") from error
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise ImageError("missing", "the path names no regular file")
        require_image(os.pread(handle, PREAMBLE, 0), facts.st_size, max_bytes)
        yield handle
    finally:
        os.close(handle)


# Messages between this process and its workers: a JSON header and at most one descriptor. Bytes of
# files and of pixels never pass through the socket: the other side gets a descriptor of a nameless
# file in memory (memfd) and reads that. A worker that is killed leaves nothing behind. Where a
# system has no such files, as macOS, they lie in its folder for temporary ones: what is lost is
# that no image touches a disk.
_LENGTH = struct.Struct("<I")
_MAX_HEADER = 1 << 16


class Closed(Exception):
    """The other side is gone."""


def send(channel: socket.socket, header: dict[str, Any], handle: int | None = None) -> None:
    """Send a header that JSON can hold, and a descriptor that the other side gets a copy of.

    Raises:
        Closed: the other side is gone.
    """
    text = json.dumps(header).encode()
    data = _LENGTH.pack(len(text)) + text
    try:
        if handle is None:
            channel.sendall(data)
            return
        sent = socket.send_fds(channel, [data], [handle])  # may send a part; the descriptor went
        channel.sendall(data[sent:])
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        raise Closed from error


def receive(channel: socket.socket) -> tuple[dict[str, Any], int | None]:
    """Receive a header, and the descriptor that came with it, which the caller closes.

    Raises:
        Closed: the other side is gone, or wrote something that is not a message.
        TimeoutError: nothing came in time.
    """
    handles: list[int] = []
    try:
        data, handles, _, _ = socket.recv_fds(channel, _LENGTH.size, 1)
        data = _rest(channel, data, _LENGTH.size)
        (length,) = _LENGTH.unpack(data)
        if length > _MAX_HEADER:
            raise Closed
        header = json.loads(_rest(channel, b"", length))
    except BaseException as error:
        for handle in handles:  # a worker that sends one and then dies must not leak it
            os.close(handle)
        if isinstance(error, ValueError | OSError) and not isinstance(error, TimeoutError):
            raise Closed from error
        raise
    return header, handles[0] if handles else None


@contextmanager
def scratch(data: bytes | memoryview) -> Iterator[int]:
    """Lay bytes into a nameless file in memory, and yield its descriptor."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("image", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    try:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(handle, view) :]
        yield handle
    finally:
        os.close(handle)


def _rest(channel: socket.socket, data: bytes, length: int) -> bytes:
    while len(data) < length:
        more = channel.recv(length - len(data))
        if not more:
            raise Closed
        data += more
    return data


def read_array(
    handle: int, shape: Sequence[int], kind: type[np.uint8] | type[np.uint16]
) -> npt.NDArray[Any]:
    """Copy an array out of a descriptor, so that nobody can change it afterwards.

    Raises:
        Closed: there are fewer bytes than the shape needs.
    """
    with open(handle, "rb", buffering=0, closefd=False) as file:
        file.seek(0)  # the writer of the file left the offset that both share at its end
        array: npt.NDArray[Any] = np.fromfile(file, kind, math.prod(shape))
    if array.size < math.prod(shape):
        raise Closed
    return array.reshape(shape)


_decoders: dict[tuple[int, ImagesConfig, int], Decoder] = {}
_lock = threading.Lock()


def open_image(
    source: Path | str | bytes,
    settings: ImagesConfig = ImagesConfig(),  # noqa: B008 (frozen)
) -> GreyImage:
    """Read an image safely: DICOM, JPEG or PNG.

    The bytes are decoded in a worker process with a deadline and a memory cap, which is
    started at the first call and kept; to read many images side by side hold a `Decoder`.

    Args:
        source: path of a regular file, or the whole file.
        settings: limits, and whether a VOI window is applied.

    Raises:
        ImageError: the image is refused; `code` is one of `limits.REASONS`.
    """
    path_or_bytes = Path(source) if isinstance(source, str) else source
    return shared_decoder(settings).open(path_or_bytes)


def images_of(given: Any) -> tuple[list[Any], bool]:
    """List what is given as images, and whether it is one alone; four axes are several.

    Raises:
        QueryError: there is none.
    """
    is_array = _is_of("numpy", "ndarray", given) or _is_of("torch", "Tensor", given)
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "OU":
        given, is_array = given.tolist(), False  # such as the paths of a column
    if is_array and given.ndim != 4:
        return [given], True
    alone = (str, os.PathLike, bytes, bytearray, memoryview, GreyImage, SquareImage)
    if isinstance(given, alone) or hasattr(given, "read") or _is_a_library_s(given):
        return [given], True
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise QueryError(_NO_IMAGE)
    images = list(given)
    if not images:
        raise QueryError("there is no image; give one, or a list with at least one")
    return images, False


_NO_IMAGE = (
    "what is given is not an image: give a path, a file's bytes, a DICOM data set of pydicom, a "
    "Pillow image, an array or tensor of pixels, or what open_image returns; or a list of these"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(//|[a-z]+/)")


def open_any(
    image: Any,
    settings: ImagesConfig = ImagesConfig(),  # noqa: B008 (frozen)
) -> SquareImage:
    """Prepare one image for a model, whatever holds it: see `images_of`.

    A file, and what can be written as one without loss, is decoded in a worker process as by
    `open_image`; pixels of an array are scaled by their extremes.

    Raises:
        ImageError: the image is refused; `code` is one of `limits.REASONS`.
        QueryError: it is something else, a folder, or a URL: none is fetched.
    """
    if isinstance(image, SquareImage):
        return image
    is_pixels = hasattr(image, "__array_interface__") or hasattr(image, "__array__")
    # A data set answers to any name, and numpy's texts are its scalars.
    if is_pixels and not isinstance(image, str) and not _is_data_set(image):
        image = _from_pixels(image, settings)
    if isinstance(image, GreyImage):
        pixels = square(image, settings.size_px, settings.equalize, settings.fit)
        facts = (*image.pixels.shape, image.constant, image.source, image.inverted)
        return SquareImage(pixels, *facts)
    return shared_decoder(settings).square(
        _file_of(image), settings.size_px, equalize=settings.equalize, fit=settings.fit
    )


def _from_pixels(image: Any, settings: ImagesConfig) -> "bytes | GreyImage":
    if _is_of("PIL.Image", "Image", image) and image.mode not in {"F", "I"}:
        stream = io.BytesIO()  # as a file: palettes, transparency and orientation have their gate
        # Pillow cuts grey of 16 bits at 255 where it makes colours of it: of a TIFF, `I;16B`.
        through = ("I", "I;16") if "16" in image.mode else (_OTHERS.get(image.mode, "RGB"),)
        plain = image
        for mode in () if image.mode in _PNG_MODES else through:
            plain = plain.convert(mode)
        plain.save(stream, "PNG", compress_level=1, exif=image.getexif())
        return stream.getvalue()
    if _is_of("torch", "Tensor", image):
        plain = image.detach().cpu()
        image = (plain.float() if plain.is_floating_point() else plain).numpy()
    values = image.pixels if isinstance(image, GreyImage) else np.asarray(image)
    if math.prod(sorted(values.shape)[-2:]) > settings.max_pixels:
        raise ImageError("too_many_pixels", f"{values.shape} exceeds images.max_megapixels")
    return grey_of_array(values)


_PNG_MODES = {"1", "L", "LA", "I;16", "P", "RGB", "RGBA"}
_OTHERS = {"La": "LA", "RGBa": "RGBA"}


def is_image(given: Any) -> bool:
    """Whether a value is one image by itself, and not a path or a text."""
    if _is_of("numpy", "ndarray", given) or _is_of("torch", "Tensor", given):
        return bool(given.ndim > 1)
    return isinstance(given, bytes | bytearray | GreyImage) or _is_a_library_s(given)


def file_bytes(image: Any) -> bytes:
    """Write an image that is not a file as one: a data set as DICOM, pixels as PNG of 16 bits.

    Raises as `open_any`.
    """
    if is_image(image) and not isinstance(image, bytes | bytearray):
        image = _from_pixels(image, ImagesConfig()) if not _is_data_set(image) else image
    if isinstance(image, GreyImage):
        from PIL import Image

        stream = io.BytesIO()
        Image.fromarray(image.pixels).save(stream, "PNG", compress_level=1)
        return stream.getvalue()
    source = _file_of(image)
    return source.read_bytes() if isinstance(source, Path) else bytes(source)


def _file_of(image: Any) -> ImageSource:
    if isinstance(image, str) and (scheme := _URL.match(image)):
        raise QueryError(
            f"the image is a URL ({scheme[0].rstrip('/')}), and none is fetched; download it, and "
            "give the file or its bytes"
        )
    if isinstance(image, str | os.PathLike):
        path = Path(image)
        if path.is_dir():
            raise QueryError(
                "the image is a folder; give its files, such as sorted(folder.glob('*.dcm'))"
            )
        return path
    if _is_data_set(image):
        stream = io.BytesIO()
        try:
            image.save_as(stream, enforce_file_format=True)
        except Exception as error:  # whatever pydicom raises of what is absent or malformed
            raise ImageError(
                "unreadable",
                "the data set cannot be written as a file; it needs file_meta with its transfer "
                "syntax, SOP class and SOP instance",
            ) from error
        return stream.getvalue()
    content = image.read() if hasattr(image, "read") else image
    if not isinstance(content, bytes | bytearray | memoryview):
        raise QueryError(_NO_IMAGE)
    return bytes(content)


def _is_of(module: str, name: str, given: Any) -> bool:
    # Whoever gives an object of a library has imported it: this process need not.
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(given, kind)


def _is_data_set(given: Any) -> bool:
    return _is_of("pydicom", "Dataset", given)


def _is_a_library_s(given: Any) -> bool:
    return _is_of("PIL.Image", "Image", given) or _is_data_set(given)


def shared_decoder(settings: ImagesConfig, workers: int = 1) -> Decoder:
    """Return this process's pool for some settings; it is kept until the process ends."""
    key = os.getpid(), settings, workers  # a forked child must not share its parent's sockets
    with _lock:
        if key not in _decoders:
            decoder = Decoder(settings, workers)
            atexit.register(decoder.close)
            _decoders[key] = decoder
        return _decoders[key]
