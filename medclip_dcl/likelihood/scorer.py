"""The scorer of a corpus: a language model on disk, and tasks for it.

A task is scored by one thread of a process, or by a GPU, so that on one kind of machine its
bits depend on the task alone.
"""

import multiprocessing
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import torch

from medclip_dcl.errors import MedclipError, ScoreError
from medclip_dcl.likelihood.encoding import encode_sentences
from medclip_dcl.likelihood.engine import EngineName, find_budget, prepare_engine, resolve_engine
from medclip_dcl.likelihood.language_model import load_language_model
from medclip_dcl.likelihood.pll import Variant, score_encodings
from medclip_dcl.likelihood.units import part_of

_ALL = 1 << 16  # past the last word piece of any input


@dataclass(frozen=True)
class Recipe:
    """How sentences are scored."""

    folder: Path
    """Folder of the language model."""
    variant: Variant
    dtype: str
    token_budget: int
    """Word pieces in one forward pass; 0: what suits the device."""
    device: str = "cpu"
    """Device of the model, as torch names it."""
    engine: EngineName = "auto"
    """How the model is run."""


@dataclass(frozen=True)
class Task:
    """Sentences, or spans of them, that are scored as a whole."""

    number: int
    texts: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    """First and last scored word piece of each text; the last is not included."""


@dataclass(frozen=True)
class Scores:
    """Scores of one task."""

    number: int
    pll_nats: tuple[float, ...]


def engine_of(recipe: Recipe) -> EngineName:
    """Say which engine a recipe comes to on this machine.

    Args:
        recipe: how to score.

    Returns:
        `onnxruntime` or `plain`.

    Raises:
        ScoreError: `onnxruntime` is asked for and cannot be had.
    """
    if recipe.engine == "plain":
        return "plain"
    model: Any = load_language_model(recipe.folder).model
    model.to(device=recipe.device, dtype=getattr(torch, recipe.dtype))
    return resolve_engine(model, recipe.engine)


class Scorer:
    """Scores tasks in this process.

    Args:
        recipe: how to score.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        loaded = load_language_model(recipe.folder)
        self._model = loaded.model
        cast(Any, self._model).to(device=recipe.device, dtype=getattr(torch, recipe.dtype))
        self._tokenizer = loaded.tokenizer
        self._limit = int(self._model.config.max_position_embeddings)
        self._engine = prepare_engine(self._model, recipe.engine, threads=1)
        self._budget = recipe.token_budget or find_budget(self._model)

    def score(self, task: Task) -> Scores:
        """Score a task.

        Args:
            task: sentences; those too long for the model are truncated.

        Returns:
            Their scores, in order.

        Raises:
            ScoreError: a score is no number.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            whole = encode_sentences(self._tokenizer, task.texts, self._limit)
            parts = [
                part_of(encoding, first, last)
                for encoding, (first, last) in zip(whole, task.spans, strict=True)
            ]
            pll_nats = score_encodings(
                self._model,
                parts,
                self._tokenizer.mask_token_id,
                self._recipe.variant,
                self._budget,
                engine=self._engine,
            )
        finally:
            torch.set_num_threads(threads)
        return Scores(task.number, tuple(pll_nats.tolist()))


def drift(recipe: Recipe, texts: Sequence[str]) -> float:
    """Measure how far scores in the recipe's precision lie from those in float32.

    Args:
        recipe: how to score.
        texts: a few sentences; at least one.

    Returns:
        Largest difference of a sentence's score, nats.

    Raises:
        ScoreError: a score is no number.
    """
    task = Task(0, tuple(texts), tuple((0, _ALL) for _ in texts))
    exact = Scorer(replace(recipe, dtype="float32")).score(task).pll_nats
    rough = Scorer(recipe).score(task).pll_nats
    return max(abs(one - other) for one, other in zip(exact, rough, strict=True))


def score_tasks(
    recipe: Recipe, tasks: Iterable[Task], workers: int
) -> Generator[Scores, None, None]:
    """Score tasks, each in whatever process is free.

    Args:
        recipe: how to score.
        tasks: what to score; taken as processes become free.
        workers: processes; 1: this one.

    Yields:
        Scores of each task, in the order in which they are finished.

    Raises:
        ScoreError: a score is no number, or a worker died.
    """
    if workers <= 1:
        scorer = None
        for task in tasks:
            scorer = scorer or Scorer(recipe)
            yield scorer.score(task)
        return
    crew = [_hire(recipe) for _ in range(workers)]
    try:
        yield from _share_out(iter(tasks), dict(crew))
    finally:
        for connection, process in crew:
            connection.close()
            process.terminate()
            process.join()


def _share_out(waiting: Iterator[Task], crew: dict[Connection, BaseProcess]) -> Iterator[Scores]:
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


def _hand(
    connection: Connection, waiting: Iterator[Task], crew: dict[Connection, BaseProcess]
) -> bool:
    """Give a process its next task; tell whether there was one."""
    task = next(waiting, None)
    if task is None:
        return False
    try:
        connection.send(task)
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
