"""Processes that score units of sentences, one thread or one GPU each."""

import multiprocessing
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from medclip_dcl.core.errors import (
    MedclipError,
    ScoreError,
    ending_with_fault,
)
from medclip_dcl.likelihood.masked_lm import load_language_model, prepare_engine
from medclip_dcl.likelihood.pll import Variant, encode_sentences, find_budget, score_encodings
from medclip_dcl.models.settings import EngineName


@dataclass(frozen=True)
class ScoringOptions:
    """Options of scoring: variant, precision, device and engine."""

    folder: Path  # of the language model
    variant: Variant
    dtype: str
    device: str = "cpu"
    engine: EngineName = "auto"


class Task(NamedTuple):
    """Sentences that are scored, and acknowledged, as a whole."""

    number: int
    texts: tuple[str, ...]


class Scores(NamedTuple):
    """Scores of one task, nats."""

    number: int
    pll_nats: tuple[float, ...]


class Scorer:
    """Scores tasks in this process."""

    def __init__(self, options: ScoringOptions) -> None:
        self._options = options
        loaded = load_language_model(options.folder)
        self._model = model = cast(Any, loaded.model)
        model.to(device=options.device)
        self._tokenizer = loaded.tokenizer
        self._limit = int(self._model.config.max_position_embeddings)
        with _one_thread():
            self._engine = prepare_engine(
                self._model, options.engine, options.dtype, options.folder
            )
        self.engine: EngineName = self._engine.name
        """Who scores: `openvino` or `torch`."""
        if self.engine == "torch":
            model.to(dtype=getattr(torch, options.dtype))
        self._budget = find_budget(self._model)

    def score(self, task: Task) -> Scores:
        """Score a task, in order; sentences too long for the model are truncated."""
        with _one_thread():
            pll_nats = score_encodings(
                self._model,
                encode_sentences(self._tokenizer, task.texts, self._limit),
                self._tokenizer.mask_token_id,
                self._options.variant,
                self._budget,
                engine=self._engine,
            )
        return Scores(task.number, tuple(pll_nats.tolist()))


@contextmanager
def _one_thread() -> Iterator[None]:
    # So that the bits of a score do not depend on the number of threads.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def drift(options: ScoringOptions, texts: Sequence[str]) -> float:
    """Measure the largest difference, nats, of a few sentences' scores from those in float32."""
    task = Task(0, tuple(texts))
    exact = Scorer(replace(options, dtype="float32", engine="auto")).score(task).pll_nats
    rough = Scorer(options).score(task).pll_nats
    return max(abs(one - other) for one, other in zip(exact, rough, strict=True))


def score_tasks(
    options: ScoringOptions, tasks: Iterable[Task], workers: int
) -> Generator[Scores, None, None]:
    """Score tasks in `workers` processes, each task in whichever is free; 1: in this one.

    Of several processes each has its own GPU, or all are on the CPU. The scores come in the order
    in which they are finished.

    Raises:
        ScoreError: a score is not a number, or a worker died.
    """
    waiting = iter(tasks)
    if workers <= 1:
        scorer = None
        for task in waiting:
            scorer = scorer or Scorer(options)
            yield scorer.score(task)
        return
    # Not concurrent.futures: its workers outlive a parent that is killed, hold up one that is
    # stopped until their task is done, and a dead one is reported without its exit code.
    numbered = options.device == "cuda"
    crew = dict(
        _start_worker(replace(options, device=f"cuda:{number}") if numbered else options)
        for number in range(workers)
    )
    idle, busy, answers = list(crew), list[Connection](), list[Scores]()
    try:
        while idle:
            # `idle` first: with nobody idle left, zip must not take a task and drop it.
            for connection, task in zip(idle, waiting, strict=False):
                _send(connection, task, crew)
                busy.append(connection)
            yield from answers  # once the workers have more to do
            idle = [item for item in wait(busy) if isinstance(item, Connection)] if busy else []
            busy = [connection for connection in busy if connection not in idle]
            answers = [_receive(connection, crew) for connection in idle]
    finally:
        for connection, process in crew.items():
            connection.close()
            process.terminate()
            process.join()


def _start_worker(options: ScoringOptions) -> tuple[Connection, BaseProcess]:
    # Workers are forked from a process that has imported this module, which takes seconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, options), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is seen as the end of the pipe
    return ours, process


def _work(connection: Connection, options: ScoringOptions) -> None:
    """Score what is sent until the other end is gone."""
    with ending_with_fault(), suppress(EOFError, ConnectionError, KeyboardInterrupt):
        try:
            scorer = Scorer(options)
            while True:
                connection.send(scorer.score(connection.recv()))
        except MedclipError as error:
            connection.send(error)


def _send(connection: Connection, task: Task, crew: Mapping[Connection, BaseProcess]) -> None:
    try:
        connection.send(task)
    except ConnectionError as error:
        _receive(connection, crew)  # raises what the worker said before it ended
        raise _died(crew[connection]) from error


def _receive(connection: Connection, crew: Mapping[Connection, BaseProcess]) -> Scores:
    try:
        answer = connection.recv()
    except (EOFError, ConnectionError) as error:
        raise _died(crew[connection]) from error
    if isinstance(answer, MedclipError):
        raise answer
    return cast(Scores, answer)


def _died(process: BaseProcess) -> ScoreError:
    process.join()
    return ScoreError(
        f"a scoring process ended with code {process.exitcode}; lower workers, "
        "and run again to go on"
    )
