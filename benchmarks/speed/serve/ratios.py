"""Images a second of the service over those of the bare model and of LitServe, in turn.

Whoever is not being measured is stopped. `folder` holds `model`; `images`, a multiple of 16, are
answered in one measurement. Figures are ratios of medians over rounds, and what they are made of.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.speed.prepare import COLUMNS, ROWS, draw_image
from benchmarks.speed.serve.clients import Target, classify_request, crowd, form_request
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
from testing.dicom import dicom_bytes
from testing.service import Process, Service

CLIENTS = 16
FLOAT32: Engine = ("openvino", "float32")
BFLOAT16: Engine = ("openvino", "bfloat16")
_PASSES = {1: 6, 8: 2}
"""Images in a forward pass -> passes in a round."""


@dataclass(frozen=True)
class Load:
    """What clients measured."""

    cpu_ms: float
    """CPU milliseconds of all processes of the server, an image, from first to last."""
    wall_ms: float
    """Wall milliseconds, an image, while all clients were asking."""
    seconds: Sequence[float]
    """How long each answer took meanwhile."""


def _note(times: Times, name: str, cpu_ms: float, wall_ms: float, **_more: object) -> None:
    times.setdefault(name, []).append((cpu_ms / 1e3, wall_ms / 1e3))


def _cpu_ms(times: Times) -> dict[str, float]:
    """Medians by contestant."""
    return {name: cpu_ms(times, name) for name in times}


def measure(folder: Path, rounds: int, images: int) -> dict[str, float]:
    """Measure a model bare, behind the service and behind LitServe, in PyTorch."""
    times: Times = {}
    waits: list[float] = []
    with ExitStack() as stack:
        model = stack.enter_context(bare(folder / "model"))
        service = stack.enter_context(served(folder, batch=8))
        others = {"litserve": stack.enter_context(rival(folder / "model"))}
        for _ in range(rounds):
            waits += _round(times, model, service, others, images)
    cpu, wall = _cpu_ms(times), {name: wall_ms(times, name) for name in times}
    p50, p99 = (float(np.quantile(waits, share)) for share in (0.5, 0.99))
    return {
        "over_bare": cpu["bare"] / cpu["serve"],
        "over_bare_wall": wall["bare"] / wall["serve"],
        "over_litserve": cpu["litserve"] / cpu["serve"],
        "over_litserve_wall": wall["litserve"] / wall["serve"],
        "p99_over_p50": p99 / p50,
        "p50_ms": 1e3 * p50,
        **{f"{name}_cpu_ms": value for name, value in cpu.items()},
        **{f"{name}_wall_ms": value for name, value in wall.items()},
    }


def engine_over_rivals(folder: Path, rounds: int, images: int) -> dict[str, float]:
    """Measure the service with OpenVINO, and LitServe with the same engine and with PyTorch."""
    times: Times = {}
    with ExitStack() as stack:
        model = stack.enter_context(bare(folder / "model", engine=FLOAT32))
        service = stack.enter_context(_served(folder, FLOAT32))
        others = {
            name: stack.enter_context(rival(folder / "model", engine))
            for name, engine in (("same_engine", FLOAT32), ("pytorch", PYTORCH))
        }
        for _ in range(rounds):
            _round(times, model, service, others, images)
    cpu = _cpu_ms(times)
    return {
        "over_litserve_pytorch": cpu["pytorch"] / cpu["serve"],
        "over_litserve_same_engine": cpu["same_engine"] / cpu["serve"],
        "rivals_ours_cpu_ms": cpu["serve"],
        **{f"rivals_{name}_cpu_ms": cpu[name] for name in others},
    }


def engine_over_bare(folder: Path, rounds: int, images: int) -> dict[str, float]:
    """Measure the service with OpenVINO in float32 and bfloat16, and the bare model in PyTorch."""
    times: Times = {}
    with ExitStack() as stack:
        model = stack.enter_context(bare(folder / "model"))
        services = {
            name: stack.enter_context(_served(folder, engine))
            for name, engine in (("float32", FLOAT32), ("bf16", BFLOAT16))
        }
        servers = {name: service.process for name, service in services.items()}
        for _ in range(rounds):
            with alone("bare", servers):
                _note(times, "bare", **best_forward(model))
            for name, service in services.items():
                with alone(name, servers):
                    found = load(target_of(service, classify_request(512)), service.process, images)
                _note(times, name, **vars(found))
    cpu = _cpu_ms(times)
    return {f"{name}_over_bare": cpu["bare"] / cpu[name] for name in services} | {
        f"engine_{name}_cpu_ms": value for name, value in cpu.items()
    }


def dicom_over_parts(folder: Path, rounds: int, images: int) -> dict[str, float]:
    """Measure full-size DICOM files behind the service with OpenVINO, over their parts, in turn.

    The parts are decoding without isolation, and a forward pass in the same engine and precision.
    """
    times: Times = {}
    path, engines = folder / "image.dcm", {"": FLOAT32, "_bf16": BFLOAT16}
    path.write_bytes(full_size_dicom())
    request = form_request("/classify", path.read_bytes())
    with ExitStack() as stack:
        models = {
            name: stack.enter_context(bare(folder / "model", engine=engine))
            for name, engine in engines.items()
        }
        services = {
            name: stack.enter_context(_served(folder, engine)) for name, engine in engines.items()
        }
        servers = {name: service.process for name, service in services.items()}
        for _ in range(rounds):
            for name, service in services.items():
                with alone("none", servers):
                    _note(times, f"bare{name}", **best_forward(models[name]))
                    _note(times, "decode", **models[name].ask("decode", path, 3))
                with alone(name, servers):
                    target = target_of(service, request)
                    found = load(target, service.process, images, clients=8)
                _note(times, f"dicom{name}", **vars(found))
    cpu = _cpu_ms(times)
    return {
        f"dicom_over_decode_and_forward{name}": (cpu["decode"] + cpu[f"bare{name}"])
        / cpu[f"dicom{name}"]
        for name in engines
    } | {f"parts_{name}_cpu_ms": value for name, value in cpu.items()}


def _round(
    times: Times,
    model: Bare,
    service: Service,
    others: Mapping[str, tuple[Process, int]],
    images: int,
) -> Sequence[float]:
    """Let all take a turn; gives how long each answer of the service took."""
    small = classify_request(512)
    servers = {"serve": service.process, **{name: process for name, (process, _) in others.items()}}
    with alone("bare", servers):
        _note(times, "bare", **best_forward(model))
    with alone("serve", servers):
        ours = load(target_of(service, small), service.process, images)
    _note(times, "serve", **vars(ours))
    for name, (process, port) in others.items():
        theirs = Target("127.0.0.1", port, small.replace(b"/classify", b"/predict", 1))
        with alone(name, servers):
            _note(times, name, **vars(load(theirs, process, images)))
    return ours.seconds


def load(target: Target, server: Process, images: int, clients: int = CLIENTS) -> Load:
    """Ask a server and take the times: wall between two marks, while all clients were asking.

    CPU is of all answers: between marks, what is under way at each of them would count, and an
    image of 101 ms came out at 101 to 118. `server` is its first process. RuntimeError where an
    answer was not 200.
    """
    marks: dict[int, float] = {}

    def mark(answers: int) -> None:
        if answers in {clients, clients + images}:
            marks[answers] = time.perf_counter()

    begun = cpu_s(server)
    reported = asyncio.run(crowd(target, clients, images + 2 * clients, mark))
    if set(reported.statuses) != {200}:
        raise RuntimeError(f"answers by status: {reported.statuses}")
    return Load(
        1e3 * (cpu_s(server) - begun) / len(reported.seconds),
        1e3 * (marks[clients + images] - marks[clients]) / images,
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


def _served(folder: Path, engine: Engine) -> AbstractContextManager[Service]:
    name, precision = engine
    return served(folder, batch=8, engine=name, precision=precision)
