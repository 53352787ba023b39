"""Real processes that form a gloo group over loopback, for tests of distributed code."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.support import forkserver


def run_processes(worker: Callable[[int, Path], None], count: int, folder: Path) -> None:
    """Run `worker(rank, folder)` in `count` processes; the worker must be importable."""
    forkserver.context()
    arguments = (worker, count, folder)
    mp.start_processes(_join, args=arguments, nprocs=count, start_method="forkserver")


def _join(rank: int, worker: Callable[[int, Path], None], count: int, folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    meeting = (folder / "meeting").resolve().as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    try:
        worker(rank, folder)
    finally:
        dist.destroy_process_group()
