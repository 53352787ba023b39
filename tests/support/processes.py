"""Processes that are measured: their ports and settings, and what they took."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def options(settings: Iterable[str]) -> list[str]:
    """Settings of a config, such as `seed=1`, as words of a command."""
    return [word for setting in settings for word in ("--set", setting)]


class Spent(NamedTuple):
    """What a process came to and took, the processes that it waited for included."""

    code: int
    cpu_s: float
    wall_s: float
    peak_mib: float
    """Of the largest of them."""


def spent_by(command: Sequence[str], **more: Any) -> Spent:
    """Run a command to its end; `more` is for `subprocess.Popen`."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, **more)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    wall_s = time.perf_counter() - begun
    return Spent(process.returncode, cpu_s, wall_s, usage.ru_maxrss / 1024)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process since it began."""
    if sys.platform == "linux":  # the clock of another process, in nanoseconds
        return time.clock_gettime(~pid << 3 | 2)
    import psutil  # memory is measured where this is imported

    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def memory_mib(field: str, pid: int | str = "self") -> float:
    """Memory of a process on Linux: `VmRSS` what is resident, `VmHWM` its peak."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))
