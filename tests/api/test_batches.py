import asyncio
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from api.batches import Batches
from api.failures import Refusal
from api.journal import Figures
from medclip_dcl.inference.predictor import Predictor, load
from tests.api.test_admission import Caller
from tests.synthetic.films import random_films
from tests.synthetic.published import publish

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    publish(tmp_path_factory.mktemp("model") / "model")
    return load(tmp_path_factory.getbasetemp() / "model0/model", "cpu")


def held(batches: Batches) -> tuple[asyncio.Future[None], threading.Event]:
    """Keep the model busy until the event is set."""
    go = threading.Event()
    return asyncio.ensure_future(batches.run(lambda: go.wait(10) and None)), go


def films_in_batches(figures: Figures) -> tuple[float, float]:
    """Forward passes and films in them."""
    get: Callable[[str], float | None] = figures.registry.get_sample_value
    return get("medclip_batch_films_count") or 0, get("medclip_batch_films_sum") or 0


def test_films_in_company_are_answered_as_alone(predictor: Predictor) -> None:
    films, figures = random_films(11), Figures()

    async def ask() -> list[Tensor]:
        batches = Batches(8, figures)
        _, go = held(batches)
        asked = [
            asyncio.ensure_future(batches.ask_about(Caller(), predictor, film, torch.clone))
            for film in films
        ]
        await asyncio.sleep(0.05)
        go.set()
        return list(await asyncio.gather(*asked))

    found = asyncio.run(ask())
    assert films_in_batches(figures) == (2, 11)  # eight, then three
    for film, regions in zip(films, found, strict=True):
        alone = predictor.embed_images(film[None])[0]
        torch.testing.assert_close(regions, alone, atol=TOLERANCE, rtol=0)
        (here,), (there,) = (predictor.classify_regions(part[None]) for part in (regions, alone))
        assert [item.score for item in here] == pytest.approx(
            [item.score for item in there], abs=TOLERANCE
        )


def test_what_films_ask_alike_is_made_of_all_of_them_at_once(predictor: Predictor) -> None:
    films, sizes = random_films(6), []

    def classified(regions: Tensor) -> list[list[float]]:
        sizes.append(len(regions))
        found = predictor.classify_regions(regions)
        return [[item.score for item in scores] for scores in found]

    async def ask() -> list[list[float]]:
        batches = Batches(8, Figures())
        _, go = held(batches)
        asked = [
            asyncio.ensure_future(
                batches.ask_about(
                    Caller(),
                    predictor,
                    film,
                    list if row % 2 else lambda regions: classified(regions[None])[0],
                    together=classified if row % 2 else None,
                )
            )
            for row, film in enumerate(films)
        ]
        await asyncio.sleep(0.05)
        go.set()
        return list(await asyncio.gather(*asked))

    found = asyncio.run(ask())
    assert sorted(sizes) == [1, 1, 1, 3]
    for film, scores in zip(films, found, strict=True):
        (alone,) = predictor.classify_regions(predictor.embed_images(film[None]))
        assert scores == pytest.approx([item.score for item in alone], abs=TOLERANCE)


def test_nothing_is_computed_for_the_late_and_the_gone(predictor: Predictor) -> None:
    film, figures = random_films(1)[0], Figures()

    async def ask() -> list[object]:
        batches = Batches(8, figures)
        _, go = held(batches)
        leaving, late, staying = Caller(), Caller(left_s=0.1), Caller()
        asked = [
            asyncio.ensure_future(batches.ask_about(caller, predictor, film, lambda _: "answer"))
            for caller in (leaving, late, staying)
        ]
        await asyncio.sleep(0.02)
        leaving.left.set()
        await asyncio.wait(asked[:2], timeout=5)  # told at once, while the model is busy
        assert [task.done() for task in asked] == [True, True, False]
        go.set()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    gone, late, answer = asyncio.run(ask())
    assert (gone.code, late.code, answer) == ("client_gone", "deadline", "answer")
    assert films_in_batches(figures) == (1, 1)


def test_a_fault_of_one_question_is_told_to_it_alone(predictor: Predictor) -> None:
    film = random_films(1)[0]

    def fail(_regions: Tensor) -> None:
        raise ZeroDivisionError

    async def ask() -> list[object]:
        batches = Batches(8, Figures())
        _, go = held(batches)
        asked = [
            asyncio.ensure_future(batches.ask_about(Caller(), predictor, film, answer))
            for answer in (fail, lambda _: "fine")
        ]
        await asyncio.sleep(0.02)
        go.set()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    fault, fine = asyncio.run(ask())
    assert isinstance(fault, ZeroDivisionError)
    assert fine == "fine"


class Cramped:
    """A model whose device holds so many films and no more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def embed_images(self, films: np.ndarray) -> Tensor:
        if len(films) > self.room:
            raise torch.OutOfMemoryError
        return torch.zeros(len(films))


@pytest.mark.parametrize(("room", "answers"), [(1, ["fine"] * 3), (0, ["out_of_memory"] * 3)])
def test_a_batch_that_does_not_fit_is_tried_film_by_film(room: int, answers: list[str]) -> None:
    film, model = random_films(1)[0], Cramped(room)

    async def ask() -> list[object]:
        batches = Batches(8, Figures())
        _, go = held(batches)
        asked = [
            asyncio.ensure_future(batches.ask_about(Caller(), model, film, lambda _: "fine"))
            for _ in range(3)
        ]
        await asyncio.sleep(0.02)
        go.set()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    told = asyncio.run(ask())
    assert [item.code if isinstance(item, Refusal) else item for item in told] == answers


def test_two_models_share_no_forward_pass(predictor: Predictor) -> None:
    film, figures = random_films(1)[0], Figures()

    async def ask() -> list[str]:
        batches = Batches(8, figures)
        _, go = held(batches)
        asked = [
            asyncio.ensure_future(
                batches.ask_about(Caller(), model, film, lambda _, model=model: id(model))
            )
            for model in (predictor, predictor, other, predictor)
        ]
        await asyncio.sleep(0.02)
        go.set()
        return list(await asyncio.gather(*asked))

    other = Cramped(8)
    assert asyncio.run(ask()) == [id(item) for item in (predictor, predictor, other, predictor)]
    assert films_in_batches(figures) == (3, 4)


def test_a_film_that_comes_alone_does_not_wait_for_others(predictor: Predictor) -> None:
    async def ask() -> float:
        batches, film = Batches(8, Figures()), random_films(1)[0]
        await batches.ask_about(Caller(), predictor, film, lambda _: None)
        seconds = []
        for _ in range(5):
            caller, started = Caller(), time.monotonic()
            await batches.ask_about(caller, predictor, film, lambda _: None)
            seconds.append(time.monotonic() - started - caller.state.timings["model"] / 1e3)
        return min(seconds)

    assert asyncio.run(ask()) < 0.02
