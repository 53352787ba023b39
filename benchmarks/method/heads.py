"""Heads on real studies: what labels of one's own add to the prompts, and how many it takes.

    TEST_DATA=... python -m benchmarks.heads [--work FOLDER]

Trains `configs/train/open_i_small.yaml` with 750 steps, unless the folder holds that run. Heads are
fitted to the experts' labels of the training patients, by the job's own functions, and compared
with the prompts of the same model on the same test patients: with all labels, and with 1, 4, 16 and
64 images of each class in five draws. The mean AUC is over the findings that have prompts; with 64
over those that have so many. There is no bar: nobody has fixed one before the first run.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.record import finish, judge
from medclip_dcl import model_package
from medclip_dcl.artifact import open_artifact
from medclip_dcl.errors import MedclipError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Samples, Weights, estimate
from medclip_dcl.evaluation.classification import finding_figures
from medclip_dcl.evaluation.evaluated_model import encode, evaluated_model
from medclip_dcl.evaluation.head_fitting import SHOTS, HeadSplits, few_shot, fit_arrays
from medclip_dcl.evaluation.metrics import mean_of, roc_auc
from medclip_dcl.inference.heads import head_margins
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.models.settings import HeadFeatures, HeadKind
from pipelines.config import Config, load_config
from pipelines.fit_head import read_splits, rows_by_split
from pipelines.job import Job

CONFIG, STEPS = Path("configs/train/open_i_small.yaml"), 750
ROWS: dict[str, tuple[HeadKind, HeadFeatures]] = {
    "linear": ("linear", "space"),
    "linear_encoder": ("linear", "encoder"),
    "prototypes": ("prototypes", "space"),
    "knn": ("knn", "space"),
}
"""Row -> kind and features."""
_BOOTSTRAP = BootstrapOptions(1000, 0)
_SEED = 0
Margins = Mapping[str, np.ndarray]
"""Finding -> margins of the test images."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where nothing could be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heads")
    parser.add_argument("--work", type=Path, default=Path("runs/heads"), help="folder of the run")
    work = parser.parse_args(argv).work.resolve()
    data = os.environ.get("TEST_DATA")
    if not data:
        print("TEST_DATA is not set; heads need Open-i's studies", file=sys.stderr)
        return 1
    os.environ["OPEN_I"] = str(Path(data) / "openi")
    settings = [f"work={work}", f"train.steps={STEPS}"]
    try:
        open_artifact(model_package.ARTIFACT.at(work), model_package.ARTIFACT)
    except MedclipError:
        options = [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "pipelines", "run", str(CONFIG), *options]
        if subprocess.run(command, check=False).returncode:
            return 1
    config = load_config(CONFIG, settings)
    figures, kept = measure(config, work)
    return finish("heads", figures, judge(figures, {}), kept=kept)


def measure(config: Config, work: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Give mean AUCs, and what the page prints of each finding."""
    job = Job("heads", config, work)
    predictor = load(work)
    findings = {finding.label: finding for finding in predictor.findings}
    figures: dict[str, float] = {}
    kept: dict[str, Any] = {"auc": {}, "difference": {}, "few_shot": {}}
    prompts: Margins = {}
    for row, (kind, features) in ROWS.items():
        splits = read_splits(job, predictor, features, list(findings))
        if not prompts:
            prompts = prompt_margins(job, predictor, splits)
            _note(figures, kept, "prompts", prompts, splits)
            for name, parts in splits.items():
                figures |= {f"{name}_train": float(parts.train.labels.sum())}
                figures |= {f"{name}_test": float(parts.test.labels.sum())}
        margins = {
            name: head_margins(kind, *fit_arrays(kind, parts.train, parts.validate),
                               parts.test.features)
            for name, parts in splits.items()
        }  # fmt: skip
        _note(figures, kept, row, margins, splits)
        gain = mean_difference(margins, prompts, splits)
        kept["difference"][row] = gain
        figures[f"{row}_minus_prompts"] = gain["value"]
        for shots, drawn in few_shots(kind, splits).items():
            kept["few_shot"][f"{row}_{shots}"] = drawn
            figures[f"{row}_{shots}"] = fmean(drawn["draws"])
            own = fmean(kept["auc"]["prompts"][name]["value"] for name in drawn["findings"])
            figures[f"prompts_where_{shots}"] = own
            figures[f"findings_{shots}"] = len(drawn["findings"])
    return figures, kept


def prompt_margins(job: Job, predictor: Predictor, splits: Mapping[str, HeadSplits]) -> Margins:
    """Ask the model's own prompts about the test images of each finding."""
    model = evaluated_model(predictor)
    _, images, rows = rows_by_split(job)
    encoded = encode(model.embed_images, rows["test"], images, "whole")
    margins = model.margins(encoded.regions, predictor.findings).double().cpu().numpy()
    of_label = {f.label: margin for f, margin in zip(predictor.findings, margins, strict=True)}
    for name, parts in splits.items():
        assert len(parts.test.labels) == len(of_label[name]), "every test image has a label"
    return of_label


def few_shots(kind: str, splits: Mapping[str, HeadSplits]) -> dict[int, dict[str, Any]]:
    """Average each draw's AUC over the findings that have so many images."""
    found = {
        name: {item.positives: item.auc for item in few_shot(kind, parts.train, parts.test, _SEED)}
        for name, parts in splits.items()
    }
    drawn = {}
    for shots in SHOTS:
        names = [name for name, aucs in found.items() if shots in aucs]
        draws = zip(*(found[name][shots] for name in names), strict=True)
        means = [fmean(auc for auc in draw if auc is not None) for draw in draws]
        drawn[shots] = {"findings": names, "draws": [round(mean, 6) for mean in means]}
    return drawn


def _note(
    figures: dict[str, float],
    kept: dict[str, Any],
    row: str,
    margins: Margins,
    splits: Mapping[str, HeadSplits],
) -> None:
    kept["auc"][row] = {}
    for name, parts in splits.items():
        truth, owners = parts.test.labels.astype(np.int8), parts.test.subject_ids
        auc = finding_figures(margins[name], truth, owners, _BOOTSTRAP)["auc"]
        kept["auc"][row][name] = _rounded(auc)
        figures[f"{row}_{name}"] = auc.value or 0.0
    mean = mean_difference(margins, None, splits)
    kept["auc"][row]["mean"] = mean
    figures[row] = mean["value"]


def mean_difference(
    margins: Margins, others: Margins | None, splits: Mapping[str, HeadSplits]
) -> dict[str, float]:
    """Average the AUC over findings, minus that of others; the interval is over test patients."""
    owners = next(iter(splits.values())).test.subject_ids
    positive = {name: parts.test.labels == 1 for name, parts in splits.items()}

    def measured(weights: Weights, of: Margins) -> Samples:
        return mean_of([roc_auc(of[name], positive[name], weights) for name in positive])

    def difference(weights: Weights) -> dict[str, Samples]:
        own = measured(weights, margins)
        return {"mean": own if others is None else own - measured(weights, others)}

    return _rounded(estimate(difference, owners, _BOOTSTRAP, "no finding")["mean"])


def _rounded(figure: Any) -> dict[str, float]:
    values = {"value": figure.value, "low": figure.low, "high": figure.high}
    return {name: round(float(value), 6) for name, value in values.items()}


if __name__ == "__main__":
    sys.exit(main())
