"""The one gate through which images enter: limits first, decoding in a process of its own."""

import atexit
import contextlib
import fcntl
import json
import mmap
import os
import queue
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from medclip_dcl.data.grayscale import GreyImage, Source
from medclip_dcl.errors import ImageError, StudyError
from medclip_dcl.settings import LOCAL, NO_EFFECT, Section


class ImagesConfig(Section):
    """Decoding and preparing images (`prepare_images`, and the service)."""

    size_px: Annotated[int, Field(ge=32, le=8192)] = 512
    """Height and width of a prepared image, pixels; paper: 512."""
    voi: Literal["none", "dicom"] = "none"
    """Whether a DICOM VOI LUT or window is applied before scaling by minimum and maximum."""
    equalize: bool = False
    """Histogram equalisation, as MIMIC-CXR-JPG applied to its images."""
    max_megapixels: Annotated[float, Field(gt=0)] = 40
    """Largest declared rows x columns, millions of pixels."""
    max_bytes: Annotated[int, Field(gt=0)] = 64 * 2**20
    """Largest file, bytes."""
    deadline_s: Annotated[float, Field(gt=0)] = 8
    """Seconds that one image may take to decode; its refusal then comes within 10."""
    memory_mb: Annotated[int, Field(gt=0)] = 1024
    """Memory that a decode worker may allocate, MiB."""
    reject_burned_in: bool = True
    """Whether an image is rejected whose BurnedInAnnotation is given and is not NO."""
    shard_rows: Annotated[int, Field(gt=0)] = 512
    """Images in one shard: the unit that is resumed."""
    workers: Annotated[int, Field(ge=0), NO_EFFECT] = 0
    """Decode processes; 0: one per core."""
    dask_scheduler: Annotated[str, NO_EFFECT, LOCAL] = ""
    """Address of a Dask scheduler, such as `tcp://head:8786`, whose workers decode; empty: here."""
    max_reject_share: Annotated[float, Field(ge=0, le=1), NO_EFFECT] = 0.01
    """Share of rejected images above which the job fails with exit code 3."""

    @property
    def max_pixels(self) -> int:
        """Largest declared rows x columns."""
        return int(self.max_megapixels * 1e6)

    def held_to(
        self, *, max_bytes: int, max_megapixels: float, deadline_s: float, memory_mb: int
    ) -> Self:
        """Give the same settings with decoding held to limits of whoever decodes."""
        return self.model_copy(
            update={
                "max_bytes": min(self.max_bytes, max_bytes),
                "max_megapixels": min(self.max_megapixels, max_megapixels),
                "deadline_s": min(self.deadline_s, deadline_s),
                "memory_mb": min(self.memory_mb, memory_mb),
            }
        )


REASONS: dict[str, str] = {
    "missing": "there is no regular file to read",
    "empty": "the file holds no bytes",
    "too_many_bytes": "the file is larger than images.max_bytes",
    "unknown_format": "the bytes are neither DICOM with its preamble, nor JPEG, nor PNG",
    "unreadable": "the header cannot be parsed",
    "too_many_elements": "the DICOM data set has more elements than an image needs",
    "transfer_syntax": "the DICOM transfer syntax is not one of those that are decoded",
    "not_single_frame": "the DICOM file holds several frames",
    "not_greyscale": "the DICOM file holds colour or palette indices",
    "bad_tags": "a DICOM tag that describes the pixels is missing or impossible",
    "too_many_pixels": "rows x columns exceed images.max_megapixels",
    "no_pixel_data": "the DICOM file holds no pixels",
    "truncated": "fewer bytes than the declared size needs",
    "size_mismatch": "the compressed stream or the pixel bytes disagree with the declared size",
    "corrupt": "the decoder refused the pixels",
    "bad_intensities": "rescale, lookup table or window give no finite intensity",
    "burned_in": "BurnedInAnnotation says that text is part of the picture",
    "deadline": "decoding took longer than images.deadline_s",
    "memory": "decoding asked for more than images.memory_mb",
    "worker_died": "the decode worker died on this image",
    "constant": "all pixels are equal (refused by prepare_images alone)",
}
"""Reason code -> what it means."""

IDENTITY_REASONS: dict[str, str] = {
    "no_identity": "a UID of the image is missing or not a UID",
    "character_set": "the patient's name is written in an unknown character set",
}
"""Reason code -> what it means, of images for which no DICOM object can be made."""

KEPT_BYTES = 32 << 20
"""Memory for images is used again for the next one, unless one took more than this."""

PREAMBLE = 132
"""Bytes that tell the format: of DICOM the preamble, of JPEG and PNG a few of them."""

_RASTERS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_SEALS = 0x01 | 0x02 | 0x04 | 0x10  # no other seal, shrinking, growing, writer (linux/fcntl.h)
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


@dataclass(frozen=True)
class SquareImage:
    """An image as `square` gives it, uint8 (size, size), and what `GreyImage` says of it."""

    pixels: npt.NDArray[np.uint8]
    height_px: int  # before it was stretched
    width_px: int
    constant: bool
    source: Source
    inverted: bool


class ImageHeader(NamedTuple):
    """Whose image it is, and what it looks like: all that a DICOM answer needs of the file."""

    data_set: bytes
    """The cleaned header in explicit VR, little endian, without pixels (`dicom.header`)."""
    pixel_digest: str
    """SHA-256 of the pixel element as it is stored."""


class SeparatedImage(NamedTuple):
    """A DICOM image taken apart: whose it is stays here, the rest may go to a service."""

    header: ImageHeader
    """Identity and geometry."""
    stripped: bytes
    """A DICOM file that holds the pixels, what they mean, and no identity."""


@dataclass(frozen=True, eq=False)
class SharedMemory:
    """Memory that this process writes and decode workers can only read."""

    handle: int
    """Of a nameless file; whoever gives the memory up closes it."""
    map: mmap.mmap

    @classmethod
    def of_size(cls, size: int) -> Self:
        """Lay out `size` bytes, which the system gives as they are written; Linux alone can."""
        handle = os.memfd_create("images", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(handle, size)
            memory = cls(handle, mmap.mmap(handle, size))
            # A worker that an image has taken over can neither change it nor cut it short, which
            # would end this process where it reads on.
            fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(handle)
            raise
        return memory


@dataclass(frozen=True)
class SharedBytes:
    """An image file in shared memory, of which workers need no copy."""

    memory: SharedMemory
    start: int
    stop: int

    @property
    def view(self) -> memoryview:
        """Its bytes."""
        return memoryview(self.memory.map)[self.start : self.stop]

    def __len__(self) -> int:
        return self.stop - self.start


ImageSource = Path | bytes | memoryview | SharedBytes
"""The path of a regular file, or the whole file."""


# A pool of its own because no executor of the standard library fits: a worker must be killed at its
# deadline and replaced without harm to the others, must have a memory cap and no inherited file,
# and must not import the caller's main module. What goes wrong in one costs one image.
class Decoder:
    """A pool of decode workers; threads may share it, and wait while all are busy."""

    def __init__(self, settings: ImagesConfig, workers: int) -> None:
        self._settings = settings
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._all: list[_Worker] = [_Worker(settings) for _ in range(max(1, workers))]
        for worker in self._all:
            self._idle.put(worker)

    def open(self, source: ImageSource) -> GreyImage:
        """Read an image from the path of a regular file, or from the whole file.

        Raises:
            ImageError: the image is refused; `code` is one of `images.REASONS`.
            StudyError: no decode worker can be started.
            OSError: this machine has no room to hand the image over.
        """
        facts, pixels = self._ask(source, {})
        del facts["shape"]
        for name in ("spacing_mm", "window"):
            facts[name] = tuple(facts[name]) if facts[name] else None  # JSON has no tuples
        return GreyImage(pixels, **facts)

    def square(self, source: ImageSource, size_px: int, *, equalize: bool) -> SquareImage:
        """Give `grayscale.square` of what `open` gives, made in the worker; raises as `open`."""
        facts, pixels = self._ask(source, {"size_px": size_px, "equalize": equalize})
        height, width = facts["shape"]
        return SquareImage(
            pixels, height, width, facts["constant"], facts["source"], facts["inverted"]
        )

    def separate(self, source: ImageSource) -> SeparatedImage:
        """Take a DICOM image apart into its cleaned header and the image without identity.

        Raises as `open`, and with the codes of `IDENTITY_REASONS`.
        """
        facts, joined = self._ask(source, {"separate": True})
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
                try:
                    facts, pixels = worker.ask(request, checked)
                except _WorkerDied:  # of this image, or by a killer of processes: once more
                    facts, pixels = worker.ask(request, checked)
            finally:
                self._idle.put(worker)
        if pixels is None:
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
        self._buffer = _SharedBuffer()
        self._closed = False

    def ask(
        self, request: dict[str, Any], image: "int | bytes | memoryview | SharedBytes"
    ) -> tuple[dict[str, Any], npt.NDArray[Any] | None]:
        try:
            channel = self._started()
            channel.settimeout(self._settings.deadline_s)
            if isinstance(image, int):
                send(channel, request, image)
            elif isinstance(image, SharedBytes):
                place = {"start": image.start, "bytes": len(image)}
                send(channel, request | place, image.memory.handle)
            else:  # they go by the shared buffer, which is longer than they are
                send(channel, {**request, "bytes": len(image)}, self._buffer.write(image))
                if len(image) > KEPT_BYTES:
                    self._buffer.clear()
            facts, answer = receive(channel)
            if answer is None:
                if "errno" in facts:
                    raise OSError(facts["errno"], os.strerror(facts["errno"]))
                return facts, None
            try:
                size = request.get("size_px")
                if size:
                    return facts, _read_array(answer, (size, size), np.uint8)
                if request.get("separate"):
                    length = facts["header"] + facts["stripped"]
                    return facts, _read_array(answer, (length,), np.uint8)
                return facts, _read_array(answer, facts["shape"], np.uint16)
            finally:
                os.close(answer)
        except TimeoutError as error:
            self.kill()
            raise ImageError("deadline", "decoding exceeds images.deadline_s") from error
        except Closed as error:
            self.kill()
            raise _WorkerDied("worker_died", "the decode worker died on this image") from error
        except BaseException:  # a stop in the middle of a message: the next one would not fit it
            self.kill()
            raise

    # `close` may call this from another thread while `ask` waits: closing the socket ends the wait,
    # and the lock lets one of the two have process and socket.
    def kill(self) -> None:
        with self._lock:
            channel, process = self._channel, self._process
            self._channel = self._process = None
        self._buffer.clear()
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


def is_dicom(data: bytes) -> bool:
    """Whether `DICM` follows a preamble of 128 bytes; `data`: the first 132 bytes, or more.

    A bare data set without it is not accepted: nothing tells it from any other bytes.

    Source: DICOM PS3.10, 7.1.
    """
    return data[PREAMBLE - 4 : PREAMBLE] == b"DICM"


@contextlib.contextmanager
def _checked(
    source: ImageSource, max_bytes: int
) -> Iterator[int | bytes | memoryview | SharedBytes]:
    """Look at size and first bytes of what is to be read; a path becomes a descriptor.

    The worker gets that descriptor: a file that is exchanged meanwhile is not what it reads.
    """
    if not isinstance(source, Path):
        view = source.view if isinstance(source, SharedBytes) else source
        _require(bytes(view[:PREAMBLE]), len(view), max_bytes)
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
        _require(os.pread(handle, PREAMBLE, 0), facts.st_size, max_bytes)
        yield handle
    finally:
        os.close(handle)


def _require(head: bytes, size: int, max_bytes: int) -> None:
    if size == 0:
        raise ImageError("empty", "the file holds no bytes")
    if size > max_bytes:
        raise ImageError("too_many_bytes", f"{size} bytes exceed images.max_bytes, {max_bytes}")
    if not is_dicom(head) and not head.startswith(_RASTERS):
        raise ImageError("unknown_format", "the first bytes are not those of DICOM, JPEG or PNG")


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
        ImageError: the image is refused; `code` is one of `REASONS`.
    """
    path_or_bytes = Path(source) if isinstance(source, str) else source
    return shared_decoder(settings).open(path_or_bytes)


def shared_decoder(settings: ImagesConfig, workers: int = 1) -> Decoder:
    """Give this process's pool for some settings; it is kept until the process ends."""
    key = os.getpid(), settings, workers  # a forked child must not share its parent's sockets
    with _lock:
        if key not in _decoders:
            decoder = Decoder(settings, workers)
            atexit.register(decoder.close)
            _decoders[key] = decoder
        return _decoders[key]


# --- Messages between the gate and its workers: a JSON header and at most one descriptor. Bytes of
# files and of pixels never pass through the socket: the other side gets a descriptor of a nameless
# file in memory (memfd) and reads that. A worker that is killed leaves nothing behind.

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


def nameless_file() -> int:
    """Make a file in memory and give its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("image", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # macOS has no files in memory
        return os.dup(file.fileno())


def _rest(channel: socket.socket, data: bytes, length: int) -> bytes:
    while len(data) < length:
        more = channel.recv(length - len(data))
        if not more:
            raise Closed
        data += more
    return data


class _SharedBuffer:
    """A nameless file in memory that every image is written into, one after the other."""

    # Reused rather than made for each image: its pages are there already and need not be faulted in
    # again. So it is as long as the largest image yet, and a request says how many of its bytes are
    # the newest. Nobody writes while a worker reads: a worker has one request at a time, and its
    # buffer is dropped when it is killed.

    def __init__(self) -> None:
        self._handle: int | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Lay bytes down from the file's beginning, and give its descriptor, which stays open."""
        if self._handle is None:
            self._handle = nameless_file()
        at = 0
        while at < len(data):  # pwrite: the descriptor's offset is shared with the worker's copy
            at += os.pwrite(self._handle, data[at:] if at else data, at)
        return self._handle

    def clear(self) -> None:
        """Give the memory back."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _read_array(
    handle: int, shape: Sequence[int], kind: type[np.uint8] | type[np.uint16]
) -> npt.NDArray[Any]:
    """Copy an array out of a descriptor, so that nobody can change it afterwards.

    Raises:
        Closed: there are fewer bytes than the shape needs.
    """
    array: npt.NDArray[Any] = np.empty(shape, dtype=kind)
    view = array.data.cast("B")
    at = 0
    while at < len(view):
        got = os.preadv(handle, [view[at:]], at)
        if got == 0:
            raise Closed
        at += got
    return array
