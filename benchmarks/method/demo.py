"""Does the demo learn, does cross learn more, and does a control with shuffled reports not?

    make demo && python -m benchmarks.method.demo [--quick]

Trains the demo, `configs/demo_cross.yaml` and a control on the demo's artifacts. In the control
every image is paired with another study's report. A seed changes weights, batches and crops; the
studies stay. Finished runs are read again. `--quick`: one seed of each. Seeds, sizes and bars were
fixed before the first run.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.record import finish, is_quick, judge
from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.data import manifest, prepared
from medclip_dcl.evaluation import results
from medclip_dcl.likelihood import eta, masked_lm
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from pipelines.config import load_config
from tests.support.processes import options

CONFIG, CROSS = Path("configs/demo.yaml"), Path("configs/demo_cross.yaml")
ROWS: dict[str, tuple[Path, tuple[int, ...], tuple[str, ...]]] = {
    "demo": (CONFIG, (0, 1, 2), ()),
    "cross": (CROSS, (0, 1, 2), ()),
    "shuffled": (CONFIG, (0, 1, 2), ("train.shuffle_reports=true",)),
}
"""Row -> its config, seeds and further settings."""
SHARED = (labels, eta, masked_lm, manifest, prepared, sentences)
FIGURES = {
    "auc": ("zero_shot", "mean_auc"),
    "balanced_accuracy": ("zero_shot", "mean_balanced_accuracy"),
    "balanced_accuracy_offset": ("zero_shot", "mean_balanced_accuracy_offset"),
    "cnr": ("grounding", "cnr"),
    "own_recall": ("boxes", "own_recall"),
}


BARS = {
    "demo_auc": ">= 0.82",
    "demo_cnr": ">= 1.4",
    "cross_auc": ">= 0.98",
    "cross_balanced_accuracy": ">= 0.94",
    "cross_cnr": ">= 1.5",
    "cross_own_recall": ">= 0.5",
}
"""Of means over seeds."""
_NEAR_CHANCE = 0.06


def read_figures(work: Path) -> dict[str, float]:
    """Read `FIGURES` of an evaluated run."""
    artifact = open_artifact(results.ARTIFACT.at(work), results.ARTIFACT)
    questions = results.read_figures(artifact)["questions"]
    return {
        name: float(questions[question]["figures"][figure]["value"])
        for name, (question, figure) in FIGURES.items()
    }


def run_seed(work: Path, row: str, seed: int) -> dict[str, float]:
    """Train and evaluate a row with a seed on the artifacts of the finished demo in `work`."""
    config, _, changes = ROWS[row]
    folder = work.with_name(f"{work.name}-{row}-{seed}")
    folder.mkdir(exist_ok=True)
    for artifact in SHARED:
        link = artifact.ARTIFACT.at(folder)
        if not link.exists():
            link.symlink_to(os.path.relpath(artifact.ARTIFACT.at(work), folder))
    studies = work / "studies"
    places = (f"work={folder}", f"source.root={studies}")
    words = ["--config", str(config), *options((*places, f"seed={seed}", *changes))]
    words.append("--replace")  # an earlier commit's, in a folder of this benchmark
    for job in ("train", "evaluate"):
        command = [sys.executable, "-m", "pipelines", job, *words]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return read_figures(folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Print every row's mean and seeds; 1 where the demo has not been run."""
    quick = is_quick(argv)
    config = load_config(CONFIG)
    work = resolve_path(config.work, config.work)
    if not results.ARTIFACT.at(work).is_dir():
        print("no results of the demo; run `make demo` first", file=sys.stderr)
        return 1
    runs = {
        row: {seed: run_seed(work, row, seed) for seed in (seeds[:1] if quick else seeds)}
        for row, (_, seeds, _) in ROWS.items()
    }
    means = {
        row: {name: fmean(run[name] for run in by_seed.values()) for name in FIGURES}
        for row, by_seed in runs.items()
    }
    figures = {f"{row}_{name}": round(means[row][name], 4) for row in runs for name in FIGURES}
    figures |= {
        f"{row}_{name}_seed_{seed}": round(run[name], 4)
        for row, by_seed in runs.items()
        for seed, run in by_seed.items()
        for name in (("auc",) if row == "shuffled" else FIGURES)
    }
    chance = abs(means["shuffled"]["auc"] - 0.5) <= _NEAR_CHANCE
    control = {"shuffled_auc": (f"0.5 +- {_NEAR_CHANCE}", chance)}
    return finish("demo", figures, judge(figures, BARS) | control)


if __name__ == "__main__":
    sys.exit(main())
