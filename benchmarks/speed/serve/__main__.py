"""The service on one core: CPU time over the bare model and LitServe, and how it stands loads.

    python -m benchmarks.serve [--quick | --long]

Ratios are of CPU time of all processes of a server on one core, over all that it answered in a
round, medians over rounds in which the bare model, the service and LitServe take turns; who is
not being measured is stopped. The bare model is the best of batches of one and of eight over
ready tensors in PyTorch float32, in the main thread of a process with the same allocator settings.
`paper` is ResNet-18 at 480 px, `demo` the demo's model, for which a request costs several times a
forward pass; `bfloat16` is the first on OpenVINO. `--long` overloads for a minute, else it is a
tenth; `--quick` leaves out engines, and memory, which is compared between rests.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from benchmarks.record import finish, judge
from benchmarks.speed.serve.clients import (
    Answered,
    Client,
    Target,
    arrivals,
    classify_request,
    crowd,
)
from benchmarks.speed.serve.processes import PYTORCH, Engine, alone, bare, cpu_s, rival, served
from benchmarks.speed.timing import Times, cpu_ms, wall_ms
from medclip_dcl.inference.model_package import ARTIFACT
from pipelines.config import Config, load_config
from tests.support.published import publish
from tests.support.service import Process, Service

CONFIGS = {
    # random weights take as long as learned ones
    "paper": Config.model_validate({"work": "unused", "model": {"image": {"kind": "resnet18"}}}),
    "demo": load_config(Path("configs/demo.yaml")),
}
CLIENTS = 16
OVERLOAD = 4.0
ALLOWED = {200, 429, 503}
_PASSES = {1: 6, 8: 2}
"""Images in a forward pass -> passes in a round."""
_HEALTH_EVERY_S, _REST_S = 0.05, 22.0  # after such a rest a service has given memory back
_OVERLOAD_BARS = {"other": "<= 0", "goodput": ">= 0.8"}
_OVERLOAD_BARS |= {"health_p99_ms": "<= 250", "memory_mb": "<= 32"}
BARS = {
    "paper_over_bare": ">= 0.93",
    "paper_p99_over_p50": "<= 1.8",
    "paper_over_litserve": ">= 0.98",
    "bfloat16_over_bare": ">= 2.2",
    "bfloat16_over_litserve": ">= 1.05",
    **{f"{model}_overload_{key}": bar for model in CONFIGS for key, bar in _OVERLOAD_BARS.items()},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, whether or not a bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", action="store_true", help="fewer rounds")
    choice.add_argument("--long", action="store_true", help="a minute of overload")
    arguments = parser.parse_args(argv)
    quick, rounds = arguments.quick, 2 if arguments.quick else 5
    with tempfile.TemporaryDirectory() as folder:
        paper, demo = (Path(folder) / name for name in CONFIGS)
        for place, config in zip((paper, demo), CONFIGS.values(), strict=True):
            publish(ARTIFACT.at(place), config=config)
        figures = _named("paper", measure(paper, rounds, 16 if quick else 32))
        for place in (paper, demo):
            seconds = 60 if arguments.long else 6
            figures |= _named(f"{place.name}_overload", overload(place, seconds, rests=not quick))
        if not quick:
            figures |= _named("demo", measure(demo, rounds, 160))
            figures |= _named("bfloat16", measure(paper, rounds, 32, ("openvino", "bfloat16")))
    return finish("serve", figures, judge(figures, BARS))


def _named(prefix: str, figures: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in figures.items()}


def measure(folder: Path, rounds: int, images: int, engine: Engine = PYTORCH) -> dict[str, float]:
    """Measure the service on an engine, LitServe on the same, and the bare model in PyTorch.

    `folder` holds `model`; `images`, a multiple of 16, are answered in one measurement. Figures are
    ratios of medians over rounds, and what they are made of.
    """
    times: Times = {"bare": [], "serve": [], "litserve": []}
    waits: list[float] = []
    request = classify_request(512)
    with ExitStack() as stack:
        model = stack.enter_context(bare(folder / "model"))
        settings = {"batch": 8, "engine": engine[0], "precision": engine[1]}
        service = stack.enter_context(served(folder, **settings))
        other, port = stack.enter_context(rival(folder / "model", engine))
        ours = Target(*service.address, request)
        theirs = Target("127.0.0.1", port, request.replace(b"/classify", b"/predict", 1))
        servers = {"serve": service.process, "litserve": other}
        for _ in range(rounds):
            with alone("bare", servers):
                times["bare"].append(min(model.forward(*item) for item in _PASSES.items()))
            with alone("serve", servers):
                spent, seconds = load(ours, service.process, images)
            times["serve"].append(spent)
            waits += seconds
            with alone("litserve", servers):
                times["litserve"].append(load(theirs, other, images)[0])
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


def load(target: Target, server: Process, images: int) -> tuple[tuple[float, float], list[float]]:
    """Ask a server: CPU and wall seconds an image, and how long each answer took.

    Wall time is that between two marks, while all clients were asking. CPU is of all answers:
    between marks, what is under way at each of them would count, and an image of 101 ms came out
    at 101 to 118. `server` is its first process. RuntimeError where an answer was not 200.
    """
    marks: dict[int, float] = {}

    def mark(answers: int) -> None:
        if answers in {CLIENTS, CLIENTS + images}:
            marks[answers] = time.perf_counter()

    begun = cpu_s(server)
    reported = asyncio.run(crowd(target, CLIENTS, images + 2 * CLIENTS, mark))
    if set(reported.statuses) != {200}:
        raise RuntimeError(f"answers by status: {reported.statuses}")
    cpu = (cpu_s(server) - begun) / len(reported.seconds)
    wall = (marks[CLIENTS + images] - marks[CLIENTS]) / images
    return (cpu, wall), reported.seconds[CLIENTS : CLIENTS + images]


def overload(folder: Path, seconds: float, *, rests: bool) -> dict[str, float]:
    """Ask four times what a service can answer, at a fixed rate; `folder` holds `model`.

    `rests`: memory is compared between rests before and after.
    """
    with served(folder) as service:
        return asyncio.run(_overload(service, seconds, rests=rests))


async def _overload(service: Service, seconds: float, *, rests: bool) -> dict[str, float]:
    target = Target(*service.address, classify_request())
    await crowd(target, CLIENTS, 3 * CLIENTS)  # every buffer has been used once
    started = time.perf_counter()
    await crowd(target, CLIENTS, 6 * CLIENTS)
    capacity = 6 * CLIENTS / (time.perf_counter() - started)
    await asyncio.sleep(_REST_S if rests else 1)
    before_mb, before_files = service.resident_mb(), _open_files(service)
    watching = asyncio.ensure_future(_watch(service))
    started = time.perf_counter()
    reported = await arrivals(target, OVERLOAD * capacity, seconds)
    took = time.perf_counter() - started
    watching.cancel()
    health = await watching
    await asyncio.sleep(_REST_S if rests else 1)
    memory = {"memory_mb": service.resident_mb() - before_mb} if rests else {}
    answered = reported.statuses.get(200, 0)
    return {
        **memory,
        "capacity_per_s": capacity,
        "requests": sum(reported.statuses.values()),
        "answered": answered,
        "other": sum(n for code, n in reported.statuses.items() if code not in ALLOWED),
        "goodput": answered / took / capacity,
        "p99_s": reported.p99_s,
        "health_p99_ms": 1e3 * health.p99_s,
        "health_failures": sum(health.statuses.values()) - health.statuses.get(200, 0),
        "open_files": _open_files(service) - before_files,
    }


async def _watch(service: Service) -> Answered:
    """Look at its health at a steady rate until cancelled."""
    request = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    answered, client = Answered(), Client(Target(*service.address, request))
    with suppress(asyncio.CancelledError):
        while True:
            await client.ask(answered)
            await asyncio.sleep(_HEALTH_EVERY_S)
    client.close()
    return answered


def _open_files(service: Service) -> int:
    return len(os.listdir(f"/proc/{service.process.pid}/fd"))  # noqa: PTH208


if __name__ == "__main__":
    sys.exit(main())
