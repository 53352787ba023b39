"""CPU time an image of the service over that of the bare model and of LitServe, in turn.

Whoever is not being measured is stopped. `folder` holds `model`; `images`, a multiple of 16, are
answered in one measurement. Figures are ratios of medians over rounds, and what they are made of.
"""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.speed.serve.clients import Target, classify_request, crowd
from benchmarks.speed.serve.processes import (
    PYTORCH,
    Bare,
    Engine,
    alone,
    bare,
    cpu_s,
    rival,
    served,
    target_of,
)
from benchmarks.speed.timing import Times, cpu_ms, wall_ms
from tests.support.service import Process

CLIENTS = 16
_PASSES = {1: 6, 8: 2}
"""Images in a forward pass -> passes in a round."""


def measure(folder: Path, rounds: int, images: int, engine: Engine = PYTORCH) -> dict[str, float]:
    """Measure the service on an engine, LitServe on the same, and the bare model in PyTorch."""
    times: Times = {}
    waits: list[float] = []
    request = classify_request(512)
    with ExitStack() as stack:
        model = stack.enter_context(bare(folder / "model"))
        name, precision = engine
        settings = {"batch": 8, "engine": name, "precision": precision}
        service = stack.enter_context(served(folder, **settings))
        other, port = stack.enter_context(rival(folder / "model", engine))
        theirs = Target("127.0.0.1", port, request.replace(b"/classify", b"/predict", 1))
        servers = {"serve": service.process, "litserve": other}
        for _ in range(rounds):
            with alone("bare", servers):
                times.setdefault("bare", []).append(best_forward(model))
            with alone("serve", servers):
                spent, seconds = load(target_of(service, request), service.process, images)
            times.setdefault("serve", []).append(spent)
            waits += seconds
            with alone("litserve", servers):
                times.setdefault("litserve", []).append(load(theirs, other, images)[0])
    cpu = {name: cpu_ms(times, name) for name in times}
    p50, p99 = (float(np.quantile(waits, share)) for share in (0.5, 0.99))
    return {
        "over_bare": cpu["bare"] / cpu["serve"],
        "over_litserve": cpu["litserve"] / cpu["serve"],
        "p99_over_p50": p99 / p50,
        "p50_ms": 1e3 * p50,
        **{f"{name}_cpu_ms": value for name, value in cpu.items()},
        **{f"{name}_wall_ms": wall_ms(times, name) for name in times},
    }


def load(
    target: Target, server: Process, images: int, clients: int = CLIENTS
) -> tuple[tuple[float, float], list[float]]:
    """Ask a server: CPU and wall seconds an image, and how long each answer took.

    Wall time is that between two marks, while all clients were asking. CPU is of all answers:
    between marks, what is under way at each of them would count, and an image of 101 ms came out
    at 101 to 118. `server` is its first process. RuntimeError where an answer was not 200.
    """
    marks: dict[int, float] = {}

    def mark(answers: int) -> None:
        if answers in {clients, clients + images}:
            marks[answers] = time.perf_counter()

    begun = cpu_s(server)
    reported = asyncio.run(crowd(target, clients, images + 2 * clients, mark))
    if set(reported.statuses) != {200}:
        raise RuntimeError(f"answers by status: {reported.statuses}")
    cpu = (cpu_s(server) - begun) / len(reported.seconds)
    wall = (marks[clients + images] - marks[clients]) / images
    return (cpu, wall), reported.seconds[clients : clients + images]


def best_forward(model: Bare) -> tuple[float, float]:
    """Measure forward passes of one image and of eight: CPU and wall seconds of the better one."""
    return min(model.forward(images, passes) for images, passes in _PASSES.items())
