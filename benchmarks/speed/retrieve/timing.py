"""CPU and wall time of what is called again and again."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np

Times = dict[str, list[tuple[float, float]]]


def interleaved(baselines: Mapping[str, Callable[[int], object]], rounds: int) -> Times:
    """Time rivals in turn, after two rounds to warm up: name -> CPU and wall seconds of each round.

    Each is called with the number of the round.
    """
    times: Times = {name: [] for name in baselines}
    for round_ in range(-2, rounds):
        for name, run in baselines.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run(round_)
            spent = (time.process_time() - cpu, time.perf_counter() - wall)
            if round_ >= 0:
                times[name].append(spent)
    return times


def cpu_ms(times: Times, name: str) -> float:
    """Give the median CPU time of a rival, milliseconds."""
    return 1e3 * median(cpu for cpu, _ in times[name])


def wall_ms(times: Times, name: str, percent: float) -> float:
    """Give a percentile of a rival's wall time, milliseconds."""
    return 1e3 * float(np.percentile([wall for _, wall in times[name]], percent))


def cpu_ratio(times: Times, ours: str, baseline: str) -> float:
    """Give the median ratio of CPU times within a round."""
    return median(
        mine / theirs for (mine, _), (theirs, _) in zip(times[ours], times[baseline], strict=True)
    )
