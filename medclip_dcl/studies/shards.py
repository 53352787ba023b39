"""Films of a manifest -> shards of squares: many workers, one shard at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medclip_dcl.artifacts.files import path_under
from medclip_dcl.artifacts.prepared import SHARD, read_shard_rejects, write_shard
from medclip_dcl.config.studies import ImagesConfig
from medclip_dcl.cores import available_cores
from medclip_dcl.errors import ImageError, StudyError
from medclip_dcl.studies.images import Decoder, SquareImage


@dataclass(frozen=True)
class Film:
    """A film as the manifest names it."""

    image_id: str
    path: str


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
    workers = settings.workers or available_cores()
    todo = [number for number in range(len(starts)) if not (folder / SHARD.format(number)).exists()]
    if len(todo) < len(starts):
        finished(sum(_rows(films, settings, n) for n in set(range(len(starts))) - set(todo)))
    if todo:
        with Decoder(settings, workers) as decoder, ThreadPoolExecutor(workers) as threads:
            for number in todo:
                part = films[starts[number] : starts[number] + settings.shard_rows]

                def read(film: Film) -> SquareImage | str:
                    answer = _read(film, root, decoder, settings)
                    finished(1)
                    return answer

                _write(folder, number, part, list(threads.map(read, part)), settings.size_px)
    found = [read_shard_rejects(folder, number) for number in range(len(starts))]
    return Outcome(sum(kept for kept, _ in found), [item for _, rows in found for item in rows])


def _rows(films: Sequence[Film], settings: ImagesConfig, number: int) -> int:
    start = number * settings.shard_rows
    return min(settings.shard_rows, len(films) - start)


def _read(film: Film, root: Path, decoder: Decoder, settings: ImagesConfig) -> SquareImage | str:
    """Give the square, or the code of the reason why there is none."""
    try:
        path = path_under(root, film.path)
        image = decoder.square(path, settings.size_px, equalize=settings.equalize)
    except StudyError:
        return "missing"
    except ImageError as error:
        return error.code
    return "constant" if image.constant else image


def _write(
    folder: Path,
    number: int,
    films: Sequence[Film],
    answers: Sequence[SquareImage | str],
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
