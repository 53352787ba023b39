"""Films of a manifest -> shards of squares: many workers, written here, one shard at a time.

The workers are those of a `concurrent.futures` executor: threads that share a pool of decode
processes, or the processes of a Dask cluster, each with a pool of its own. A film comes out
the same wherever it is decoded.
"""

import importlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from medclip_dcl.artifacts.files import path_under
from medclip_dcl.artifacts.prepared import SHARD, read_shard_rejects, write_shard
from medclip_dcl.config.studies import ImagesConfig
from medclip_dcl.cores import available_cores
from medclip_dcl.errors import ConfigError, ImageError, LaunchError, StudyError
from medclip_dcl.studies.images import Decoder, SquareImage, shared_decoder

_BATCH = 4  # films in one task: few enough to share evenly, many enough to pay for the message
_AHEAD = 2  # shards under way, so that no worker waits while one is written

Answer = SquareImage | str
"""A film's square, or the code of the reason why there is none."""


@dataclass(frozen=True)
class Film:
    """A film as the manifest names it."""

    image_id: str
    path: str


Reader = Callable[[Sequence[Film]], list[Answer]]


@dataclass(frozen=True)
class Outcome:
    """What became of all films.

    Attributes:
        kept: films in the shards.
        rejects: id and reason code of the others, in the manifest's order.
    """

    kept: int
    rejects: list[tuple[str, str]]


def write_shards(
    films: Sequence[Film],
    root: Path,
    folder: Path,
    settings: ImagesConfig,
    finished: Callable[[int], None],
) -> Outcome:
    """Decode, stretch and write all films, going on after the shards that are there.

    Args:
        films: the films, in the manifest's order.
        root: folder under which their paths lie.
        folder: folder of the artifact's draft.
        settings: settings of images.
        finished: told how many films have been finished.

    Returns:
        What became of them; the same whether or not an earlier run was killed.
    """
    starts = range(0, len(films), settings.shard_rows)
    todo = [number for number in range(len(starts)) if not (folder / SHARD.format(number)).exists()]
    if len(todo) < len(starts):
        finished(sum(_rows(films, settings, n) for n in set(range(len(starts))) - set(todo)))
    if todo:
        parts = [(n, films[starts[n] : starts[n] + settings.shard_rows]) for n in todo]
        with _crew(root, settings) as (executor, read):
            for number, part, answers in _under_way(executor, read, parts):
                _write(folder, number, part, list(_counted(answers, finished)), settings.size_px)
    found = [read_shard_rejects(folder, number) for number in range(len(starts))]
    return Outcome(sum(kept for kept, _ in found), [item for _, rows in found for item in rows])


def _rows(films: Sequence[Film], settings: ImagesConfig, number: int) -> int:
    start = number * settings.shard_rows
    return min(settings.shard_rows, len(films) - start)


def read_films(films: Sequence[Film], root: Path, settings: ImagesConfig) -> list[Answer]:
    """Decode and stretch films with this process's own pool, which is kept for the next ones.

    Args:
        films: the films; what a process of a cluster is sent.
        root: folder under which their paths lie, the same on every machine.
        settings: settings of images.

    Returns:
        The square of each, or the code of the reason why there is none.
    """
    workers = settings.workers or available_cores()
    return _read(films, shared_decoder(settings, workers), root, settings)


@contextmanager
def _crew(root: Path, settings: ImagesConfig) -> Iterator[tuple[Executor, Reader]]:
    """Give an executor, and what it is to do with films: here, or on a cluster."""
    if settings.dask_scheduler:
        with _cluster(settings.dask_scheduler) as client:
            apart = partial(read_films, root=root.absolute(), settings=settings)
            try:
                yield client.get_executor(pure=False), apart
            except (CancelledError, _dask().KilledWorker) as error:
                raise LaunchError(
                    "the Dask cluster was lost, or its workers die; the shards so far are kept: "
                    "mend the cluster and run the same command again"
                ) from error
        return
    workers = settings.workers or available_cores()
    with Decoder(settings, workers) as decoder, ThreadPoolExecutor(workers) as threads:
        try:
            yield threads, partial(_read, decoder=decoder, root=root, settings=settings)
        finally:
            threads.shutdown(cancel_futures=True)


def _dask() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError as error:
        raise ConfigError("images.dask_scheduler needs `pip install medclip-dcl[dask]`") from error


def _cluster(address: str) -> Any:
    try:
        return _dask().Client(address, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no Dask scheduler answers at images.dask_scheduler {address!r}; start one, or leave "
            "the setting empty to use this machine"
        ) from error


def _under_way(
    executor: Executor, read: Reader, parts: Iterable[tuple[int, Sequence[Film]]]
) -> Iterator[tuple[int, Sequence[Film], Iterator[list[Answer]]]]:
    """Start shards ahead of the one that is waited for."""
    started: deque[tuple[int, Sequence[Film], Iterator[list[Answer]]]] = deque()
    for number, part in parts:
        batches = [part[at : at + _BATCH] for at in range(0, len(part), _BATCH)]
        started.append((number, part, executor.map(read, batches)))
        if len(started) == _AHEAD:
            yield started.popleft()
    yield from started


def _counted(answers: Iterator[list[Answer]], finished: Callable[[int], None]) -> Iterator[Answer]:
    for batch in answers:
        finished(len(batch))
        yield from batch


def _read(
    films: Sequence[Film], decoder: Decoder, root: Path, settings: ImagesConfig
) -> list[Answer]:
    return [_read_one(film, decoder, root, settings) for film in films]


def _read_one(film: Film, decoder: Decoder, root: Path, settings: ImagesConfig) -> Answer:
    try:
        path = path_under(root, film.path)
    except StudyError:
        return "missing"
    try:
        image = decoder.square(path, settings.size_px, equalize=settings.equalize)
    except ImageError as error:
        return error.code
    return "constant" if image.constant else image


def _write(
    folder: Path,
    number: int,
    films: Sequence[Film],
    answers: Sequence[Answer],
    size_px: int,
) -> None:
    kept = [
        (film, answer)
        for film, answer in zip(films, answers, strict=True)
        if isinstance(answer, SquareImage)
    ]
    rejects = [
        (film.image_id, answer)
        for film, answer in zip(films, answers, strict=True)
        if isinstance(answer, str)
    ]
    pixels = np.empty((len(kept), size_px, size_px), dtype=np.uint8)
    sizes = np.empty((len(kept), 2), dtype=np.int32)
    for row, (_, image) in enumerate(kept):
        pixels[row] = image.pixels
        sizes[row] = image.height_px, image.width_px
    write_shard(folder, number, [film.image_id for film, _ in kept], pixels, sizes, rejects)
