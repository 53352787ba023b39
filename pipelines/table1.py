"""Train and evaluate every row of the paper's Table 1 over several seeds, and print it.

    python -m pipelines table1 --config FILE [--set table1.processes=2]

First the config's jobs up to the likelihoods run, once; then every row and seed in a folder
of its own under `table1`, with its own eta, model and results, and links to what all share. A
run is done once its note says so, written after its results were committed: the note names the
settings and inputs that it was made from, so that a changed config is run again. A killed run
goes on from its newest checkpoint.

Next to each figure stand half its 95 % interval, over patients and seeds, and in brackets the
paper's value. Every row is compared with the uncorrected one.
"""

import fcntl
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from threadpoolctl import threadpool_limits

from medclip_dcl import model_package
from medclip_dcl.artifact import HEADER, json_digest, open_artifact, read_artifact_header
from medclip_dcl.config import Config, resolve_path
from medclip_dcl.data import manifest, prepared
from medclip_dcl.errors import ArtifactError, JobFailed
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.compare import (
    compare_sides,
    describe_difference,
    estimate_side,
    measure_sides,
    read_sample_results,
)
from medclip_dcl.files import write_text
from medclip_dcl.likelihood import masked_lm, scoring
from medclip_dcl.progress import Progress
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.training import checkpoint

from . import build_eta_cache, evaluate, train
from .job import STOPPED, Job, Stopped, job_main
from .stages import STAGES, stages_of
from .table1_rows import BASELINE, COLUMNS, MORE, Row, chosen_rows

FOLDER = "table1"
FIGURES = "table1.json"
NOTE, CONFIG_FILE, LOG = "run.json", "config.yaml", "log.txt"
_SPENT = "spent.json"
_NOTHING_SPENT = {"wall_s": 0.0, "cpu_s": 0.0, "model": ""}
_COSTS = ("wall_s", "cpu_s", "model_mb")
_PREPARATION = tuple(STAGES)[: list(STAGES).index("build_eta_cache")]
_SHARED = (labels, masked_lm, scoring, manifest, prepared, sentences)
_WIDTH = 21


@dataclass(frozen=True)
class Run:
    """One row with one seed: its folder and what it is made from."""

    row: Row
    seed: int
    folder: Path
    settings: Mapping[str, Any]
    digest: str

    def note(self) -> dict[str, Any] | None:
        """Give `digest`, `model_mb`, and `wall_s` and `cpu_s` over all attempts.

        None where the run is not done, or was done with other settings.
        """
        try:
            tree: dict[str, Any] = json.loads((self.folder / NOTE).read_text(encoding="utf-8"))
            open_artifact(results.ARTIFACT.at(self.folder), results.ARTIFACT, verify=False)
        except (OSError, ValueError, ArtifactError):
            return None
        return tree if tree.get("digest") == self.digest else None

    def costs(self) -> dict[str, float]:
        """Give what a run that is done has cost."""
        note = self.note() or {}
        return {name: note[name] for name in _COSTS if name in note}


def build(job: Job) -> None:
    """Run what is missing and print the table."""
    config, folder = job.config, job.work / FOLDER
    rows = chosen_rows(config)
    folder.mkdir(parents=True, exist_ok=True)
    _prepare(config, folder)
    runs = _plan_runs(config, rows, folder)
    done = sum(run.note() is not None for run in runs)
    job.say(runs=len(runs), done=done, processes=config.table1.processes)
    with Progress("runs", len(runs), "run") as progress:
        progress.advance(done)
        for run in _do_runs(runs, config.table1.processes):
            job.say(row=run.row.name, seed=run.seed, **run.costs())
            progress.advance(1)
    tree = _measure_table(runs, rows, config.evaluate.bootstrap)
    write_text(folder / FIGURES, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    print(table_text(tree), flush=True)


def _prepare(config: Config, folder: Path) -> None:
    """Run the config's jobs up to the likelihoods; each leaves alone what is valid."""
    config_file = folder / CONFIG_FILE
    write_text(config_file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    for name in stages_of(config):
        if name in _PREPARATION:
            job = importlib.import_module(f".{name}", __package__)
            code: int = job.main(["--config", str(config_file)])
            if code == STOPPED:
                raise Stopped
            if code:
                raise JobFailed(
                    f"{name} failed; correct what it names and run again to go on", code
                )


def _plan_runs(config: Config, rows: Sequence[Row], folder: Path) -> list[Run]:
    """List the runs, every row of a seed before the next seed; other people's models once."""
    work = resolve_path(config.work, config)
    inputs = {
        item.ARTIFACT.name: read_artifact_header(item.ARTIFACT.at(work)).digest
        for item in _SHARED
        if (item.ARTIFACT.at(work) / HEADER).is_file()
    }
    runs = []
    for seed in config.table1.seeds:
        for row in rows:
            if row.is_trained or seed == config.table1.seeds[0]:
                own = folder / row.name / f"seed-{seed}"
                settings = _settings(config, row, seed, own, work)
                digest = json_digest({"settings": settings, "inputs": inputs})
                runs.append(Run(row, seed, own, settings, digest))
    return runs


def _settings(config: Config, row: Row, seed: int, own: Path, work: Path) -> dict[str, Any]:
    """Turn the config into that of a run: plain values, the shared folder's name written out."""
    text = json.dumps(config.model_dump(mode="json"))
    tree: dict[str, Any] = json.loads(text.replace("${WORK}", json.dumps(str(work))[1:-1]))
    adapter: dict[str, Any] = {}
    if not row.is_trained:
        adapter = next(m["adapter"] for m in tree["table1"]["models"] if m["name"] == row.name)
    tree |= {"work": str(own), "seed": seed, "jobs": [], "table1": {}}
    for section, changes in row.changes.items():
        part = tree["model"][section] if section == "similarity" else tree[section]
        part |= changes
    tree["train"]["torch_threads"] = 1
    tree["evaluate"]["adapter"] = adapter
    return tree


def _lay_out(run: Run) -> None:
    """Make the folder of a run: its config, and links to what all share."""
    run.folder.mkdir(parents=True, exist_ok=True)
    config_file = run.folder / CONFIG_FILE
    text = yaml.safe_dump(dict(run.settings), sort_keys=False)
    if config_file.is_file() and config_file.read_text(encoding="utf-8") != text:
        shutil.rmtree(checkpoint.ARTIFACT.at(run.folder), ignore_errors=True)  # another config's
        if not _model(run.folder):
            (run.folder / _SPENT).unlink(missing_ok=True)
    shared = run.folder.parents[2]
    for item in _SHARED:
        link, target = item.ARTIFACT.at(run.folder), item.ARTIFACT.at(shared)
        if target.is_dir() and not link.is_symlink():
            link.symlink_to(os.path.relpath(target, run.folder))
    write_text(config_file, text)


def _do_runs(runs: Sequence[Run], processes: int) -> Iterator[Run]:
    """Do what is not done yet, `processes` at a time, and yield every run as it is done.

    With one process runs are done in this one. When the table is stopped or a run fails, the
    others save and end.
    """
    waiting = [run for run in runs if run.note() is None]
    for run in waiting:
        _lay_out(run)
    if processes == 1:
        for run in waiting:
            _raise_for(_do_run(run), run)
            yield run
        return
    # A run is forked from a process that has imported the jobs, which takes seconds, and no more.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([train.__name__, evaluate.__name__])
    running: list[tuple[BaseProcess, Run]] = []
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                process = context.Process(target=_do_run_of_parent, args=(waiting[0],))
                process.start()
                running.append((process, waiting.pop(0)))
            connection.wait([child.sentinel for child, _ in running])
            for child, run in [item for item in running if item[0].exitcode is not None]:
                running.remove((child, run))
                _raise_for(child.exitcode, run)
                yield run
    finally:
        for child, _ in running:
            child.terminate()
        for child, _ in running:
            child.join()


def _do_run_of_parent(run: Run) -> None:
    """Do a run in a process of its own, which saves and ends when its parent is killed."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    sys.exit(_do_run(run))


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _raise_for(code: int | None, run: Run) -> None:
    if code == STOPPED:
        raise Stopped
    if code:  # below 0: killed from outside, most likely for its memory
        raise JobFailed(
            f"run {run.folder} ended with exit code {code}; its {LOG} says why; correct that and "
            "run again",
            max(code, 1),
        )


def _do_run(run: Run) -> int:
    """Train and evaluate on one thread; 0, or the exit code of the job that failed."""
    torch.set_num_threads(1)
    with (run.folder / ".lock").open("a") as lock, (run.folder / LOG).open("a") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a killed table's process may still be saving
        if run.note() is not None:
            return 0
        with _metered(run.folder), threadpool_limits(1):
            jobs = (build_eta_cache, train, evaluate) if run.row.is_trained else (evaluate,)
            for job in jobs:
                with redirect_stdout(log), redirect_stderr(log):
                    code: int = job.main(["--config", str(run.folder / CONFIG_FILE)])
                if code:
                    return code
        model = model_package.ARTIFACT.at(run.folder)
        size = sum(file.stat().st_size for file in model.rglob("*") if file.is_file())
        note = {"digest": run.digest, "model_mb": round(size / 1e6, 2), **_spent(run.folder)}
        write_text(run.folder / NOTE, json.dumps(note, indent=1) + "\n")
    return 0


@contextmanager
def _metered(folder: Path) -> Iterator[None]:
    """Add what an attempt takes to what earlier attempts at the same model took."""
    wall, cpu = time.monotonic(), time.process_time()
    try:
        yield
    finally:
        before, model = _spent(folder), _model(folder)
        if before["model"] not in {"", model}:
            before = _NOTHING_SPENT
        spent = {
            "wall_s": round(before["wall_s"] + time.monotonic() - wall, 1),
            "cpu_s": round(before["cpu_s"] + time.process_time() - cpu, 1),
            "model": model,
        }
        write_text(folder / _SPENT, json.dumps(spent) + "\n")


def _spent(folder: Path) -> dict[str, Any]:
    try:
        spent: dict[str, Any] = json.loads((folder / _SPENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return dict(_NOTHING_SPENT)
    return spent


def _model(folder: Path) -> str:
    try:
        return read_artifact_header(model_package.ARTIFACT.at(folder)).digest
    except ArtifactError:
        return ""


def _measure_table(runs: Sequence[Run], rows: Sequence[Row], samples: int) -> dict[str, Any]:
    """Measure every row over its runs, with its costs, and against the uncorrected row."""
    of_row = {row.name: [run for run in runs if run.row.name == row.name] for row in rows}
    sides = [
        [
            read_sample_results(open_artifact(results.ARTIFACT.at(run.folder), results.ARTIFACT))
            for run in mine
        ]
        for mine in of_row.values()
    ]
    measured = dict(
        zip(of_row, measure_sides(sides, samples, np.random.default_rng(0)), strict=True)
    )
    tree: dict[str, Any] = {}
    for row in rows:
        costs = [run.costs() for run in of_row[row.name]]
        side, generator = measured[row.name], np.random.default_rng(0)
        estimates = {name: estimate_side(values, generator) for name, values in side.items()}
        tree[row.name] = {
            "title": row.title,
            "seeds": [run.seed for run in of_row[row.name]],
            "cost": {k: round(float(np.mean([cost[k] for cost in costs])), 2) for k in costs[0]},
            "paper": row.paper,
            "figures": {
                name: {key: getattr(found, key) for key in ("value", "low", "high", "reason")}
                for name, found in estimates.items()
            },
        }
        if row.name != BASELINE and BASELINE in measured:
            both = side.keys() & measured[BASELINE].keys()
            chosen = [name for name in COLUMNS.values() if name in both]
            differences = compare_sides(side, measured[BASELINE], np.random.default_rng(0), chosen)
            tree[row.name]["against_baseline"] = {
                name: {
                    "difference": item.estimate.value,
                    "low": item.estimate.low,
                    "high": item.estimate.high,
                    "corrected_p": item.corrected_p,
                    "verdict": describe_difference(name, item),
                }
                for name, item in differences.items()
            }
    return {"samples": samples, "patients": len(sides[0][0].patients), "rows": tree}


def table_text(tree: Mapping[str, Any]) -> str:
    """Lay out the tree of `table1.json` as the paper does."""
    columns = {**COLUMNS, **MORE}
    head = f"{'Method':34}" + "".join(f"{name:>{_WIDTH}}" for name in columns) + "   seeds  cpu s"
    lines = [
        "Table 1. Mean over seeds +- half its 95 % interval (patients and seeds; one seed: "
        "patients alone); in brackets the paper's, on MIMIC-CXR.",
        f"{tree['patients']} patients, {tree['samples']} draws. Recall: mean of R@10, R@50, R@100 "
        "both ways; `own`: doubles of a sentence are wrong. `offset`: each prompt is levelled.",
        "",
        head,
    ]
    for row in tree["rows"].values():
        cells = "".join(
            f"{_cell(row['figures'].get(figure), row['paper'].get(name)):>{_WIDTH}}"
            for name, figure in columns.items()
        )
        lines.append(f"{row['title']:34}{cells}{len(row['seeds']):8}{row['cost']['cpu_s']:7.0f}")
    titles = {figure: name for name, figure in columns.items()}
    lines += ["", f"p below .05 after correction for the {len(COLUMNS)} columns of a row:"]
    for row in tree["rows"].values():
        if "against_baseline" in row:
            reported = [
                f"{titles[name]} {item['difference']:+.3g}"
                for name, item in row["against_baseline"].items()
                if item["verdict"] in {"A is better", "B is better"}
            ]
            words = ", ".join(reported) or "no difference shown"
            alone = min(len(row["seeds"]), len(tree["rows"][BASELINE]["seeds"])) < 2
            caveat = "  (one seed: two models, not two configs)" if alone else ""
            lines.append(f"{row['title']:34} against no correction: {words}{caveat}")
    return "\n".join(lines)


def _cell(found: Mapping[str, Any] | None, paper: float | None) -> str:
    if found is None or found["value"] is None:
        return "-"
    digits = 1 if found["value"] >= 10 else 3
    half = "" if found["high"] is None else f"+-{found['high'] - found['value']:.{digits}f}"
    theirs = "" if paper is None else f" ({paper:.{2 if paper < 10 else 0}f})".replace("(0.", "(.")
    return f"{found['value']:.{digits}f}{half}{theirs}"


main = job_main("table1", build)

if __name__ == "__main__":
    sys.exit(main())
