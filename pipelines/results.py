"""Figures of finished runs: those of one, and which of two configs is better."""

import json
import math
import shlex
import sys
import webbrowser
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from jaxtyping import Float

from medclip_dcl.core.artifact import HEADER, open_artifact, read_artifact_header, verify_artifact
from medclip_dcl.core.errors import (
    ArtifactCorrupt,
    ArtifactError,
    ArtifactMissing,
    ArtifactStale,
    ConfigError,
)
from medclip_dcl.core.files import write_text
from medclip_dcl.evaluation import results

from .cli import run_folder
from .stages import REPORT, STAGES

if TYPE_CHECKING:  # `show` does not wait for torch and scipy, which `compare` alone needs
    from medclip_dcl.evaluation.measure import SampleResults


def summary_lines(work: Path) -> list[str]:
    """List where the seconds of `work` went; its figures, its report and how to serve it.

    A run without a report, or without a model, has no line about it.
    """
    made = sorted(
        (read_artifact_header(header.parent) for header in work.glob(f"*/{HEADER}")),
        key=lambda artifact: str(artifact.origin["committed_at"]),
    )
    lines = [f"{artifact.kind:20}{artifact.origin['seconds']:9.1f} s" for artifact in made]
    lines.append(f"{'together':20}{sum(item.origin['seconds'] for item in made):9.1f} s")
    kinds = {artifact.kind: artifact for artifact in made}
    if results.ARTIFACT.name in kinds:
        lines += ["", results.results_table(results.read_figures(kinds[results.ARTIFACT.name]))]
    lines.append("")
    if (work / REPORT).is_file():
        lines.append(f"report   {work / REPORT}")
    if STAGES["train"].makes in kinds:
        served = shlex.quote(str(work))
        lines.append(f"viewer   medclip serve {served}, then open http://127.0.0.1:8000/")
    return lines


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its config.")],
    open_report: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report in a browser.")
    ] = True,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Hash every byte of its artifacts, or of one, instead."),
    ] = False,
) -> int:
    """Show the results of a finished run: its figures, its report, and what to do next."""
    run = run_folder(run)
    if verify:
        verify_artifacts(run)
        return 0
    report = run / REPORT
    if (run / HEADER).is_file():
        kind = read_artifact_header(run).kind
        raise ArtifactMissing(
            f"{run} is the {kind} of a run; name the run's folder, or give --verify"
        )
    if not report.is_file():
        raise ArtifactMissing(f"{run} holds no {REPORT}; run write_report first")
    print(*summary_lines(run), sep="\n", flush=True)
    if open_report and sys.stdout.isatty():
        webbrowser.open(report.resolve().as_uri())
    return 0


def verify_artifacts(folder: Path) -> None:
    """Hash an artifact, or all of a run, and print a line for each.

    Elsewhere a file is not hashed again while it has the size, times and inode with which it was
    hashed before. This finds what these do not show: bytes that a disk has lost or changed.
    ArtifactMissing where there is none; ArtifactCorrupt where one is damaged; the others were
    looked at as well.
    """
    nested = (
        header.parent for depth in ("*", "*/*") for header in folder.glob(f"{depth}/{HEADER}")
    )
    paths = [folder] if (folder / HEADER).is_file() else sorted(nested)
    if not paths:
        raise ArtifactMissing(f"{folder} holds no artifact; name a run's folder, or an artifact's")
    damaged = []
    for path in paths:
        try:
            artifact = verify_artifact(path)
        except ArtifactError as error:
            damaged.append(path.name)
            print(f"{path.name:20} {error}", flush=True)
        else:
            size = sum(entry["bytes"] for entry in artifact.files.values())
            print(f"{path.name:20} whole, {len(artifact.files)} files, {size:,} bytes", flush=True)
    if damaged:
        raise ArtifactCorrupt(f"{', '.join(damaged)} of {folder} damaged; rerun their jobs")


# --- Which of two configs is better
#
# What `evaluate` keeps case by case is enough to measure a run on any draw of patients, without
# its model. A figure varies because other patients might have been examined, and because another
# seed would have given another model. Patients are drawn once for all runs (the comparison is
# paired), runs of each side by themselves. Of n runs n - 1 are drawn: the mean of n drawn with
# replacement would vary by (n - 1) / n of what it should (Rao and Wu 1988), a third too little
# with three runs.
#
# A spread that is estimated from few runs is itself uncertain, so the difference over its standard
# error is compared with Student's t, with the degrees of freedom of Welch and Satterthwaite, not
# with the percentiles of the samples. One run says nothing of the spread, so two configs are not
# judged by one run of either; two runs give a p, three an interval.

LEVEL = 0.05
"""Chance of calling a difference where there is none, over all figures together."""

LEAST_RUNS = 3
"""Runs below which a spread over runs gives no interval: of two runs it is wide or narrow by
chance alone."""

Side = Mapping[str, Float[np.ndarray, "_ samples_and_one"]]
"""Figure -> its values in every run of a config, on the patients as they are and in every resample
of them."""

# Duplicates counted as wrong, and the margins of AUC at a threshold.
_READ_AGAIN = (".own_", "decisions.")
_UNSIGNED = "grounding.cnr"  # the signed one without its sign, half noise
_LOWER_IS_BETTER = "median_rank"

SAMPLES = 1000
"""Draws of patients and runs."""


@dataclass(frozen=True)
class Difference:
    """One figure of two configs: the means over their runs, and a - b over patients and runs."""

    a: float | None = None  # None where a run has no such figure
    b: float | None = None
    error: float | None = None  # standard error of a - b
    degrees: float | None = None  # degrees of freedom of the error; None: it is taken as known
    low: float | None = None
    high: float | None = None
    p: float | None = None  # chance of a value as far from 0 were the truth 0
    corrected_p: float | None = None  # after Holm's correction for all figures
    is_different: bool = False
    reason: str = ""  # why something is None; else empty


def compare_sides(
    a: Side,
    b: Side,
    generator: np.random.Generator,
    figures: Collection[str] = (),
) -> dict[str, Difference]:
    """Compare two configs from one call of `measure_sides`, figure by figure.

    `figures` are those that are compared, and corrected for their number; empty: all but those that
    read the same cases again: ranks that count a query's duplicates as wrong, CNR without its sign,
    and decisions at a threshold. With one run on a side there is no p and no interval. ConfigError
    where a figure is asked for that one of the configs lacks.
    """
    both = [name for name in a if name in b]
    if unknown := sorted(set(figures) - set(both)):
        raise ConfigError(f"the runs have no figures {unknown}; choose among {both}")
    usual = [name for name in both if name != _UNSIGNED and not _reads_again(name)]
    differences = {
        name: _difference((a[name], b[name]), generator)
        for name in both
        if name in (figures or usual)
    }
    tested = {name: item.p for name, item in differences.items() if item.p is not None}
    for name, p in zip(tested, holm(list(tested.values())), strict=True):
        differences[name] = replace(differences[name], corrected_p=p, is_different=p < LEVEL)
    return differences


def _reads_again(name: str) -> bool:
    return any(mark in name for mark in _READ_AGAIN)


def describe_difference(name: str, item: Difference) -> str:
    """Say `A is better`, `B is better`, `no difference shown` or `not known` of a figure."""
    if item.a is None or item.b is None or item.corrected_p is None:
        return "not known"
    if not item.is_different:
        return "no difference shown"
    return "A is better" if (item.a > item.b) != name.endswith(_LOWER_IS_BETTER) else "B is better"


def holm(p: Sequence[float]) -> list[float]:
    """Correct p-values, dependent in any way, for their number.

    Calling those below a level different errs with at most that chance over all of them.

    Source: Holm 1979.
    """
    order = np.argsort(p, kind="stable")
    # The least p counts for all, the next for one fewer; none falls below the one before it.
    raised = np.maximum.accumulate(np.array(p)[order] * np.arange(len(p), 0, -1))
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(raised, 1.0)
    return [float(value) for value in corrected]


def _difference(sides: tuple[np.ndarray, np.ndarray], generator: np.random.Generator) -> Difference:
    from scipy import stats

    a, b = (None if np.isnan(runs[:, 0]).any() else float(runs[:, 0].mean()) for runs in sides)
    if a is None or b is None:
        return Difference(a, b, reason="a run has no such figure")
    fewest = min(map(len, sides))
    if fewest < 2:
        return Difference(a, b, reason="one run on a side: two models, not two configs")
    defined = ~np.any([np.isnan(runs).any(axis=0) for runs in sides], axis=0)
    if defined[1:].sum() <= len(defined[1:]) / 2:
        return Difference(a, b, reason="undefined in half of the resamples of patients or more")
    samples = [runs[:, defined] for runs in sides]
    # `fixed` varies by patients alone, which the degrees of freedom need; `drawn` by runs as well.
    fixed = samples[0].mean(axis=0) - samples[1].mean(axis=0)
    drawn = [_redrawn(runs, generator).mean(axis=0) for runs in samples]
    error = float(np.std((drawn[0] - drawn[1])[1:], ddof=1))
    degrees = _degrees(float(np.var(fixed[1:], ddof=1)), [runs[:, 0] for runs in sides])
    value = a - b
    if error > 0:
        p = float(2 * stats.t.sf(abs(value) / error, degrees))
    else:
        p = 1.0 if value == 0 else 0.0
    shown = degrees if math.isfinite(degrees) else None
    if fewest < LEAST_RUNS:
        reason = f"n = {fewest}: an interval over seeds needs {LEAST_RUNS}"
        return Difference(a, b, error, shown, p=p, reason=reason)
    reach = float(stats.t.ppf(1 - LEVEL / 2, degrees)) * error
    return Difference(a, b, error, shown, value - reach, value + reach, p)


def _redrawn(runs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    # n - 1 of n runs, again in every sample.
    count, samples = runs.shape
    return runs[generator.integers(count, size=(count - 1, samples)), np.arange(samples)]


def _degrees(patients: float, sides: Sequence[np.ndarray]) -> float:
    # Welch and Satterthwaite's degrees of freedom; the patients' variance is taken as known.
    shares = [(float(runs.var(ddof=1)) / len(runs), len(runs) - 1) for runs in sides]
    uncertain = sum(share**2 / freedom for share, freedom in shares)
    if uncertain == 0:
        return math.inf
    return float((patients + sum(share for share, _ in shares)) ** 2 / uncertain)


def measure_sides(
    sides: Sequence[Sequence["SampleResults"]], samples: int, generator: np.random.Generator
) -> list[Side]:
    """Measure the runs of several configs on the same draws of patients.

    A config has the figures that all of its runs have, at least one run. ArtifactStale where the
    runs were not asked the same cases, or none.
    """
    from medclip_dcl.evaluation.measure import check_same_samples, measure
    from medclip_dcl.evaluation.metrics import patient_weights

    runs = [run for side in sides for run in side]
    check_same_samples(runs)
    if not runs[0].patients:
        raise ArtifactStale("the runs have no cases; evaluate them on a split with images")
    weights = patient_weights(len(runs[0].patients), samples, generator)
    measured: list[Side] = []
    for side in sides:
        each = [measure(run, weights) for run in side]
        names = [name for name in each[0] if all(name in other for other in each)]
        measured.append({name: np.stack([run[name] for run in each]) for name in names})
    return measured


def find_runs(text: str) -> list[Path]:
    """Find the results of a side: folders joined by commas.

    Each is results, a run that holds them, or a folder of runs, which are sorted. ArtifactMissing
    where a folder holds none.
    """
    runs: list[Path] = []
    for name in text.split(","):
        folder = Path(name).expanduser()
        inside = (folder / HEADER, folder / results.ARTIFACT.name / HEADER)
        direct = [path.parent for path in inside if path.is_file()]
        below = sorted(path.parent for path in folder.glob(f"*/{results.ARTIFACT.name}/{HEADER}"))
        if not direct and not below:
            raise ArtifactMissing(f"{folder} holds no results; name a folder that evaluate wrote")
        runs += direct[:1] or below
    return runs


def comparison_table(differences: Mapping[str, Difference], runs: tuple[int, int]) -> str:
    """Lay out a line per figure, and the verdict over all; `runs` are those of A and of B."""
    wide = max(map(len, differences), default=0) + 1
    lines = [
        f"A: {runs[0]} run(s), B: {runs[1]} run(s); {SAMPLES} draws of patients and runs; "
        f"p corrected for {len(differences)} figures",
        f"{'figure':{wide}}{'A':>8}{'B':>8}{'A - B':>9}{'95 % interval':>20}{'p':>8}  verdict",
    ]
    for name, item in differences.items():
        if item.a is None or item.b is None:
            lines.append(f"{name:{wide}} undecided: {item.reason}")
            continue
        span = f"n={min(runs)}" if item.low is None else f"[{item.low:.3f}, {item.high:.3f}]"
        p = "" if item.corrected_p is None else f"{item.corrected_p:.3f}"
        lines.append(
            f"{name:{wide}}{item.a:8.3f}{item.b:8.3f}{item.a - item.b:+9.3f}{span:>20}{p:>8}  "
            f"{describe_difference(name, item)}"
        )
    reported = [name for name, item in differences.items() if item.is_different]
    if min(runs) < 2:
        verdict = (
            "no verdict: one side has one run, which compares two models and not two configs; "
            "two seeds of one config often differ by patients alone. Give three runs a side or more"
        )
    elif reported:
        verdict = f"different in {', '.join(reported)}"
    else:
        verdict = f"no difference shown at {LEVEL:.0%}"
    return "\n".join([*lines, verdict])


def compare(
    a: Annotated[str, typer.Argument(metavar="RUN_A", help="Folder of a run, or of one config's.")],
    b: Annotated[str, typer.Argument(metavar="RUN_B", help="The same of the other config.")],
    figure: Annotated[list[str] | None, typer.Option(help="This one; may be repeated.")] = None,
    output: Annotated[Path | None, typer.Option("--json", help="File for every number.")] = None,
) -> int:
    """Say which of two configs is better, in which figure, and whether other seeds would agree.

    A run is a folder that holds `results` (or `results` itself). A side with several seeds is
    a folder of such folders, or folders joined by commas. Patients are resampled for all runs
    together, runs for each side separately; p is corrected for the number of figures (Holm).
    With one run on a side there is no verdict: two models are not two configs.
    """
    from medclip_dcl.evaluation.measure import read_sample_results

    folders = find_runs(a), find_runs(b)
    sides = [
        [read_sample_results(open_artifact(path, results.ARTIFACT)) for path in side]
        for side in folders
    ]
    first, second = measure_sides(sides, SAMPLES, np.random.default_rng(0))
    differences = compare_sides(first, second, np.random.default_rng(0), figure or ())
    counts = len(sides[0]), len(sides[1])
    print(comparison_table(differences, counts), flush=True)
    if output:
        tree = {name: asdict(item) for name, item in differences.items()}
        write_text(output, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    return 0
