"""Train a row of rows.yaml on the training patients of a fold, and ask it on the tested ones.

    TEST_DATA=FOLDER python -m benchmarks.method.real_studies.runs ROW ... [--folds 0 1] [--seed 1]

What is in the log is not done again, and a run that was killed is done again from its start.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.method.real_studies.losses import CHANGES, Classifier
from benchmarks.method.real_studies.questions import ask, ask_classifier
from benchmarks.method.real_studies.studies import FOLDS, HERE, Fold, read_folds, read_patients
from benchmarks.method.real_studies.styles import rewritten
from benchmarks.record import commit, machine
from medclip_dcl.data import manifest, prepared
from medclip_dcl.inference import model_package
from medclip_dcl.likelihood import masked_lm, scoring
from medclip_dcl.models.dual_encoder import evaluating
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels as claims
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.launch import start_accelerator
from medclip_dcl.training.publishing import package_model
from medclip_dcl.training.setup import TrainInputs, set_up
from medclip_dcl.training.trainer import run as train
from pipelines.job import Job, main_of

LOG = HERE.parents[1] / "results" / "real_studies_mates.jsonl"
ROWS: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "rows.yaml").read_text(encoding="utf-8"))[
    "rows"
]
_STAGES = (manifest, prepared, sentences, claims, masked_lm, scoring)
"""Artifacts of a fold, in the order in which they are made; the last for the paper's eta alone."""


@dataclass(frozen=True)
class Run:
    """A run: the row that is trained, the fold, and the seed; the start is random weights."""

    row: str
    fold: int
    seed: int

    @property
    def name(self) -> dict[str, Any]:
        """Its name in the log of runs."""
        return {"start": "random", "value": "", **vars(self)}

    @property
    def draw(self) -> int:
        """The seed of weights, batches and views: no two runs of a row share it."""
        return 1000 + 100 * self.seed + self.fold


def prepare(fold: Fold, shared: Fold, kinds: Sequence[Any]) -> None:
    """Make those artifacts of a fold that are missing; images and claims are linked to the first.

    A patient is in one fold's test set, and in all folds with the same image and report.
    """
    if not (fold.folder / "studies.parquet").is_file():
        fold.write_table()
    for module in kinds:
        path = module.ARTIFACT.at(fold.folder)
        linked = fold != shared and (module is prepared or (module is claims and not fold.style))
        if path.exists():
            continue
        if linked:
            path.symlink_to(module.ARTIFACT.at(shared.folder).resolve())
        else:
            _do(module.ARTIFACT.job, fold.config(), fold.folder / "config.yaml")


def _do(stage: str, config: Any, file: Path) -> None:
    tree = config.model_dump(mode="json")
    file.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    code = main_of(stage)(["--config", str(file)])
    if code:
        raise SystemExit(code)


def do_run(folds: Sequence[Fold], run: Run, work: Path) -> dict[str, Any]:
    """Train and ask a row; its line of the log. The model of the first fold and seed is kept."""
    began, wall = time.process_time(), time.monotonic()
    row, fold = ROWS[run.row], folds[run.fold]
    if style := row.get("style"):
        fold = fold.rewritten(style, [rewritten(patient, style) for patient in fold.training])
    if steps := row.get("language_model_steps"):
        fold = fold.varied(f"lm{steps}", f"language_model.steps={steps}")
    kinds = _STAGES if row.get("likelihoods") else _STAGES[:-1]
    prepare(folds[0], folds[0], _STAGES[:4])
    prepare(fold, folds[0], kinds)
    folder = work / "runs" / f"{run.row}-{run.fold}-{run.seed}"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(parents=True)
    for module in kinds:
        module.ARTIFACT.at(folder).symlink_to(module.ARTIFACT.at(fold.folder).resolve())
    changes = {"work": str(folder), "seed": run.draw, **row["settings"]}
    config = fold.config(*(f"{key}={json.dumps(value)}" for key, value in changes.items()))
    _do("build_eta_cache", config, folder / "config.yaml")
    job = Job("train", config, folder)
    accelerator = start_accelerator(config.train, config.workers)
    opened = job.open_inputs(verify=False)
    inputs = TrainInputs(**opened.values)
    inputs = replace(inputs, claims=job.open(claims.ARTIFACT, verify=False))
    setup = set_up(TrainingConfig.of(config), inputs, accelerator, lambda **facts: print(facts))
    if "change" in row:
        setup = CHANGES[row["change"]](setup, fold, **row.get("with", {}))
    has_texts = not isinstance(setup.objective, Classifier)
    store = CheckpointStore(folder / "checkpoints", {"run": run.name})
    with store.locked():
        result = train(
            setup.data,
            setup.encoder,
            setup.objective,
            setup.hooks,
            settings=setup.config.train,
            seed=setup.config.seed,
            accelerator=accelerator,
            store=store,
        )
    if not result.finished:  # a run that was told to stop has no figures
        raise SystemExit(
            f"{run.row} of fold {run.fold} was stopped; it is done again from its start"
        )
    train_cpu_s = time.process_time() - began
    with evaluating(setup.encoder), torch.inference_mode():
        figures = ask(setup, inputs, fold) if has_texts else ask_classifier(setup, fold)
    if "change" not in row and run.fold == run.seed == 0:
        job.make(
            model_package.ARTIFACT,
            {"row": run.row, "seed": run.draw},
            opened.digests,
            lambda writer: package_model(writer.directory, config, inputs, setup, result),
        )
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    spent = {"cpu_s": time.process_time() - began, "train_cpu_s": train_cpu_s}
    return {
        "run": run.name,
        "commit": commit(),
        "processor": machine()["processor"],
        "spent": rounded(spent | {"wall_s": time.monotonic() - wall}, 1),
        "figures": rounded(figures),
    }


def rounded(tree: Any, digits: int = 6) -> Any:
    """Round every float of a tree."""
    if isinstance(tree, Mapping):
        return {name: rounded(value, digits) for name, value in tree.items()}
    return round(float(tree), digits) if isinstance(tree, float) else tree


def missing(jobs: Sequence[Run], log: Path) -> list[Run]:
    """List the jobs that the log does not have."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    done = [json.loads(line)["run"] for line in lines]
    return [run for run in jobs if run.name not in done]


def main(argv: Sequence[str] | None = None) -> int:
    """Do the jobs that are missing, and append each to the log."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.method.real_studies.runs")
    parser.add_argument("rows", nargs="+", choices=ROWS, metavar="ROW")
    parser.add_argument("--folds", nargs="+", type=int, default=range(FOLDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("runs/real_studies"))
    parser.add_argument("--log", type=Path, default=LOG)
    options = parser.parse_args(argv)
    if "TEST_DATA" not in os.environ:
        parser.error("TEST_DATA is not set: there are no studies")
    root = Path(os.environ["TEST_DATA"]) / "openi"
    torch.set_num_threads(1)
    folds = read_folds(root, options.work, read_patients(root))
    runs = [Run(row, fold, options.seed) for fold in options.folds for row in options.rows]
    for run in missing(runs, options.log):
        line = do_run(folds, run, options.work)
        with options.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
