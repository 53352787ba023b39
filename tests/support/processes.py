"""Processes that are measured: their ports and settings, and what they took."""

import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def ended(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever its exit code; what it prints is kept."""
    words = [str(word) for word in command]
    return subprocess.run(words, **{"capture_output": True, "text": True, "check": False} | options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether a process of this machine answers at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def options(settings: Iterable[str]) -> list[str]:
    """Settings of a config, such as `seed=1`, as words of a command."""
    return [word for setting in settings for word in ("--set", setting)]


def cpu_s(pid: int) -> float:
    """CPU seconds of a process on Linux since it began, by its own clock."""
    return time.clock_gettime(~pid << 3 | 2)
