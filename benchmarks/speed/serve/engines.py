"""What the engines make of the service: images a second over the bare model in PyTorch float32."""

import statistics
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from benchmarks.fixtures.dicom import raster_bytes
from benchmarks.fixtures.films import random_images
from benchmarks.fixtures.service import Process, Service
from benchmarks.speed.serve.clients import Target, form_request
from benchmarks.speed.serve.processes import Engine, bare, rival, served, stopped, target_of
from benchmarks.speed.serve.ratios import CLIENTS, best_forward, full_size_dicom, load

FLOAT32: Engine = ("openvino", "float32")
BFLOAT16: Engine = ("openvino", "bfloat16")


def over_bare(folder: Path, rounds: int, images: int) -> dict[str, float]:
    """Measure the service in float32 and in bfloat16, and the bare model in PyTorch, in turn.

    `folder` holds `model`; `images`, a multiple of 16, are answered in one measurement. Gives
    ratios of medians over rounds, and the CPU milliseconds that they are made of.
    """
    small = form_request("/classify", _jpeg())
    times: dict[str, list[float]] = {}
    with ExitStack() as stack:
        model = stack.enter_context(bare(folder / "model"))
        services = {
            name: stack.enter_context(_served(folder, engine))
            for name, engine in (("float32", FLOAT32), ("bf16", BFLOAT16))
        }
        for _ in range(rounds):
            with _alone(None, services):
                _note(times, "bare", best_forward(model)["cpu_ms"])
            for name, service in services.items():
                with _alone(name, services):
                    found = load(target_of(service, small), service.process, CLIENTS, images)
                _note(times, name, found.cpu_ms)
    mid = {name: statistics.median(values) for name, values in times.items()}
    return {f"{name}_over_bare": mid["bare"] / mid[name] for name in services} | {
        f"engine_{name}_cpu_ms": value for name, value in mid.items()
    }


def over_rivals(folder: Path, rounds: int, images: int) -> dict[str, float]:
    """Measure the service and LitServe with the same engine and with PyTorch, as `over_bare` does.

    Of a full-size DICOM also over decoding and the engine's bare forward pass.
    """
    small = form_request("/classify", _jpeg())
    path = folder / "image.dcm"
    path.write_bytes(full_size_dicom())
    large = form_request("/classify", path.read_bytes())
    times: dict[str, list[float]] = {}
    with ExitStack() as stack:
        model = stack.enter_context(bare(folder / "model", engine=FLOAT32))
        service = stack.enter_context(_served(folder, FLOAT32))
        others = {
            name: stack.enter_context(rival(folder / "model", engine))
            for name, engine in (("same_engine", FLOAT32), ("pytorch", ("torch", "float32")))
        }
        everyone: dict[str, Service | Process] = {"ours": service}
        everyone |= {name: process for name, (process, _) in others.items()}
        for _ in range(rounds):
            with _alone(None, everyone):
                alone = best_forward(model)["cpu_ms"] + model.ask("decode", path, 3)["cpu_ms"]
                _note(times, "decode_and_forward", alone)
            with _alone("ours", everyone):
                target, whole = target_of(service, small), target_of(service, large)
                _note(times, "ours", load(target, service.process, CLIENTS, images).cpu_ms)
                _note(times, "dicom", load(whole, service.process, 8, images // 2).cpu_ms)
            for name, (process, port) in others.items():
                theirs = Target("127.0.0.1", port, small.replace(b"/classify", b"/predict", 1))
                with _alone(name, everyone):
                    _note(times, name, load(theirs, process, CLIENTS, images).cpu_ms)
    mid = {name: statistics.median(values) for name, values in times.items()}
    return {
        "over_litserve_pytorch": mid["pytorch"] / mid["ours"],
        "over_litserve_same_engine": mid["same_engine"] / mid["ours"],
        "dicom_over_decode_and_forward": mid["decode_and_forward"] / mid["dicom"],
    } | {f"rivals_{name}_cpu_ms": value for name, value in mid.items()}


def _served(folder: Path, engine: Engine) -> AbstractContextManager[Service]:
    name, precision = engine
    return served(folder, batch=8, engine=name, precision=precision)


def _alone(name: str | None, servers: dict[str, Service | Process]) -> ExitStack:
    """Stop every server but one."""
    stack = ExitStack()
    for other, server in servers.items():
        if other != name:
            process = server.process if isinstance(server, Service) else server
            stack.enter_context(stopped(process))
    return stack


def _jpeg() -> bytes:
    return raster_bytes(random_images(1, size_px=512, seed=1)[0], "jpeg", quality=90)


def _note(times: dict[str, list[float]], name: str, value: float) -> None:
    times.setdefault(name, []).append(value)
