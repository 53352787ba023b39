"""Two recipes, some runs each, asked the same cases: every figure, and a verdict on it."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from medclip_dcl.errors import ArtifactStale, ConfigError
from medclip_dcl.metrics.comparison import Difference, Estimate, compare_sides, estimate_side
from medclip_dcl.metrics.resampled import patient_weights
from medclip_dcl.tasks.cases import LOWER_IS_BETTER, Cases, check_same_cases, measure

Side = Mapping[str, Float[np.ndarray, "_ samples_and_one"]]
"""Figure -> its values in every run of a recipe, on every draw of patients."""

_DOUBLES = ".own_"


def measure_sides(
    sides: Sequence[Sequence[Cases]], samples: int, generator: np.random.Generator
) -> list[Side]:
    """Measure the runs of several recipes on the same draws of patients.

    Args:
        sides: runs of each recipe, at least one each.
        samples: draws of patients.
        generator: source of the draws.

    Returns:
        For each recipe, the figures that all of its runs have.

    Raises:
        ArtifactStale: the runs were not asked the same cases, or nobody was.
    """
    runs = [run for side in sides for run in side]
    check_same_cases(runs)
    if not runs[0].patients:
        raise ArtifactStale("the runs have no cases; evaluate them on a split with films")
    weights = patient_weights(len(runs[0].patients), samples, generator)
    found: list[Side] = []
    for side in sides:
        each = [measure(run, weights) for run in side]
        names = [name for name in each[0] if all(name in other for other in each)]
        found.append({name: np.stack([run[name] for run in each]) for name in names})
    return found


def contest(
    a: Side, b: Side, figures: Collection[str], generator: np.random.Generator
) -> dict[str, Difference]:
    """Compare two recipes.

    Args:
        a: one recipe, from `measure_sides`.
        b: the other, from the same call.
        figures: the figures that are compared, and corrected for their number; empty: all
            but those that count a query's doubles as wrong.
        generator: source of the draws of runs.

    Returns:
        Figure -> difference a - b.

    Raises:
        ConfigError: a figure is asked for that one of the recipes lacks.
    """
    both = [name for name in a if name in b]
    unknown = sorted(set(figures) - set(both))
    if unknown:
        raise ConfigError(f"the runs have no figures {unknown}; choose among {both}")
    chosen = [name for name in both if (name in figures if figures else _DOUBLES not in name)]
    return compare_sides({name: a[name] for name in chosen}, b, generator)


def side_estimates(side: Side, generator: np.random.Generator) -> dict[str, Estimate]:
    """Estimate every figure of a recipe over patients and runs.

    Args:
        side: from `measure_sides`.
        generator: source of the draws of runs.

    Returns:
        Figure -> its estimate.
    """
    return {name: estimate_side(runs, generator) for name, runs in side.items()}


def verdict(name: str, difference: Difference) -> str:
    """Put a difference into words.

    Args:
        name: the figure.
        difference: a - b in it.

    Returns:
        `A is better`, `B is better`, `no difference shown` or `not told`.
    """
    value = difference.estimate.value
    if value is None or difference.corrected_p is None:
        return "not told"
    if not difference.is_different:
        return "no difference shown"
    lower_wins = name.rpartition(".")[2] in LOWER_IS_BETTER
    return "A is better" if (value > 0) != lower_wins else "B is better"
