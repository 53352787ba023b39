"""The scorer of a corpus: a language model on disk, and units of work for it.

A unit is a fixed run of sentences in order of their keys. It is scored by one thread,
wherever it runs, so its bits depend on the unit alone.
"""

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import torch

from medclip_dcl.errors import MedclipError, ScoreError
from medclip_dcl.likelihood.encoding import encode_sentences
from medclip_dcl.likelihood.language_model import load_language_model
from medclip_dcl.likelihood.pll import Variant, score_encodings


@dataclass(frozen=True)
class Recipe:
    """How sentences are scored."""

    folder: Path
    """Folder of the language model."""
    variant: Variant
    dtype: str
    token_budget: int


@dataclass(frozen=True)
class Unit:
    """A run of sentences that is scored and acknowledged as a whole."""

    name: str
    keys: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Scores:
    """Scores of one unit."""

    name: str
    pll_nats: tuple[float, ...]
    tokens: tuple[int, ...]


class Scorer:
    """Scores units in this process, on the GPU where there is one.

    Args:
        recipe: how to score.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        loaded = load_language_model(recipe.folder)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = loaded.model
        cast(Any, self._model).to(device=self._device, dtype=getattr(torch, recipe.dtype))
        self._tokenizer = loaded.tokenizer
        self._limit = int(self._model.config.max_position_embeddings)

    def score(self, unit: Unit) -> Scores:
        """Score a unit.

        Args:
            unit: sentences; those too long for the model are truncated.

        Returns:
            Their scores, in order.

        Raises:
            ScoreError: a score is no number.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            encodings = encode_sentences(self._tokenizer, unit.texts, self._limit)
            pll_nats = score_encodings(
                self._model,
                encodings,
                self._tokenizer.mask_token_id,
                self._recipe.variant,
                self._recipe.token_budget,
            )
        finally:
            torch.set_num_threads(threads)
        tokens = tuple(item.tokens for item in encodings)
        return Scores(unit.name, tuple(pll_nats.tolist()), tokens)


def score_units(recipe: Recipe, units: Sequence[Unit], workers: int) -> Iterator[Scores]:
    """Score units, each in whatever process is free.

    Args:
        recipe: how to score.
        units: what to score.
        workers: processes; 1: this one.

    Yields:
        Scores of each unit, in the order in which they are finished.

    Raises:
        ScoreError: a score is no number, or a worker died.
    """
    if min(workers, len(units)) <= 1:
        scorer = Scorer(recipe) if units else None
        for unit in units:
            assert scorer is not None
            yield scorer.score(unit)
        return
    crew = [_hire(recipe) for _ in range(min(workers, len(units)))]
    try:
        yield from _share_out(units, dict(crew))
    finally:
        for connection, process in crew:
            connection.close()
            process.terminate()
            process.join()


def _share_out(units: Sequence[Unit], crew: dict[Connection, BaseProcess]) -> Iterator[Scores]:
    waiting = list(reversed(units))
    busy = [connection for connection in crew if _hand(connection, waiting, crew)]
    while busy:
        for connection in (item for item in wait(busy) if isinstance(item, Connection)):
            try:
                answer = connection.recv()
            except (EOFError, ConnectionError) as error:
                raise _died(crew[connection]) from error
            if isinstance(answer, MedclipError):
                raise answer
            if not _hand(connection, waiting, crew):
                busy.remove(connection)
            yield answer


def _hand(connection: Connection, waiting: list[Unit], crew: dict[Connection, BaseProcess]) -> bool:
    """Give a process its next unit; tell whether there was one."""
    if not waiting:
        return False
    try:
        connection.send(waiting.pop())
    except ConnectionError as error:
        raise _died(crew[connection]) from error
    return True


def _died(process: BaseProcess) -> ScoreError:
    process.join()
    return ScoreError(
        f"a scoring process ended with code {process.exitcode}; lower likelihood.workers or "
        "likelihood.token_budget, and run again to go on"
    )


def _hire(recipe: Recipe) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, recipe), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is seen as the end of the pipe
    return ours, process


def _work(connection: Connection, recipe: Recipe) -> None:
    """Score what is sent until the other end is gone."""
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        try:
            scorer = Scorer(recipe)
            while True:
                connection.send(scorer.score(connection.recv()))
        except MedclipError as error:
            connection.send(error)
