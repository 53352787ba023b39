"""Images a second of the service over those of the bare model and of LitServe, in turn."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.fixtures.dicom import dicom_bytes, raster_bytes
from benchmarks.fixtures.films import random_images
from benchmarks.fixtures.service import Process
from benchmarks.speed.prepare import COLUMNS, ROWS, draw_image
from benchmarks.speed.serve.clients import Target, crowd, form_request
from benchmarks.speed.serve.processes import Bare, bare, cpu_s, rival, served, stopped, target_of

CLIENTS = 16
_PASSES = {1: 6, 8: 2}
"""Images in a forward pass -> passes in a round."""


@dataclass(frozen=True)
class Load:
    """What clients measured between two marks, while all of them were asking."""

    cpu_ms: float
    """CPU milliseconds of all processes of the server, an image."""
    wall_ms: float
    """Wall milliseconds, an image."""
    seconds: Sequence[float]
    """How long each answer took."""


def measure(folder: Path, rounds: int, images: int) -> dict[str, float]:
    """Measure a model bare, behind the service and behind LitServe, in turn.

    `folder` holds `model`; `images`, a multiple of 16, are answered in one measurement. Gives
    ratios of medians over rounds, and what they are made of.
    """
    pixels = random_images(1, size_px=512, seed=1)[0]
    small = form_request("/classify", raster_bytes(pixels, "jpeg", quality=90))
    path = folder / "image.dcm"
    path.write_bytes(full_size_dicom())
    large = form_request("/classify", path.read_bytes())
    times: dict[str, list[float]] = {}
    waits: list[float] = []
    with ExitStack() as stack:
        model = stack.enter_context(bare(folder / "model"))
        service = stack.enter_context(served(folder, batch=8))
        other, port = stack.enter_context(rival(folder / "model"))
        theirs = Target("127.0.0.1", port, small.replace(b"/classify", b"/predict", 1))
        for _ in range(rounds):
            with stopped(other):
                with stopped(service.process):
                    _note(times, "bare", best_forward(model))
                    _note(times, "decode", model.ask("decode", path, 3))
                ours = load(target_of(service, small), service.process, CLIENTS, images)
                whole = load(target_of(service, large), service.process, 8, images // 2)
            with stopped(service.process):
                reply = load(theirs, other, CLIENTS, images)
            _note(times, "serve", {"cpu_ms": ours.cpu_ms, "wall_ms": ours.wall_ms})
            _note(times, "serve_dicom", {"cpu_ms": whole.cpu_ms, "wall_ms": whole.wall_ms})
            _note(times, "litserve", {"cpu_ms": reply.cpu_ms, "wall_ms": reply.wall_ms})
            waits += ours.seconds
    return _ratios(times, waits)


def layouts(model: Path) -> dict[str, float]:
    """Measure forward passes of eight by allocator and thread, in turn: median CPU ms an image."""
    times: dict[str, list[float]] = {}
    with bare(model) as kept, bare(model, {}) as default:
        for _ in range(3):
            for allocator, process in (("kept", kept), ("default", default)):
                for what in ("forward", "forward_in_thread"):
                    reply = process.ask(what, 8, 2)
                    times.setdefault(f"{what}_{allocator}_memory_cpu_ms", []).append(
                        reply["cpu_ms"]
                    )
    return {name: statistics.median(values) for name, values in times.items()}


def load(target: Target, server: Process, clients: int, images: int) -> Load:
    """Ask a server and take the times between two marks, while all clients were asking.

    `server` is its first process. RuntimeError where an answer was not 200.
    """
    marks: dict[int, tuple[float, float]] = {}

    def mark(answers: int) -> None:
        if answers in {clients, clients + images}:
            marks[answers] = cpu_s(server), time.perf_counter()

    reported = asyncio.run(crowd(target, clients, images + 2 * clients, mark))
    if set(reported.statuses) != {200}:
        raise RuntimeError(f"answers by status: {reported.statuses}")
    (cpu, wall), (cpu_end, wall_end) = (marks[count] for count in (clients, clients + images))
    return Load(
        1e3 * (cpu_end - cpu) / images,
        1e3 * (wall_end - wall) / images,
        reported.seconds[clients : clients + images],
    )


def full_size_dicom() -> bytes:
    """Make a 16-bit image of 3000 x 2500 pixels."""
    words = np.rint(draw_image(0) * np.iinfo(np.uint16).max).astype(np.uint16)
    assert words.shape == (ROWS, COLUMNS)
    return dicom_bytes(words, bits_stored=16)


def best_forward(model: Bare) -> dict[str, float]:
    """Measure forward passes of one image and of eight: CPU and wall ms of the better one."""
    reply = [model.ask("forward", images, passes) for images, passes in _PASSES.items()]
    return min(reply, key=lambda times: times["cpu_ms"])


def _note(times: dict[str, list[float]], name: str, reported: dict[str, float]) -> None:
    for unit, value in reported.items():
        times.setdefault(f"{name}_{unit}", []).append(value)


def _ratios(times: dict[str, list[float]], waits: Sequence[float]) -> dict[str, float]:
    mid = {name: statistics.median(values) for name, values in times.items()}
    p50, p99 = (float(np.quantile(waits, share)) for share in (0.5, 0.99))
    figures = {
        "over_bare": mid["bare_cpu_ms"] / mid["serve_cpu_ms"],
        "over_bare_wall": mid["bare_wall_ms"] / mid["serve_wall_ms"],
        "over_litserve": mid["litserve_cpu_ms"] / mid["serve_cpu_ms"],
        "over_litserve_wall": mid["litserve_wall_ms"] / mid["serve_wall_ms"],
        "dicom_over_decode_and_forward": (mid["decode_cpu_ms"] + mid["bare_cpu_ms"])
        / mid["serve_dicom_cpu_ms"],
        "p99_over_p50": p99 / p50,
        "p50_ms": 1e3 * p50,
    }
    return figures | mid
