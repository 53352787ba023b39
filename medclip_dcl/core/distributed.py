"""Processes that `accelerate launch` or torchrun started together, on one node or several.

They share a folder and a gloo group. Nothing here touches a GPU: each process takes the
one of its local rank. torch, seconds of import, is paid by a launch of several alone.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from medclip_dcl.core.errors import LaunchError


def available_cores() -> int:
    """Count the cores that this process may use: its affinity mask's where there is one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_LONGEST_WAIT = timedelta(days=60)  # of the fastest process for the slowest
_POLL_S = 0.2


@dataclass(frozen=True)
class Launch:
    """One process among those that were started together."""

    rank: int = 0
    processes: int = 1
    local_rank: int = 0
    local_processes: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process logs and commits for all."""
        return self.rank == 0

    def tell(self, fact: str) -> str:
        """Return every process the main one's `fact`; LaunchError where another has ended."""
        if self.processes == 1:
            return fact
        import torch.distributed as dist

        reported = [fact]
        try:
            dist.broadcast_object_list(reported, src=0)
        except RuntimeError as error:
            raise _ended() from error
        return reported[0]

    def wait(self) -> None:
        """Wait until all are here; LaunchError where another process has ended."""
        if self.processes == 1:
            return
        import torch.distributed as dist

        try:
            # A blocking barrier would not return to Python, so no signal would be handled.
            meeting = dist.barrier(async_op=True)
            while not meeting.is_completed():
                time.sleep(_POLL_S)
            meeting.wait()
        except RuntimeError as error:
            raise _ended() from error


@contextmanager
def joined() -> Iterator[Launch]:
    """Join the processes of this launch by the `env://` variables, which both launchers set.

    A process that was started alone is the only one; LaunchError where others cannot be reached.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1:
        yield Launch()
        return
    import torch.distributed as dist

    try:
        dist.init_process_group("gloo", timeout=_LONGEST_WAIT)
    except (RuntimeError, ValueError) as error:
        raise LaunchError(
            f"the {processes} processes of this launch cannot reach each other; start them with "
            "accelerate launch or torchrun"
        ) from error
    try:
        yield Launch(
            dist.get_rank(),
            processes,
            int(os.environ.get("LOCAL_RANK", "0")),
            int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        )
    finally:
        dist.destroy_process_group()


def _ended() -> LaunchError:
    return LaunchError(
        "another process of this launch has ended; its own message says why; run again to go on"
    )
