"""Servers and bare models as processes on one core, and the CPU time that they take."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from benchmarks.speed.serve.clients import Target
from medclip_dcl.core.distributed import available_cores
from medclip_dcl.inference.model_package import ARTIFACT
from pipelines.config import Config
from tests.support.processes import cpu_s as own_cpu_s
from tests.support.processes import free_port
from tests.support.published import publish
from tests.support.service import PATIENCE_S, ROOT, Process, Service, running

KEPT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
}
"""For programs that do not set up their memory themselves as the service does."""

Engine = tuple[str, str]
"""Engine and precision."""
PYTORCH: Engine = ("torch", "float32")


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Start processes on the first core; this one goes on with the others, if there are any."""
    if available_cores() < 2 or not hasattr(os, "sched_setaffinity"):
        yield
        return
    first, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {first})
    try:
        yield
    finally:
        os.sched_setaffinity(0, others)


def cpu_s(service: Process) -> float:
    """Sum the CPU seconds of a process and its descendants since each of them began."""
    first = psutil.Process(service.pid)
    spent = 0.0
    for item in (first, *first.children(recursive=True)):
        with contextlib.suppress(OSError):  # it has ended
            spent += own_cpu_s(item.pid)
    return spent


class Bare:
    """A bare model in a process that answers what it costs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answer()

    def forward(self, images: int, times: int) -> tuple[float, float]:
        """Measure forward passes: median CPU and wall seconds an image."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{images} {times}\n")
        self._process.stdin.flush()
        cpu_s, wall_s = self._answer()
        return cpu_s, wall_s

    def _answer(self) -> list[float]:
        assert self._process.stdout is not None
        reply: list[float] = json.loads(self._process.stdout.readline())
        return reply


@contextlib.contextmanager
def bare(model: Path) -> Iterator[Bare]:
    """Start a bare model on the first core."""
    with one_core():
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.speed.serve.bare", str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **KEPT, "OMP_NUM_THREADS": "1"},
        )
    try:
        yield Bare(process)
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def alone(name: str, servers: Mapping[str, Process]) -> Iterator[None]:
    """Keep all servers but one, with their descendants, from running, while that is measured.

    A server that has nothing to do need not be idle: LitServe takes a tenth of the core.
    """
    others = [psutil.Process(item.pid) for other, item in servers.items() if other != name]
    tree = [item for first in others for item in (first, *first.children(recursive=True))]
    for item in tree:
        item.suspend()
    try:
        yield
    finally:
        for item in tree:
            item.resume()


@contextlib.contextmanager
def served(folder: Path, **settings: object) -> Iterator[Service]:
    """Start the service on the first core, without an index, and wait until it is ready."""
    settings = {"index": "", "threads": 1, **settings}
    with contextlib.ExitStack() as stack:
        with one_core():
            service = stack.enter_context(running(folder, wait=False, fresh=True, **settings))
        wait_for(f"{service.url}ready")
        yield service


@contextlib.contextmanager
def rival(model: Path, engine: Engine = PYTORCH) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start LitServe on the first core and wait until it is ready."""
    port = free_port()
    with one_core():
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.speed.serve.litserve_baseline"),
                *(str(model), str(port), *engine),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, **KEPT, "OMP_NUM_THREADS": "1"},
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield process, port
    finally:
        for item in (*psutil.Process(process.pid).children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                item.kill()
        process.wait()


def publish_paper_size(folder: Path, kind: str = "resnet18") -> Path:
    """Publish a ResNet at 480 px with a grid of 15 x 15; ResNet-18 is the model of the paper.

    Random weights take as long as learned ones.
    """
    config = {"work": "unused", "model": {"image": {"kind": kind}}}
    publish(ARTIFACT.at(folder), config=Config.model_validate(config))
    return folder


def target_of(service: Service, request: bytes) -> Target:
    """Say where a service is asked something."""
    return Target(*service.address, request)


def wait_for(url: str) -> None:
    """Wait until a URL answers 200; TimeoutError where it does not."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise TimeoutError(f"{url} did not get ready")
