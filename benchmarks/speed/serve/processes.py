"""Servers and bare models as processes on one core, and the CPU time that they take."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import httpx
import psutil

from medclip_dcl.core.progress import available_cores
from tests.support.processes import cpu_s as own_cpu_s
from tests.support.processes import free_port
from tests.support.service import PATIENCE_S, ROOT, Process, Service, running

KEPT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "OMP_NUM_THREADS": "1",
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
    spent = 0.0
    for item in _tree(service.pid):
        with contextlib.suppress(OSError):  # it has ended
            spent += own_cpu_s(item.pid)
    return spent


def _tree(pid: int | None) -> list[psutil.Process]:
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


class Bare:
    """A bare model in a process that answers what it costs."""

    def __init__(self, asked: IO[str], answers: IO[str]) -> None:
        self._asked, self._answers = asked, answers
        self._answers.readline()  # it is ready

    def forward(self, images: int, times: int) -> tuple[float, float]:
        """Measure forward passes: median CPU and wall seconds an image."""
        print(images, times, file=self._asked, flush=True)
        cpu, wall = json.loads(self._answers.readline())
        return cpu, wall


@contextlib.contextmanager
def _program(*words: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a module of this folder on the first core; it ends with all that it has started."""
    command = [sys.executable, "-m", f"benchmarks.speed.serve.{words[0]}", *words[1:]]
    with one_core():
        process = subprocess.Popen(command, text=True, cwd=ROOT, env=os.environ | KEPT, **streams)
    try:
        yield process
    finally:
        for item in reversed(_tree(process.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                item.kill()
        process.communicate()


@contextlib.contextmanager
def bare(model: Path) -> Iterator[Bare]:
    """Start a bare model."""
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with _program("bare", str(model), **pipes) as process:
        yield Bare(process.stdin, process.stdout)


@contextlib.contextmanager
def rival(model: Path, engine: Engine = PYTORCH) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start LitServe and wait until it is ready."""
    port, quiet = free_port(), dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    with _program("litserve_baseline", str(model), str(port), *engine, **quiet) as process:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield process, port


@contextlib.contextmanager
def alone(name: str, servers: Mapping[str, Process]) -> Iterator[None]:
    """Keep all servers but one, with their descendants, from running, while that is measured.

    A server that has nothing to do need not be idle: LitServe takes a tenth of the core.
    """
    tree = [item for other in servers.keys() - {name} for item in _tree(servers[other].pid)]
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


def wait_for(url: str) -> None:
    """Wait until a URL answers 200; TimeoutError where it does not."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=5, trust_env=False).status_code == 200:
                return
        time.sleep(0.2)
    raise TimeoutError(f"{url} did not get ready")
