"""Prepared images: square 8-bit grey images in shards that are read by memory map.

Many workers decode, one process writes shard by shard. The workers are those of a
`concurrent.futures` executor: threads that share a pool of decode processes, or the processes of a
Dask cluster, each with a pool of its own. An image comes out the same wherever it is decoded.
"""

import importlib
import json
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from medclip_dcl.core import files
from medclip_dcl.core.artifact import Artifact, ArtifactType
from medclip_dcl.core.errors import (
    ArtifactCorrupt,
    ArtifactStale,
    ConfigError,
    ImageError,
    LaunchError,
    StudyError,
)
from medclip_dcl.core.progress import Progress, available_cores
from medclip_dcl.core.tables import Column, damage_named, read_table, write_table
from medclip_dcl.data import manifest
from medclip_dcl.data.limits import ImagesConfig

if TYPE_CHECKING:  # who reads prepared images decodes none
    from medclip_dcl.data.grayscale import SquareImage
    from medclip_dcl.data.images import Decoder

ARTIFACT = ArtifactType("prepared", 2, "prepare_images")

COLUMNS = (
    Column("image_id", pa.string(), "id of the image"),
    Column("pixels", pa.large_binary(), "size x size bytes, row by row; 0 black, 255 white"),
    Column("height_px", pa.int32(), "height of the original image, pixels"),
    Column("width_px", pa.int32(), "width of the original image, pixels"),
)
"""Columns of every shard, an uncompressed Arrow IPC file `shard-00000.arrow`.

The original is stretched onto the square, so x_prepared = x * size / width_px and
y_prepared = y * size / height_px, in pixels.
"""

_SHARD = "shard-{:05d}.arrow"  # by its place in the manifest
_BAND_PX = 4  # half of the lines that are compared before whole pictures are

_SCHEMA = pa.schema([(column.name, column.type) for column in COLUMNS])


def write_shard(
    folder: Path,
    number: int,
    image_ids: Sequence[str],
    pixels: npt.NDArray[np.uint8],
    sizes: npt.NDArray[np.int32],
    rejects: Sequence[tuple[str, str]],
) -> None:
    """Write one shard; it appears whole, its rejects with it, or not at all.

    `pixels`: uint8 (n, size, size); `sizes`: int32 (n, 2), height and width of the originals,
    pixels; `rejects`: id and reason code of every image of this shard that was refused.
    """
    count, size_px, _ = pixels.shape
    area = size_px * size_px
    # Arrow's binary column is one buffer of all pixels and the offsets into it: built from ours
    # without a copy, and read back as one array (n, size, size) by `_images`.
    offsets = pa.py_buffer(np.arange(0, (count + 1) * area, area, dtype=np.int64))
    data = pa.py_buffer(np.ascontiguousarray(pixels))
    columns = [
        pa.array(image_ids, pa.string()),
        pa.Array.from_buffers(pa.large_binary(), count, [None, offsets, data]),
        *(pa.array(lengths, pa.int32()) for lengths in sizes.T),
    ]
    facts = {"size_px": str(size_px), "rejects": json.dumps(list(rejects))}
    schema = _SCHEMA.with_metadata(facts)
    # In memory first, as the file has to appear whole: 128 MiB of 512 images of 512 pixels.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    files.write_bytes(folder / _SHARD.format(number), sink.getvalue())


def require_fit(prepared: Artifact, images: ImagesConfig) -> None:
    """Refuse images that were brought to squares otherwise than a model sees them.

    Raises:
        ArtifactStale: they were, as those of a run are for an adopted model.
    """
    # What was prepared is known from the fingerprint alone: pixels do not tell how they were made.
    made = prepared.fingerprint["settings"].get("images")
    own = None if images.fit is None else asdict(images.fit)
    given = made.get("fit") if isinstance(made, dict) else None
    if given != own or (own and prepared.summary["size_px"] != images.size_px):
        section = json.dumps({"images": {"size_px": images.size_px, "fit": own}})
        raise ArtifactStale(
            "images were not prepared as the model sees them; put this line into the config, and "
            f"rerun {ARTIFACT.job}: {section[1:-1]}"
        )


class PreparedImages:
    """The prepared images of an artifact, read by memory map.

    Raises:
        ArtifactCorrupt: a shard cannot be read, or shards differ in size.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.size_px = int(artifact.summary["size_px"])
        """Height and width of an image, pixels."""
        names = sorted(name for name in artifact.files if name.endswith(".arrow"))
        self._shards = [_open_shard(artifact.path / name) for name in names]
        sizes = {int(shard.schema.metadata[b"size_px"]) for shard in self._shards}
        if sizes - {self.size_px}:
            raise ArtifactCorrupt(f"shards of {artifact.path} differ in size; rerun {ARTIFACT.job}")
        self._images = [_images(shard, self.size_px) for shard in self._shards]
        self._starts: list[int] = [0, *accumulate(shard.num_rows for shard in self._shards)]

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def id_column(self) -> pa.Array:
        """Ids of the images, in the order of the rows; one copy of all shards'."""
        ids = (shard["image_id"] for shard in self._shards)
        return pa.concat_arrays([pa.array([], pa.string()), *ids])

    @cached_property
    def image_ids(self) -> list[str]:
        """Ids of the images, in the order of the rows."""
        return list(self.id_column.to_pylist())

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Id of an image -> its row."""
        return {image_id: row for row, image_id in enumerate(self.image_ids)}

    def _place(self, row: int) -> tuple[int, int]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} prepared images")
        shard = bisect_right(self._starts, row) - 1
        return shard, row - self._starts[shard]

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        """Return one image without copying it: uint8 (size_px, size_px), read-only, 0 black."""
        shard, own = self._place(row)
        image: npt.NDArray[np.uint8] = self._images[shard][own]
        return image

    def original_size(self, row: int) -> tuple[int, int]:
        """Return height and width of an image before it was stretched, pixels."""
        shard, own = self._place(row)
        height, width = (self._shards[shard][name][own] for name in ("height_px", "width_px"))
        return height.as_py(), width.as_py()

    def find_repeats(self, rows: Iterable[int], among: Iterable[int]) -> dict[int, int]:
        """Find each row whose picture others have, and the first such row among these."""
        # A checksum of a few lines rules out nearly all pairs, so few pictures are read whole.
        by_band: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            by_band[self._band(row)].append(row)
        repeats: dict[int, int] = {}
        for other in among:
            for row in by_band.get(self._band(other), ()):
                is_done = row in repeats or row == other
                if not is_done and np.array_equal(self.pixels(row), self.pixels(other)):
                    repeats[row] = other
        return repeats

    def _band(self, row: int) -> int:
        middle = self.size_px // 2
        return zlib.crc32(self.pixels(row)[middle - _BAND_PX : middle + _BAND_PX].data)


def _open_shard(path: Path) -> pa.RecordBatch:
    with damage_named(path):
        # A shard is one batch, which is mapped and not read.
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    if batch.schema.remove_metadata() != _SCHEMA:
        raise ArtifactCorrupt(f"shard {path} has other columns than it must; rerun {ARTIFACT.job}")
    return batch


def _images(batch: pa.RecordBatch, size_px: int) -> npt.NDArray[np.uint8]:
    data = batch.column(1).buffers()[2]
    # Arrow gives no buffer at all where a shard has no image.
    images = np.frombuffer(data, dtype=np.uint8) if data else np.zeros(0, dtype=np.uint8)
    expected = batch.num_rows * size_px * size_px
    if images.size < expected:
        raise ArtifactCorrupt(f"a shard holds too few pixels; rerun {ARTIFACT.job}")
    return images[:expected].reshape(batch.num_rows, size_px, size_px)


_BATCH = 4  # images in one task: few enough to share evenly, many enough to pay for the message
_SHARD_ROWS = 512  # images in a shard, the unit that is resumed: a kill loses seconds
_LEAST_SHARDS = 16  # of fewer images: a kill loses a share
_AHEAD = 2  # shards under way at least, so that no worker waits while one is written


class ListedImage(NamedTuple):
    """An image as the manifest names it."""

    image_id: str
    path: str


_Answer: TypeAlias = "SquareImage | str"  # the square, or the code of the reason why there is none
_Reader = Callable[[Sequence[ListedImage]], list[_Answer]]


def list_images(listed: Artifact) -> list[ListedImage]:
    """List the images of a manifest, in its order."""
    table = read_table(listed.path, manifest.IMAGES, ["image_id", "path"])
    return [ListedImage(*row) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]


def prepare_images(
    folder: Path,
    images: Sequence[ListedImage],
    root: Path,
    settings: ImagesConfig,
    max_reject_share: float = 1.0,
    workers: int = 0,
) -> dict[str, Any]:
    """Decode, stretch and write all images below `root`, and give the artifact's summary.

    Shards that are there are kept; the summary is the same whether or not an earlier
    run was killed.

    Raises:
        StudyError: more images were refused than `max_reject_share` allows.
    """
    # By the number of images alone, never by workers: equal images give equal shards.
    size = max(1, min(_SHARD_ROWS, -(-len(images) // _LEAST_SHARDS)))
    starts = range(0, len(images), size)
    parts = [(n, images[start : start + size]) for n, start in enumerate(starts)]
    todo = [part for part in parts if not (folder / _SHARD.format(part[0])).exists()]
    done = len(images) - sum(len(part) for _, part in todo)
    with Progress("prepare images", len(images), "image", done=done) as progress:
        if todo:
            with _workers(root, settings, workers or available_cores()) as (executor, read, cores):
                ahead = partial(shards_ahead, cores, size)
                for number, part, batches in _in_flight(executor, read, todo, ahead):
                    answers: list[_Answer] = []
                    for batch in batches:
                        answers += batch
                        progress.advance(len(batch))
                    _write(folder, number, part, answers, settings.size_px)
    # From the shards and not from memory: some may be of a run that was killed.
    shards = [_open_shard(folder / _SHARD.format(number)) for number, _ in parts]
    rejects = [item for shard in shards for item in json.loads(shard.schema.metadata[b"rejects"])]
    reasons = dict(sorted(Counter(reason for _, reason in rejects).items()))
    if images and len(rejects) / len(images) > max_reject_share:
        raise StudyError(
            f"{len(rejects)} of {len(images)} images were refused ({reasons}), more than "
            f"source.max_reject_share {max_reject_share}; correct them or raise the share"
        )
    rows = [{"id": name, "stage": ARTIFACT.job, "reason": reason} for name, reason in rejects]
    write_table(folder, manifest.REJECTS, rows)
    return {
        "images": sum(shard.num_rows for shard in shards),
        "rejected": len(rejects),
        "reasons": reasons,
        "size_px": settings.size_px,
    }


@contextmanager
def _workers(
    root: Path, settings: ImagesConfig, workers: int
) -> Iterator[tuple[Executor, _Reader, Callable[[], int]]]:
    """Open an executor, here or on a cluster, what it is to do with images, and its cores."""
    if address := settings.dask_scheduler:
        try:
            cluster = importlib.import_module("distributed").Client(address, set_as_default=False)
        except (ImportError, OSError, ValueError) as error:
            raise ConfigError(
                f"no Dask scheduler answers at images.dask_scheduler {address!r}, or Dask is not "
                "installed here: start one, run pip install '.[dask]' in the checkout, or leave "
                "the setting empty to use this machine"
            ) from error
        with cluster as client:
            # Absolute, as workers have a current folder of their own; not pure, else Dask would
            # answer a batch that it has seen from memory.
            apart = partial(_read_on_cluster, root=root.absolute(), settings=settings)
            try:
                yield client.get_executor(pure=False), apart, lambda: sum(client.ncores().values())
            except (CancelledError, importlib.import_module("distributed").KilledWorker) as error:
                raise LaunchError(
                    "the Dask cluster was lost, or its workers die; the shards so far are kept: "
                    "repair the cluster and run the same command again"
                ) from error
        return
    from medclip_dcl.data.images import Decoder

    with Decoder(settings, workers) as decoder, ThreadPoolExecutor(workers) as threads:
        try:
            read = partial(_read, decoder=decoder, root=root, settings=settings)
            yield threads, read, lambda: workers
        finally:
            threads.shutdown(cancel_futures=True)


def shards_ahead(cores: Callable[[], int], shard_rows: int) -> int:
    """Count the shards to have under way, so that each core has a task, and the next one waits."""
    return max(_AHEAD, 1 + -(-2 * cores() * _BATCH // shard_rows))


def _in_flight(
    executor: Executor,
    read: _Reader,
    parts: Iterable[tuple[int, Sequence[ListedImage]]],
    ahead: Callable[[], int],
) -> Iterator[tuple[int, Sequence[ListedImage], Iterator[list[_Answer]]]]:
    # Shards are started ahead of the one that is waited for.
    started: deque[tuple[int, Sequence[ListedImage], Iterator[list[_Answer]]]] = deque()
    for number, part in parts:
        batches = [part[at : at + _BATCH] for at in range(0, len(part), _BATCH)]
        started.append((number, part, executor.map(read, batches)))
        while len(started) >= ahead():
            yield started.popleft()
    yield from started


def _read_on_cluster(
    images: Sequence[ListedImage], root: Path, settings: ImagesConfig
) -> list[_Answer]:
    # In a process of the cluster, whose pool is kept for the next task: a decoder cannot be sent.
    from medclip_dcl.data.images import shared_decoder

    decoder = shared_decoder(settings, available_cores())
    return _read(images, decoder, root, settings)


def _read(
    images: Sequence[ListedImage], decoder: "Decoder", root: Path, settings: ImagesConfig
) -> list[_Answer]:
    answers: list[_Answer] = []
    for listed in images:
        try:
            source = files.path_under(root, listed.path)
        except StudyError:
            answers.append("missing")
            continue
        try:  # no worker can start: that StudyError is not the image's fault, and ends the job
            image = decoder.square(
                source, settings.size_px, equalize=settings.equalize, fit=settings.fit
            )
        except ImageError as error:
            answers.append(error.code)
        else:
            answers.append("constant" if image.constant else image)
    return answers


def _write(
    folder: Path,
    number: int,
    images: Sequence[ListedImage],
    answers: Sequence[_Answer],
    size_px: int,
) -> None:
    both = list(zip(images, answers, strict=True))
    squares = [(listed.image_id, image) for listed, image in both if not isinstance(image, str)]
    rejects = [(listed.image_id, code) for listed, code in both if isinstance(code, str)]
    pixels = np.empty((len(squares), size_px, size_px), dtype=np.uint8)
    sizes = np.empty((len(squares), 2), dtype=np.int32)
    for row, (_, image) in enumerate(squares):
        pixels[row] = image.pixels
        sizes[row] = image.height_px, image.width_px
    write_shard(folder, number, [name for name, _ in squares], pixels, sizes, rejects)
