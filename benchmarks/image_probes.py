"""The image-only experiment on digits-r: every objective, the same seeds, probed alike.

    python -m benchmarks.image_probes [--quick]

Runs the recipe `configs/images/digits_r.yaml` (odd digits thinned to a tenth, SimCLR,
300 steps) once for each objective and seed, and probes the features with a hundredth, a
tenth and all of the training labels. Beside InfoNCE (CL) and the debiased loss with a low,
a high and the true eta stand two controls: the same model before its first step, and an
oracle that takes every false negative out by its label. Differences to CL are paired by
seed: the same images, start, batches and views.

The full run takes three seeds, and about seven minutes of one core.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.record import finish
from medclip_dcl.image_only import artifacts
from medclip_dcl.tables import read_table
from medclip_dcl.training.logging import read_metrics

CONFIG = "configs/images/digits_r.yaml"
OBJECTIVES = {
    "CL": ["objective.kind=infonce"],
    "DCL low": ["views.eta=low"],
    "DCL high": ["views.eta=high"],
    "DCL true": ["views.eta=class_share"],
    "oracle": ["objective.kind=infonce", "objective.negatives=remove_labels"],
}
"""Objective -> its settings."""
SEEDS = 3
QUICK = ["train.steps=40", "train.warmup_steps=4", "probe.fractions=[0.1,1.0]", "probe.draws=1"]

Accuracies = dict[str, float]
"""`0.1` or `0.1 thinned` -> accuracy, mean over draws."""


def run(objective: str, seed: int, folder: Path, more: Sequence[str]) -> tuple[Accuracies, float]:
    """Train and probe one model.

    Args:
        objective: a key of `OBJECTIVES`.
        seed: seed of the recipe.
        folder: receives its artifacts; the image set of an earlier run is used again.
        more: further settings.

    Returns:
        Accuracies, and the last share of anchors on the floor.

    Raises:
        RuntimeError: a job failed.
    """
    settings = [
        *OBJECTIVES[objective],
        f"seed={seed}",
        f"work={folder}",
        "probe.tsne_images=0",
        f"probe.untrained={'true' if objective == 'CL' else 'false'}",
        *more,
    ]
    for job in ("prepare_image_set", "train", "probe_images"):
        if job == "prepare_image_set" and artifacts.IMAGE_SET.at(folder).exists():
            continue
        words = [sys.executable, "-m", f"pipelines.{job}", "--config", CONFIG]
        words += [word for item in settings for word in ("--set", item)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{job} ended with {done.returncode}: {done.stderr[-800:]}")
    floor = read_metrics(folder / "checkpoints")[-1]["frac_floor"]
    return _accuracies(folder, "trained"), floor


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        0, whatever the figures.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.image_probes")
    parser.add_argument("--quick", action="store_true", help="one seed, three objectives, 40 steps")
    quick = parser.parse_args(argv).quick
    os.environ["OMP_NUM_THREADS"] = "1"
    objectives = ("CL", "DCL true", "oracle") if quick else tuple(OBJECTIVES)
    found: dict[str, list[Accuracies]] = {name: [] for name in (*objectives, "untrained")}
    floors: dict[str, list[float]] = {name: [] for name in objectives}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(1 if quick else SEEDS):
            folder = Path(scratch) / f"seed-{seed}"
            for name in objectives:
                accuracies, floor = run(name, seed, folder, QUICK if quick else [])
                found[name].append(accuracies)
                floors[name].append(floor)
                if name == "CL":
                    found["untrained"].append(_accuracies(folder, "untrained"))
                print(f"  {name}, seed {seed}: {_shown(accuracies)}", flush=True)
    figures = _figures(found, floors)
    used = os.times()
    figures["cpu_seconds"] = used.children_user + used.children_system
    learned = figures["cl_minus_untrained_1"]
    return finish("image_probes", figures, {"cl_minus_untrained_1": ("> 0", learned > 0)})


def _figures(
    found: dict[str, list[Accuracies]], floors: dict[str, list[float]]
) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name in next(iter(found["CL"])):
        print(f"accuracy, share of labels {name}")
        baseline = [run[name] for run in found["CL"]]
        for objective, runs in found.items():
            values = [run[name] for run in runs]
            gaps = [value - cl for value, cl in zip(values, baseline, strict=True)]
            key = f"{objective}_{name}".replace(" ", "_").lower()
            figures[key] = statistics.fmean(values)
            line = f"    {objective:10} {statistics.fmean(values):.3f}"
            if objective != "CL":
                spread = statistics.stdev(gaps) if len(gaps) > 1 else 0.0
                wins = sum(gap > 0 for gap in gaps)
                figures[f"{key}_minus_cl"] = statistics.fmean(gaps)
                line += f"   less CL {statistics.fmean(gaps):+.3f} (sd {spread:.3f}, "
                line += f"{wins} of {len(gaps)} seeds above)"
            print(line)
    for objective, shares in floors.items():
        figures[f"floor_{objective}".replace(" ", "_").lower()] = statistics.fmean(shares)
        print(f"    {objective:10} anchors on the floor at the end {statistics.fmean(shares):.3f}")
    figures["seeds"] = len(found["CL"])
    figures["cl_minus_untrained_1"] = figures["cl_1"] - figures["untrained_1"]
    return figures


def _accuracies(folder: Path, encoder: str) -> Accuracies:
    rows = read_table(artifacts.PROBE.at(folder), artifacts.PROBES).to_pylist()
    mine = [row for row in rows if row["encoder"] == encoder]
    result = {}
    for fraction in dict.fromkeys(row["fraction"] for row in mine):
        cell = [row for row in mine if row["fraction"] == fraction]
        for title, column in (("", "accuracy"), (" thinned", "accuracy_thinned")):
            result[f"{fraction:g}{title}"] = statistics.fmean(row[column] for row in cell)
    return result


def _shown(accuracies: Accuracies) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in accuracies.items())


if __name__ == "__main__":
    sys.exit(main())
