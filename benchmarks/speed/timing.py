"""CPU and wall time of rivals that take turns."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np

Times = dict[str, list[tuple[float, float]]]
"""Rival -> CPU and wall seconds of each round."""


def interleaved(
    rivals: Mapping[str, Callable[[int], object]],
    rounds: int,
    warm_up: int = 2,
    clock: Callable[[], float] = time.process_time,
) -> Times:
    """Time rivals in turn, after some rounds to warm up; each is called with the round's number.

    `clock` gives CPU seconds.
    """
    times: Times = {name: [] for name in rivals}
    for round_ in range(-warm_up, rounds):
        for name, run in rivals.items():
            wall, cpu = time.perf_counter(), clock()
            run(round_)
            spent = (clock() - cpu, time.perf_counter() - wall)
            if round_ >= 0:
                times[name].append(spent)
    return times


def cpu_ms(times: Times, name: str) -> float:
    """Return the median CPU time of a rival, milliseconds."""
    return 1e3 * median(cpu for cpu, _ in times[name])


def wall_ms(times: Times, name: str, percent: float = 50) -> float:
    """Return a percentile of a rival's wall time, milliseconds."""
    return 1e3 * float(np.percentile([wall for _, wall in times[name]], percent))


def cpu_ratio(times: Times, ours: str, baseline: str) -> float:
    """Return the median ratio of CPU times within a round."""
    return median(
        mine / theirs for (mine, _), (theirs, _) in zip(times[ours], times[baseline], strict=True)
    )


def show(times: Times) -> None:
    """Print a line for each rival."""
    for name in times:
        print(f"    {name:22}{cpu_ms(times, name):9.3f} ms CPU, wall ", end="")
        print(f"p50 {wall_ms(times, name):.2f} ms, p99 {wall_ms(times, name, 99):.2f} ms")
