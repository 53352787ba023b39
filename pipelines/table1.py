"""Train and evaluate every row of the paper's Table 1 over several seeds, and print it.

    python -m pipelines table1 --config FILE [--set table1.processes=2]

First the config's jobs up to the likelihoods run, once; then every row and seed in a folder
of its own under `table1`. What is done is not done again; a killed table goes on where it
was. Next to each figure stand half its 95 % interval, over patients and seeds, and in
brackets the paper's value. Every row is compared with the uncorrected one.
"""

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from medclip_dcl.artifact import open_artifact
from medclip_dcl.config import Config
from medclip_dcl.errors import JobFailed
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.compare import (
    compare_sides,
    describe_difference,
    estimate_side,
    measure_sides,
    read_sample_results,
)
from medclip_dcl.files import write_text
from medclip_dcl.progress import Progress

from .job import STOPPED, Job, Stopped, run_job
from .stages import STAGES, stages_of
from .table1_rows import BASELINE, COLUMNS, DOUBLES, Row, chosen_rows
from .table1_runs import Run, do_runs, plan_runs

FOLDER = "table1"
FIGURES = "table1.json"
_PREPARATION = tuple(STAGES)[: list(STAGES).index("build_eta_cache")]
_WIDTH = 21


def build(job: Job) -> None:
    """Run what is missing and print the table."""
    config, folder = job.config, job.work / FOLDER
    rows = chosen_rows(config)
    folder.mkdir(parents=True, exist_ok=True)
    _prepare(config, folder)
    runs = plan_runs(config, rows, folder)
    done = sum(run.note() is not None for run in runs)
    job.say(runs=len(runs), done=done, processes=config.table1.processes)
    with Progress("runs", len(runs), "run") as progress:
        progress.advance(done)
        for run in do_runs(runs, config.table1.processes):
            job.say(row=run.row.name, seed=run.seed, **_costs(run.note() or {}))
            progress.advance(1)
    tree = measure_table(runs, rows, config.evaluate.bootstrap)
    write_text(folder / FIGURES, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    print(table_text(tree), flush=True)


def measure_table(runs: Sequence[Run], rows: Sequence[Row], samples: int) -> dict[str, Any]:
    """Measure every row over its runs.

    Args:
        runs: all runs, done.
        rows: the rows.
        samples: draws of patients and runs.

    Returns:
        `rows`: for each its title, seeds, costs, figures with intervals, the paper's
        values, and figure by figure the verdict against the uncorrected row; `patients`
        that they rest on, and `samples`.
    """
    of_row = {row.name: [run for run in runs if run.row.name == row.name] for row in rows}
    sides = [
        [
            read_sample_results(open_artifact(results.ARTIFACT.at(run.folder), results.ARTIFACT))
            for run in mine
        ]
        for mine in of_row.values()
    ]
    measured = dict(zip(of_row, measure_sides(sides, samples, _generator()), strict=True))
    tree: dict[str, Any] = {}
    for row in rows:
        notes = [run.note() or {} for run in of_row[row.name]]
        generator = _generator()
        estimates = {
            name: estimate_side(runs, generator) for name, runs in measured[row.name].items()
        }
        tree[row.name] = {
            "title": row.title,
            "seeds": [run.seed for run in of_row[row.name]],
            "cost": {
                name: round(float(np.mean([note[name] for note in notes])), 2)
                for name in _costs(notes[0])
            },
            "paper": dict(row.paper),
            "figures": {
                name: {key: getattr(found, key) for key in ("value", "low", "high", "reason")}
                for name, found in estimates.items()
            },
        }
        if row.name != BASELINE and BASELINE in measured:
            both = measured[row.name].keys() & measured[BASELINE].keys()
            chosen = [name for name in COLUMNS.values() if name in both]
            differences = compare_sides(
                measured[row.name], measured[BASELINE], _generator(), chosen
            )
            tree[row.name]["against_baseline"] = {
                name: {
                    "difference": item.estimate.value,
                    "low": item.estimate.low,
                    "high": item.estimate.high,
                    "corrected_p": item.corrected_p,
                    "describe_difference": describe_difference(name, item),
                }
                for name, item in differences.items()
            }
    return {"samples": samples, "patients": len(sides[0][0].patients), "rows": tree}


def table_text(tree: Mapping[str, Any]) -> str:
    """Lay out the tree of `measure_table` as the paper does."""
    columns = {**COLUMNS, **DOUBLES}
    head = f"{'Method':34}" + "".join(f"{name:>{_WIDTH}}" for name in columns) + "   seeds  cpu s"
    lines = [
        "Table 1. Mean over seeds +- half its 95 % interval (patients and seeds; one seed: "
        "patients alone); in brackets the paper's, on MIMIC-CXR.",
        f"{tree['patients']} patients, {tree['samples']} draws. Recall: mean of R@10, R@50, R@100 "
        "both ways; `own`: doubles of a sentence are wrong.",
        "",
        head,
    ]
    for row in tree["rows"].values():
        cells = [
            _cell(row["figures"].get(figure), row["paper"].get(name))
            for name, figure in columns.items()
        ]
        cost = row["cost"]["cpu_s"]
        lines.append(
            f"{row['title']:34}"
            + "".join(f"{cell:>{_WIDTH}}" for cell in cells)
            + f"{len(row['seeds']):8}{cost:7.0f}"
        )
    titles = {figure: name for name, figure in columns.items()}
    lines += ["", f"p below .05 after correction for the {len(COLUMNS)} columns of a row:"]
    for row in tree["rows"].values():
        reported = [
            f"{titles[name]} {item['difference']:+.3g}"
            for name, item in row.get("against_baseline", {}).items()
            if item["describe_difference"] in {"A is better", "B is better"}
        ]
        if "against_baseline" in row:
            words = ", ".join(reported) or "no difference shown"
            alone = min(len(row["seeds"]), len(tree["rows"][BASELINE]["seeds"])) < 2
            caveat = "  (one seed: two models, not two configs)" if alone else ""
            lines.append(f"{row['title']:34} against no correction: {words}{caveat}")
    return "\n".join(lines)


def _prepare(config: Config, folder: Path) -> None:
    """Run the config's jobs up to the likelihoods; each leaves alone what is valid."""
    config_file = folder / "config.yaml"
    write_text(config_file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    for name in stages_of(config):
        if name in _PREPARATION:
            code: int = importlib.import_module(f".{name}", __package__).main(
                ["--config", str(config_file)]
            )
            if code == STOPPED:
                raise Stopped
            if code:
                raise JobFailed(
                    f"{name} failed; correct what it names and run again to go on", code
                )


def _costs(note: Mapping[str, Any]) -> dict[str, float]:
    return {name: note[name] for name in ("wall_s", "cpu_s", "model_mb") if name in note}


def _cell(found: Mapping[str, Any] | None, paper: float | None) -> str:
    if found is None or found["value"] is None:
        return "-"
    digits = 1 if found["value"] >= 10 else 3
    half = "" if found["high"] is None else f"+-{found['high'] - found['value']:.{digits}f}"
    in_brackets = (
        "" if paper is None else f" ({paper:.{2 if paper < 10 else 0}f})".replace("(0.", "(.")
    )
    return f"{found['value']:.{digits}f}{half}{in_brackets}"


def _generator() -> np.random.Generator:
    return np.random.default_rng(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from its command line."""
    return run_job("table1", build, argv)


if __name__ == "__main__":
    sys.exit(main())
