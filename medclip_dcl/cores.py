"""How many cores this process may use."""

import os


def available_cores() -> int:
    """Count the cores that this process may use.

    Returns:
        Those of its affinity mask where the system has one, else all; at least 1.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
