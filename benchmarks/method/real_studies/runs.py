"""One run: a row trained on the training patients of a fold, and asked on its tested ones."""

import importlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from accelerate import Accelerator
from sklearn.feature_extraction.text import TfidfVectorizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.method.real_studies.ceiling import probe_with_labels, train_with_labels
from benchmarks.method.real_studies.questions import ask, judge_scores
from benchmarks.method.real_studies.rows import FROZEN, IDEA_OF, ROWS
from benchmarks.method.real_studies.studies import (
    SIZE,
    VARIANTS,
    Fold,
    images_folder,
    weights_folder,
)
from benchmarks.record import commit, machine
from medclip_dcl import model_package
from medclip_dcl.artifact import ArtifactType
from medclip_dcl.data import manifest, prepared
from medclip_dcl.likelihood import masked_lm, scoring
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels as claims
from medclip_dcl.training import pretraining
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.launch import start_accelerator
from medclip_dcl.training.publishing import package_model
from medclip_dcl.training.setup import TrainInputs, TrainSetup, set_up
from medclip_dcl.training.trainer import TrainResult
from medclip_dcl.training.trainer import run as train
from medclip_dcl.training.validation import evaluating
from pipelines.job import Job

LINKED: tuple[ArtifactType, ...] = (
    manifest.ARTIFACT, prepared.ARTIFACT, sentences.ARTIFACT, claims.ARTIFACT,
    masked_lm.ARTIFACT, scoring.ARTIFACT,
)  # fmt: skip
"""Artifacts of a fold that its runs share."""
JUDGE = "validation_report_auc"
"""Figure of validation that chooses steps and values: it reads reports, and no expert's label."""
TFIDF = "tfidf.parquet"
DECAY = 0.99
"""Of averaged weights, a step: about the last hundred count."""
STARTS = ("random", "warm", *VARIANTS)


class Run(NamedTuple):
    """A run of the table."""

    start: str
    row: str
    value: str
    fold: int
    seed: int

    @property
    def name(self) -> str:
        """Its name in the log of runs, and that of its folder."""
        return "/".join(str(part) for part in self if part != "")

    @property
    def draw(self) -> int:
        """The seed of weights, batches and views: no two runs of a row share it."""
        return 1000 + 100 * self.seed + self.fold


@dataclass(frozen=True)
class Bed:
    """Where runs are done."""

    folds: tuple[Fold, ...]
    work: Path
    overrides: tuple[str, ...] = ()
    """Settings of all runs; sizes of a trial."""

    def folder(self, run: Run) -> Path:
        """Folder of a run."""
        return self.work / "runs" / run.name

    def found(self, run: Run) -> dict[str, Any] | None:
        """Give what a finished run came to."""
        path = self.folder(run) / "run.json"
        if not path.is_file():
            return None
        line: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return line


def do_all(bed: Bed, runs: Iterable[Run], processes: int) -> Iterator[dict[str, Any]]:
    """Do the runs that are not done, and yield the line of each as it is done.

    Some run at a time, each in a process of its own and on one thread.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    waiting = [run for run in runs if bed.found(run) is None]
    running: list[tuple[BaseProcess, Run]] = []
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                process = context.Process(target=do_run, args=(bed, waiting[0]))
                process.start()
                running.append((process, waiting.pop(0)))
            connection.wait([child.sentinel for child, _ in running])
            for child, run in [item for item in running if item[0].exitcode is not None]:
                running.remove((child, run))
                line = bed.found(run)
                if line is None:
                    raise SystemExit(f"run {run.name} ended with exit code {child.exitcode}")
                yield line
    finally:
        for child, _ in running:
            child.terminate()


def do_run(bed: Bed, run: Run) -> None:
    """Train and ask a row, and write what it came to."""
    torch.set_num_threads(1)
    folder = bed.folder(run)
    shutil.rmtree(folder, ignore_errors=True)  # one that was killed is done again
    folder.mkdir(parents=True)
    with (folder / "log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
        lines = _train_and_ask(bed, run, folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    text = json.dumps(lines)
    (folder / "run.json.part").write_text(text, encoding="utf-8")
    (folder / "run.json.part").replace(folder / "run.json")


def lay_out(bed: Bed, run: Run, folder: Path) -> Job:
    """Make a run's folder: links to what its fold shares, its config, its eta."""
    fold, size_px = bed.folds[run.fold], ROWS[run.row].settings.get(SIZE)
    for kind in LINKED:
        other = size_px is not None and kind is prepared.ARTIFACT
        source = images_folder(fold, size_px) if other else fold.folder
        link = kind.at(folder)
        if not link.exists():
            link.symlink_to(os.path.relpath(kind.at(source), folder))
    return _configured(fold, run, folder, bed.overrides)


def _configured(fold: Fold, run: Run, folder: Path, overrides: Sequence[str]) -> Job:
    row = ROWS[run.row]
    changes = {"work": str(folder), "seed": run.draw, **row.points[run.value]}
    changes |= {"train.best_metric": JUDGE} if row.stopped else {}
    if run.start != "random":
        weights = pretraining.ARTIFACT.at(weights_folder(fold, run.start))
        changes["model.image.pretrained"] = str(weights)
    os.environ["TFIDF"] = str(fold.folder / TFIDF)
    given = (f"{key}={json.dumps(each)}" for key, each in changes.items())
    config = fold.config(*overrides, *given)
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), "utf-8")
    code = importlib.import_module("pipelines.build_eta_cache").main(["--config", str(file)])
    if code:
        raise SystemExit(code)
    return Job("train", config, folder)


def make_model(fold: Fold, row: str, value: str, overrides: Sequence[str] = ()) -> Path:
    """Train a row, of a tuned value, on a fold; its model is in the fold's folder."""
    work, run = fold.folder, Run("random", row, value, fold.number, 0)
    job = _configured(fold, run, work, overrides)
    accelerator = start_accelerator(job.config.train)
    opened = job.open_inputs(verify=False)
    inputs = TrainInputs(**opened.values)
    inputs = replace(inputs, claims=job.open(claims.ARTIFACT, verify=False))
    setup = set_up(TrainingConfig.of(job.config), inputs, accelerator, work, print_line)
    change = ROWS[row].change
    setup = setup if change is None else change(setup, inputs)
    store = CheckpointStore(work / "checkpoints", {"run": run.name})
    with store.locked():
        result = _trained(setup, accelerator, store)
    settings = {"row": row, "config": job.config.model_dump(mode="json")}
    made = job.make(
        model_package.ARTIFACT,
        settings,
        opened.digests,
        lambda writer: package_model(writer.directory, job.config, inputs, setup, result),
    )
    return made.path


def _trained(setup: TrainSetup, accelerator: Accelerator, store: CheckpointStore) -> TrainResult:
    return train(
        setup.data,
        setup.encoder,
        setup.objective,
        setup.hooks,
        settings=setup.config.train,
        seed=setup.config.seed,
        accelerator=accelerator,
        store=store,
    )


def _train_and_ask(bed: Bed, run: Run, folder: Path) -> dict[str, Any]:
    fold, row = bed.folds[run.fold], ROWS[run.row]
    begun, wall = time.process_time(), time.monotonic()
    if row.members > 1:
        figures, kept = ask_together(bed, run, row.members)
        np.savez_compressed(folder / "scores.npz", **kept)
        return _line(run, _spent(begun, wall), figures)
    job = lay_out(bed, run, folder)
    accelerator = start_accelerator(job.config.train)
    inputs = TrainInputs(**job.open_inputs(verify=False).values)
    inputs = replace(inputs, claims=job.open(claims.ARTIFACT, verify=False))
    setup = set_up(TrainingConfig.of(job.config), inputs, accelerator, folder, print_line)
    if row.change is not None:
        setup = row.change(setup, inputs)
    if row.part == "ceiling":
        if run.row == FROZEN.name:
            figures, kept = probe_with_labels(setup, fold)
        else:
            figures, kept = train_with_labels(setup, fold, print_line)
        np.savez_compressed(folder / "scores.npz", **kept)
        return _line(run, _spent(begun, wall), figures)
    store = CheckpointStore(folder / "checkpoints", {"run": run.name})
    with store.locked(), averaged(setup.encoder) if row.averaged else nullcontext() as mean:
        result = _trained(setup, accelerator, store)
    if mean is not None:
        setup.encoder.load_state_dict(mean.module.state_dict())
    spent = _spent(begun, wall)
    figures, kept = ask(setup, inputs, fold)
    assert setup.validation is not None
    assert setup.validation.metrics is not None
    with evaluating(setup.encoder):
        figures["validation"] = setup.validation.metrics(setup.encoder, accelerator.device)
    np.savez_compressed(folder / "scores.npz", **kept)
    line = _line(run, spent, figures)
    if row.stopped:
        setup.encoder.load_state_dict(result.weights)
        early, kept = ask(setup, inputs, fold)
        np.savez_compressed(folder / "scores_early.npz", **kept)
        line["early"] = rounded(early) | {"step": result.published_step}
    return line


def ask_together(bed: Bed, run: Run, members: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ask with the mean score of several runs of `IDEA_OF`; those that are not done are done."""
    parts = []
    for seed in range(members):
        member = Run(run.start, IDEA_OF, "", run.fold, seed)
        if bed.found(member) is None:
            do_run(bed, member)
        with np.load(bed.folder(member) / "scores.npz") as kept:
            parts.append((kept["uid"], kept["scores"].astype(np.float64)))
    (owners, *others), scores = zip(*parts, strict=True)
    if any((uids != owners).any() for uids in others):
        raise SystemExit(f"members of {run.name} were asked about other images")
    return judge_scores(bed.folds[run.fold], owners, np.mean(scores, axis=0))


@contextmanager
def averaged(encoder: torch.nn.Module) -> Iterator[AveragedModel]:
    """Keep a running mean of a model's weights over the steps of any optimiser."""
    average = get_ema_multi_avg_fn(DECAY)  # type: ignore[no-untyped-call]
    mean = AveragedModel(encoder, multi_avg_fn=average, use_buffers=True)
    hook = register_optimizer_step_post_hook(lambda *_: mean.update_parameters(encoder))
    try:
        yield mean
    finally:
        hook.remove()


def _spent(begun: float, wall: float) -> dict[str, float]:
    return {
        "cpu_s": round(time.process_time() - begun, 1),
        "wall_s": round(time.monotonic() - wall, 1),
    }


def _line(run: Run, spent: dict[str, float], figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": run._asdict(),
        "commit": commit(),
        "processor": machine()["processor"],
        "spent": spent,
        "figures": rounded(figures),
    }


def print_line(**facts: Any) -> None:
    """Write facts of a run into its log."""
    print(json.dumps(facts), flush=True)


def rounded(tree: Any) -> Any:
    """Round every number of a tree to six decimals."""
    if isinstance(tree, dict):
        return {name: rounded(value) for name, value in tree.items()}
    return round(float(tree), 6) if isinstance(tree, float | np.floating) else tree


def write_tfidf(fold: Fold) -> None:
    """Write TF-IDF vectors of every sentence; words and weights are those of training sentences."""
    columns = ["split", "text", "text_key"]
    rows = read_table(sentences.ARTIFACT.at(fold.folder), sentences.SENTENCES, columns).to_pylist()
    texts = {row["text_key"]: row["text"] for row in rows}
    model = TfidfVectorizer(sublinear_tf=True, min_df=2, dtype=np.float32)
    model.fit([row["text"] for row in rows if row["split"] == "train"])
    vectors = model.transform(list(texts.values())).toarray()
    table = pa.table({"text_key": list(texts), "vector": list(vectors)})
    pq.write_table(table, fold.folder / TFIDF, compression="zstd")
