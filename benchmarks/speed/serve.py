"""The service on one core: CPU time over the bare model, and how it stands four times its capacity.

    python -m benchmarks.serve [--quick | --long]

The ratio is of CPU time of all processes of the service, over all that it answered in a round, to
that of the bare model: the best of batches of one and of eight over ready tensors in this process.
Medians over rounds in which both take turns. `paper` is ResNet-18 at 480 px, `demo` the demo's
model, for which a request costs several times a forward pass. `--long` overloads for a minute, else
it is a tenth; `--quick` leaves out memory, which is compared between rests.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import psutil
import torch

from api.memory import keep_memory
from benchmarks.record import finish, judge
from medclip_dcl.core.progress import available_cores
from medclip_dcl.inference.model_package import ARTIFACT
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.models.image_encoder import to_input
from pipelines.config import Config, load_config
from tests.support.dicom import raster_bytes
from tests.support.processes import cpu_s
from tests.support.published import publish
from tests.support.service import PATIENCE_S, Service, running
from tests.support.tiny_models import random_images

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
    **{f"{model}_overload_{key}": bar for model in CONFIGS for key, bar in _OVERLOAD_BARS.items()},
}


@dataclass
class Answered:
    """What clients were answered."""

    statuses: Counter[int] = field(default_factory=Counter)
    """How often each status was given; 0: no answer came."""
    seconds: list[float] = field(default_factory=list)
    """How long each answer of 200 took, in the order of their ends."""

    def within_s(self, share: float) -> float:
        """Return the time within which a share was answered."""
        return float(np.quantile(self.seconds, share)) if self.seconds else float("inf")


class Clients:
    """Clients of one service; a question is a square JPEG to /classify."""

    def __init__(self, url: str, size_px: int = 256) -> None:
        pixels = random_images(1, size_px=size_px, seed=1)[0]
        files = {"image": ("image", raster_bytes(pixels, "jpeg", quality=90))}
        encoded = httpx.Request("POST", url, files=files)
        self._body, self._kind = encoded.read(), encoded.headers["Content-Type"]
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self.http = httpx.AsyncClient(
            base_url=url, trust_env=False, limits=limits, timeout=PATIENCE_S
        )

    async def ask(self, answered: Answered) -> None:
        """Ask once and note the answer; status 0 where none came."""
        started, status = time.perf_counter(), 0
        with contextlib.suppress(httpx.TransportError):
            headers = {"Content-Type": self._kind}
            answer = await self.http.post("/classify", content=self._body, headers=headers)
            status = answer.status_code
        answered.statuses[status] += 1
        if status == httpx.codes.OK:
            answered.seconds.append(time.perf_counter() - started)

    async def crowd(self, requests: int) -> Answered:
        """Let `CLIENTS` ask again and again, each as soon as it has been answered."""
        answered, left = Answered(), iter(range(requests))

        async def one() -> None:
            for _ in left:
                await self.ask(answered)

        await asyncio.gather(*(one() for _ in range(CLIENTS)))
        return answered

    async def arrivals(self, per_second: float, seconds: float) -> Answered:
        """Let requests arrive at a fixed rate, whether or not earlier ones have been answered."""
        answered, started = Answered(), time.perf_counter()
        async with asyncio.TaskGroup() as under_way:
            for number in range(int(per_second * seconds)):
                await asyncio.sleep(max(0.0, started + number / per_second - time.perf_counter()))
                under_way.create_task(self.ask(answered))
        return answered

    async def watch_health(self) -> list[float]:
        """Look at the service's health at a steady rate until cancelled; seconds of each answer."""
        waits: list[float] = []
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                started = time.perf_counter()
                (await self.http.get("/health")).raise_for_status()
                waits.append(time.perf_counter() - started)
                await asyncio.sleep(_HEALTH_EVERY_S)
        return waits


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, whether or not a bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", action="store_true", help="fewer rounds")
    choice.add_argument("--long", action="store_true", help="a minute of overload")
    arguments = parser.parse_args(argv)
    keep_memory()  # of the bare model, as the service does
    torch.set_num_threads(1)
    rounds, seconds = 2 if arguments.quick else 5, 60 if arguments.long else 6
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as base:
        for name, config in CONFIGS.items():
            folder = Path(base) / name
            publish(ARTIFACT.at(folder), config=config)
            with _served(folder) as service:
                found = measure(folder, service, rounds, images=32 if name == "paper" else 160)
                figures |= {f"{name}_{key}": value for key, value in found.items()}
            with _served(folder) as service:
                found = asyncio.run(overload(service, seconds, rests=not arguments.quick))
                figures |= {f"{name}_overload_{key}": value for key, value in found.items()}
    return finish("serve", figures, judge(figures, BARS))


def measure(folder: Path, service: Service, rounds: int, images: int) -> dict[str, float]:
    """Measure the service and its model without it, one after the other in each round.

    RuntimeError where an answer was not 200.
    """
    model = load(ARTIFACT.at(folder), "cpu")
    bare: list[float] = []
    served: list[float] = []
    waits = Answered()
    for _ in range(rounds):
        bare.append(min(_forward_s(model, *item) for item in _PASSES.items()))
        before = _tree_cpu_s(service)
        answered = asyncio.run(Clients(service.url, 512).crowd(images + 2 * CLIENTS))
        if set(answered.statuses) != {200}:
            raise RuntimeError(f"answers by status: {answered.statuses}")
        served.append((_tree_cpu_s(service) - before) / len(answered.seconds))
        waits.seconds += answered.seconds[CLIENTS : CLIENTS + images]
    bare_s, served_s = statistics.median(bare), statistics.median(served)
    p50_s, p99_s = waits.within_s(0.5), waits.within_s(0.99)
    return {
        "over_bare": bare_s / served_s,
        "p99_over_p50": p99_s / p50_s,
        "p50_ms": 1e3 * p50_s,
        "bare_cpu_ms": 1e3 * bare_s,
        "serve_cpu_ms": 1e3 * served_s,
    }


async def overload(service: Service, seconds: float, *, rests: bool) -> dict[str, float]:
    """Ask four times what a service can answer, at a fixed rate.

    `rests`: memory is compared between rests before and after.
    """
    clients = Clients(service.url)
    await clients.crowd(3 * CLIENTS)  # every buffer has been used once
    started = time.perf_counter()
    await clients.crowd(6 * CLIENTS)
    capacity = 6 * CLIENTS / (time.perf_counter() - started)
    await asyncio.sleep(_REST_S if rests else 1)
    before_mb = service.resident_mb()
    watching = asyncio.ensure_future(clients.watch_health())
    started = time.perf_counter()
    answered = await clients.arrivals(OVERLOAD * capacity, seconds)
    took = time.perf_counter() - started
    watching.cancel()
    health = await watching
    await asyncio.sleep(_REST_S if rests else 1)
    memory = {"memory_mb": service.resident_mb() - before_mb} if rests else {}
    return {
        **memory,
        "capacity_per_s": capacity,
        "requests": answered.statuses.total(),
        "answered": answered.statuses[200],
        "other": sum(n for code, n in answered.statuses.items() if code not in ALLOWED),
        "goodput": answered.statuses[200] / took / capacity,
        "p99_s": answered.within_s(0.99),
        "health_p99_ms": 1e3 * float(np.quantile(health, 0.99)),
    }


def _forward_s(model: Predictor, images: int, passes: int) -> float:
    """Return the median CPU seconds an image of forward passes, after one to warm up."""
    size = model.config.images.size_px
    pixels = np.random.default_rng(0).integers(0, 256, (images, size, size)).astype(np.uint8)
    ready = to_input(pixels, model.config.model.image.input_px)
    ready = ready.contiguous(memory_format=torch.channels_last)
    seconds: list[float] = []
    for _ in range(passes + 1):
        started = time.thread_time()
        with torch.inference_mode():
            model.engine.encode_images(ready)
        seconds.append(time.thread_time() - started)
    return statistics.median(seconds[1:]) / images


def _tree_cpu_s(service: Service) -> float:
    """Sum the CPU seconds of a service and its workers since each of them began."""
    first, spent = psutil.Process(service.process.pid), 0.0
    for item in (first, *first.children(recursive=True)):
        with contextlib.suppress(OSError):  # it has ended
            spent += cpu_s(item.pid)
    return spent


@contextmanager
def _served(folder: Path) -> Iterator[Service]:
    """Run the service on the first core, this process on the others, if there are any."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    is_apart = available_cores() > 1 and len(cores) > 1
    if is_apart:
        os.sched_setaffinity(0, cores[:1])
    with running(folder, index="", threads=1, batch=8) as service:
        if is_apart:
            os.sched_setaffinity(0, cores[1:])
        try:
            yield service
        finally:
            if is_apart:
                os.sched_setaffinity(0, cores)


if __name__ == "__main__":
    sys.exit(main())
