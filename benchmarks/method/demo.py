"""Does the demo learn, and does its control with shuffled reports not?

    make demo && python -m benchmarks.method.demo [--quick]

Reads the results of the demo, then trains the same config on the same artifacts with every
image paired with another study's report, once per seed (`--quick`: one seed). Seeds, sizes
and bars were fixed before the first run.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.record import finish
from medclip_dcl.artifact import open_artifact
from medclip_dcl.config import load_config, resolve_path
from medclip_dcl.data import manifest, prepared
from medclip_dcl.evaluation import results
from medclip_dcl.likelihood import eta, masked_lm
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels

CONFIG = Path("configs/demo.yaml")
SEEDS = (0, 1, 2, 3, 4)
SHARED = (labels, eta, masked_lm, manifest, prepared, sentences)
FIGURES = {
    "auc": ("zero_shot", "mean_auc"),
    "cnr": ("grounding", "cnr"),
    "gallery_r_at_5": ("gallery", "recall_at_5"),
}


def read_figures(work: Path) -> dict[str, float]:
    """Read the headline figures of an evaluated recipe.

    Args:
        work: folder of the config.

    Returns:
        Figure -> value: mean AUC, CNR, R@5 in the gallery and what chance gives.
    """
    questions = results.read_figures(open_artifact(results.ARTIFACT.at(work), results.ARTIFACT))[
        "questions"
    ]
    figures = {
        name: float(questions[question]["figures"][figure]["value"])
        for name, (question, figure) in FIGURES.items()
    }
    return figures | {"gallery_chance": float(questions["gallery"]["chance"]["recall_at_5"])}


def train_control(work: Path, seed: int) -> dict[str, float]:
    """Train and evaluate the config with shuffled reports, reusing the demo's artifacts.

    Args:
        work: folder of the finished demo.
        seed: seed of the control.

    Returns:
        Its figures, as `read_figures` gives them.
    """
    folder = work.with_name(f"{work.name}-shuffled-{seed}")
    folder.mkdir(exist_ok=True)
    for artifact in SHARED:
        link = artifact.ARTIFACT.at(folder)
        if not link.exists():
            link.symlink_to(os.path.relpath(artifact.ARTIFACT.at(work), folder))
    settings = [
        f"work={folder}",
        f"seed={seed}",
        f"generate.root={work / 'studies'}",
        f"source.root={work / 'studies'}",
        "train.shuffle_reports=true",
    ]
    options = [word for setting in settings for word in ("--set", setting)]
    for job in ("train", "evaluate"):
        command = [sys.executable, "-m", f"pipelines.{job}", "--config", str(CONFIG), *options]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return read_figures(folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the demo next to its controls.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        0, or 1 where the demo has not been run.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.method.demo")
    parser.add_argument("--quick", action="store_true", help="one seed of the control")
    seeds = SEEDS[:1] if parser.parse_args(argv).quick else SEEDS
    config = load_config(CONFIG)
    work = resolve_path(config.work, config)
    if not results.ARTIFACT.at(work).is_dir():
        print("no results of the demo; run `make demo` first", file=sys.stderr)
        return 1
    demo = read_figures(work)
    controls = [train_control(work, seed) for seed in seeds]
    control = {name: fmean(run[name] for run in controls) for name in demo}
    print(f"{'':16}{'demo':>10}{'shuffled, mean of ' + str(len(seeds)):>24}")
    for name, value in demo.items():
        print(f"{name:16}{value:10.3f}{control[name]:24.3f}")
    figures = {f"demo_{name}": round(value, 4) for name, value in demo.items()}
    figures |= {f"shuffled_{name}": round(value, 4) for name, value in control.items()}
    figures |= {
        f"shuffled_auc_seed_{s}": round(r["auc"], 4) for s, r in zip(seeds, controls, strict=True)
    }
    bars = {
        "demo_auc": (">= 0.82", demo["auc"] >= 0.82),
        "demo_cnr": (">= 1.3", demo["cnr"] >= 1.3),
        "demo_gallery_r_at_5": (">= 0.45", demo["gallery_r_at_5"] >= 0.45),
        "shuffled_auc": ("0.5 +- 0.06", abs(control["auc"] - 0.5) <= 0.06),
    }
    return finish("demo", figures, bars)


if __name__ == "__main__":
    sys.exit(main())
