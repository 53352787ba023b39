"""Say which of two configs is better, in which figure, and whether other seeds would agree.

A run is a folder that holds `results` (or `results` itself). A side with several seeds is
a folder of such folders, or folders joined by commas. Patients are resampled for all runs
together, runs for each side separately; p is corrected for the number of figures (Holm).
With one run on a side there is no verdict: two models are not two configs. Next to
"no difference shown" stands the smallest difference that would have been seen.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from medclip_dcl.core.artifact import HEADER, open_artifact
from medclip_dcl.core.errors import ArtifactMissing
from medclip_dcl.core.files import write_text
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.measure import read_sample_results

from .cli import tool_main
from .report.comparison import (
    LEVEL,
    Difference,
    compare_sides,
    describe_difference,
    measure_sides,
)

SAMPLES = 1000


def find_runs(text: str) -> list[Path]:
    """Find the results of a side: folders joined by commas.

    Each is results, a run that holds them, or a folder of runs, which are sorted.

    Raises:
        ArtifactMissing: a folder holds none.
    """
    found: list[Path] = []
    for name in text.split(","):
        folder = Path(name).expanduser()
        inside = (folder / HEADER, folder / results.ARTIFACT.name / HEADER)
        direct = [path.parent for path in inside if path.is_file()]
        below = sorted(path.parent for path in folder.glob(f"*/{results.ARTIFACT.name}/{HEADER}"))
        if not direct and not below:
            raise ArtifactMissing(f"{folder} holds no results; name a folder that evaluate wrote")
        found += direct[:1] or below
    return found


def comparison_table(
    differences: Mapping[str, Difference], runs: tuple[int, int], samples: int
) -> str:
    """Lay out a line per figure, and the verdict over all; `runs` are those of A and of B."""
    wide = max(map(len, differences), default=0) + 1
    lines = [
        f"A: {runs[0]} run(s), B: {runs[1]} run(s); {samples} draws of patients and runs; "
        f"p corrected for {len(differences)} figures",
        f"{'figure':{wide}}{'A':>8}{'B':>8}{'A - B':>9}{'95 % interval':>20}{'p':>8}  verdict",
    ]
    for name, item in differences.items():
        found = item.estimate
        if item.a is None or item.b is None or found.value is None:
            lines.append(f"{name:{wide}} undecided: {found.reason}")
            continue
        span = f"n={min(runs)}" if found.low is None else f"[{found.low:.3f}, {found.high:.3f}]"
        p = "" if item.corrected_p is None else f"{item.corrected_p:.3f}"
        lines.append(
            f"{name:{wide}}{item.a:8.3f}{item.b:8.3f}{found.value:+9.3f}{span:>20}{p:>8}  "
            f"{describe_difference(name, item)}"
        )
    return "\n".join([*lines, comparison_verdict(differences, runs)])


def comparison_verdict(differences: Mapping[str, Difference], runs: tuple[int, int]) -> str:
    """Say over all figures which differ, or why that cannot be said."""
    reported = [name for name, item in differences.items() if item.is_different]
    if min(runs) < 2:
        return (
            "no verdict: one side has one run, which compares two models and not two configs; "
            "two seeds of one config often differ by patients alone. Give three runs a side or more"
        )
    if reported:
        return f"different in {', '.join(reported)}"
    return (
        f"no difference shown at {LEVEL:.0%}; in brackets the smallest that such runs would "
        "show, as estimated from their spread"
    )


def command(
    a: Annotated[str, typer.Argument(metavar="RUN_A", help="Folder of a run, or of one config's.")],
    b: Annotated[str, typer.Argument(metavar="RUN_B", help="The same of the other config.")],
    figure: Annotated[list[str] | None, typer.Option(help="This one; may be repeated.")] = None,
    samples: Annotated[int, typer.Option(min=2, help="Draws of patients and runs.")] = SAMPLES,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    output: Annotated[Path | None, typer.Option("--json", help="File for every number.")] = None,
) -> int:
    """Compare two sides and print the table; 0 whatever the verdict."""
    folders = find_runs(a), find_runs(b)
    sides = [
        [read_sample_results(open_artifact(path, results.ARTIFACT)) for path in side]
        for side in folders
    ]
    first, second = measure_sides(sides, samples, np.random.default_rng(seed))
    differences = compare_sides(first, second, np.random.default_rng(seed), figure or ())
    counts = len(sides[0]), len(sides[1])
    print(comparison_table(differences, counts, samples), flush=True)
    if output:
        tree = {name: asdict(item) for name, item in differences.items()}
        write_text(output, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    return 0


main = tool_main("compare", command)

if __name__ == "__main__":
    sys.exit(main())
