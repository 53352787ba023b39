"""The one queue to the model: films that wait while it is busy share its next forward pass.

One thread owns the device. It takes waiting questions in the order of asking, at most so many
that one forward pass may hold, encodes their films together and answers one after another.
Nobody waits for a batch to fill. A question whose deadline has passed or whose client has left
is taken out before it costs anything.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from fastapi import Request
from torch import Tensor

from api.admission import has_left, outcome
from api.failures import Refusal
from api.journal import Figures
from medclip_dcl.inference.predictor import Predictor

_Answer = TypeVar("_Answer")
_Square = npt.NDArray[np.uint8]
_Told = tuple[Any, BaseException | None]


@dataclass(eq=False)
class _Question:
    model: Predictor | None
    film: _Square | None
    answer: Callable[[Any], Any]
    deadline: float
    told: "asyncio.Future[Any]"
    together: Callable[[Tensor], Sequence[Any]] | None = None
    begun: float | None = None


class Batches:
    """The queue to the model.

    Args:
        most: films in one forward pass.
        figures: Prometheus figures.
    """

    def __init__(self, most: int, figures: Figures) -> None:
        self._most = most
        self._figures = figures
        self._waiting: deque[_Question] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    async def ask_about(
        self,
        request: Request,
        model: Predictor,
        film: _Square,
        answer: Callable[[Any], _Answer],
        together: Callable[[Tensor], Sequence[Any]] | None = None,
    ) -> _Answer:
        """Ask the model about a film, in turn.

        Args:
            request: on whose behalf; `request.state.deadline` is its deadline on the
                monotonic clock, seconds; `request.state.timings` is added to.
            model: who is asked; films of different models share no forward pass.
            film: the prepared film.
            answer: makes the answer of the film's regions, (rows, columns, dim) on the model's
                device; called in the model's thread.
            together: made first of all films of a forward pass for which the same is given,
                (films, rows, columns, dim); `answer` gets the film's own part of what it gives.

        Returns:
            The answer.

        Raises:
            Refusal: the deadline passed or the client left before the forward pass, or the
                device has no memory for it.
        """
        return await self._asked(request, model, film, answer, together)

    async def ask(self, request: Request, answer: Callable[[], _Answer]) -> _Answer:
        """Ask something that is about no film, in turn.

        Args:
            request: as for `ask_about`.
            answer: makes the answer; called in the model's thread.

        Returns:
            The answer.

        Raises:
            Refusal: as for `ask_about`.
        """
        return await self._asked(request, None, None, lambda _none: answer())

    async def run(self, work: Callable[[], _Answer]) -> _Answer:
        """Run something else in the model's thread, in turn.

        Args:
            work: what to do.

        Returns:
            What it returns.
        """
        told = asyncio.get_running_loop().create_future()
        self._append(_Question(None, None, lambda _none: work(), float("inf"), told))
        done: _Answer = await told
        return done

    def close(self) -> None:
        """End the thread once its batch is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    async def _asked(
        self,
        request: Request,
        model: Predictor | None,
        film: _Square | None,
        answer: Callable[[Any], _Answer],
        together: Callable[[Tensor], Sequence[Any]] | None = None,
    ) -> _Answer:
        if await has_left(request):
            raise Refusal("client_gone")
        told = asyncio.get_running_loop().create_future()
        question = _Question(model, film, answer, request.state.deadline, told, together)
        asked = time.monotonic()
        self._append(question)
        try:
            reason = await outcome(request, told)
            if reason is not None and self._withdraw(question):
                raise Refusal(reason)
            given: _Answer = await told  # what has begun is not undone
            return given
        finally:
            self._withdraw(question)
            self._note(request.state.timings, asked, question.begun)

    def _note(self, timings: dict[str, float], asked: float, begun: float | None) -> None:
        now = time.monotonic()
        self._figures.note(timings, "model_wait", (now if begun is None else begun) - asked)
        if begun is not None:
            self._figures.note(timings, "model", now - begun)

    def _append(self, question: _Question) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="model", daemon=True)
                self._thread.start()
            self._waiting.append(question)
            self._figures.waiting.set(len(self._waiting))
            self._changed.notify()

    def _withdraw(self, question: _Question) -> bool:
        """Take a question out; whether it was still waiting."""
        with self._changed:
            if question not in self._waiting:
                return False
            self._waiting.remove(question)
            self._figures.waiting.set(len(self._waiting))
            return True

    def _work(self) -> None:
        while batch := self._next():
            films = sum(question.film is not None for question in batch)
            if films:
                self._figures.batch_films.observe(films)
            _tell(batch, _answers(batch))

    def _next(self) -> list[_Question]:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return []
            batch = [self._waiting.popleft()]
            while self._waiting and len(batch) < self._most:
                if self._waiting[0].model is not batch[0].model:
                    break
                batch.append(self._waiting.popleft())
            self._figures.waiting.set(len(self._waiting))
        begun = time.monotonic()
        for question in batch:
            question.begun = begun
        return batch


def _answers(batch: Sequence[_Question]) -> list[_Told]:
    """Answer a batch; what goes wrong with one question leaves the others alone."""
    now = time.monotonic()
    in_time = [question for question in batch if question.deadline > now]
    try:
        parts = _parts([question for question in in_time if question.film is not None])
        answered = {question: _answer(question, parts.get(question)) for question in in_time}
    except (torch.OutOfMemoryError, MemoryError) as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(batch) > 1:  # less may still fit
            return [told for question in batch for told in _answers([question])]
        answered = {batch[0]: (None, _refusal("out_of_memory", error))}
    except Exception as error:  # noqa: BLE001 (each of them is told, the thread lives on)
        answered = dict.fromkeys(in_time, (None, error))
    return [answered.get(question, (None, Refusal("deadline"))) for question in batch]


def _parts(asking: Sequence[_Question]) -> dict[_Question, Any]:
    """Encode films in one forward pass: what the answer to each question is made of."""
    films = [question.film for question in asking if question.film is not None]
    model = asking[0].model if asking else None
    if model is None:
        return {}
    regions = model.embed_images(np.stack(films))
    parts: dict[_Question, Any] = dict(zip(asking, regions, strict=True))
    for together in {question.together for question in asking if question.together}:
        rows = [row for row, question in enumerate(asking) if question.together == together]
        for row, part in zip(rows, together(regions[rows]), strict=True):
            parts[asking[row]] = part
    return parts


def _answer(question: _Question, own: Any) -> _Told:
    try:
        return question.answer(own), None
    except (torch.OutOfMemoryError, MemoryError) as error:
        return None, _refusal("out_of_memory", error)
    except Exception as error:  # noqa: BLE001 (the one who asked is told)
        return None, error


def _refusal(code: str, cause: BaseException) -> Refusal:
    refusal = Refusal(code)
    refusal.__cause__ = cause
    return refusal


def _tell(batch: Sequence[_Question], answers: Sequence[_Told]) -> None:
    """Hand answers to the event loop that waits for them."""

    def tell() -> None:
        for question, (answer, error) in zip(batch, answers, strict=True):
            if question.told.done():
                continue
            if error is None:
                question.told.set_result(answer)
            else:
                question.told.set_exception(error)

    try:
        batch[0].told.get_loop().call_soon_threadsafe(tell)
    except RuntimeError:  # the loop has ended, and nobody waits
        return
