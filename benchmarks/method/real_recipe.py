"""What the recipe of Open-i takes, and what its model knows: configs/train/open_i_small.yaml.

    python -m benchmarks.real_recipe [--work FOLDER]

Does the whole recipe, or what is missing of it in FOLDER, and reads what `medclip show` shows: the
seconds of its stages, and the mean AUC of its six findings on its own test patients. Time it with
nothing else running. `benchmarks.real_studies` holds the kept line against the same bars.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.method.real_studies.summary import BARS
from benchmarks.record import finish, judge
from medclip_dcl.artifact import HEADER, open_artifact, read_artifact_header
from medclip_dcl.evaluation import results

CONFIG = "configs/train/open_i_small.yaml"


def read_figures(work: Path) -> dict[str, float]:
    """Read the minutes and the mean AUC, with its interval, of a finished run."""
    made = [read_artifact_header(header.parent) for header in work.glob(f"*/{HEADER}")]
    artifact = open_artifact(results.ARTIFACT.at(work), results.ARTIFACT)
    auc = results.read_figures(artifact)["questions"]["zero_shot"]["figures"]["mean_auc"]
    return {
        "recipe_minutes": sum(float(item.origin["seconds"]) for item in made) / 60,
        "recipe_auc_of_six": auc["value"],
        "recipe_auc_of_six_low": auc["low"],
        "recipe_auc_of_six_high": auc["high"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_recipe")
    parser.add_argument("--work", type=Path, default=Path("runs/real_recipe"))
    work = parser.parse_args(argv).work.resolve()
    root = os.environ.get("TEST_DATA")
    if root is None:
        print("TEST_DATA is not set: there are no studies", file=sys.stderr)
        return 1
    subprocess.run(
        [sys.executable, "-m", "pipelines.run", CONFIG, "--set", f"work={work}"],
        env=os.environ | {"OPEN_I": str(Path(root) / "openi")},
        stdout=sys.stderr,
        check=True,
    )
    figures = read_figures(work)
    return finish("real_recipe", figures, judge(figures, BARS))


if __name__ == "__main__":
    sys.exit(main())
