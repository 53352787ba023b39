"""Cores of this machine that a process may use."""

import os


def available_cores() -> int:
    """Count the cores that this process may use: its affinity mask's where there is one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
