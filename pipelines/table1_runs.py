"""The runs of Table 1: a folder each, some at a time, none twice.

A run has its own eta, model and results; what all share it links to. It is done once its
note says so, written after its results were committed: the note names the settings and inputs
that it was made from, so that a changed config is run again. A killed run goes on from its
newest checkpoint.
"""

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch
import yaml
from threadpoolctl import threadpool_limits

from medclip_dcl import model_package
from medclip_dcl.artifact import HEADER, json_digest, open_artifact, read_artifact_header
from medclip_dcl.config import Config, resolve_path
from medclip_dcl.data import manifest, prepared
from medclip_dcl.errors import ArtifactError, JobFailed
from medclip_dcl.evaluation import results
from medclip_dcl.files import write_text
from medclip_dcl.likelihood import masked_lm, scoring
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.training import checkpoint

from . import build_eta_cache, evaluate, train
from .job import STOPPED, Stopped
from .table1_rows import Row

SHARED = (labels, masked_lm, scoring, manifest, prepared, sentences)
"""Artifacts that all runs read."""

NOTE, CONFIG_FILE, LOG, SPENT = "run.json", "config.yaml", "log.txt", "spent.json"
_NOTHING_SPENT = {"wall_s": 0.0, "cpu_s": 0.0, "model": ""}


@dataclass(frozen=True)
class Run:
    """One row with one seed: its folder and what it is made from."""

    row: Row
    seed: int
    folder: Path
    settings: Mapping[str, Any]
    digest: str

    def note(self) -> dict[str, Any] | None:
        """Give `digest`, `name`, `model_mb`, and `wall_s` and `cpu_s` over all attempts.

        None where the run is not done, or was done with other settings.
        """
        try:
            tree: dict[str, Any] = json.loads((self.folder / NOTE).read_text(encoding="utf-8"))
            open_artifact(results.ARTIFACT.at(self.folder), results.ARTIFACT, verify=False)
        except (OSError, ValueError, ArtifactError):
            return None
        return tree if tree.get("digest") == self.digest else None


def plan_runs(config: Config, rows: Sequence[Row], folder: Path) -> list[Run]:
    """List the runs, every row of a seed before the next seed; other people's models once."""
    work = resolve_path(config.work, config)
    inputs = {
        item.ARTIFACT.name: read_artifact_header(item.ARTIFACT.at(work)).digest
        for item in SHARED
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


def do_runs(runs: Sequence[Run], processes: int) -> Iterator[Run]:
    """Do what is not done yet, and yield every run as it is done.

    Args:
        runs: the runs.
        processes: how many at a time; 1: in this process.

    Raises:
        Stopped: a signal asked for it; the workers have saved and ended.
        JobFailed: a run failed; the others have been stopped.
    """
    waiting = [run for run in runs if run.note() is None]
    for run in waiting:
        _lay_out(run)
    if processes == 1:
        for run in waiting:
            _raise_for(do_run(run), run)
            yield run
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(processes, context, _obey_parent, (stop,)) as pool:
        try:
            run_of = {pool.submit(_do_unless_stopped, run): run for run in waiting}
            for future in as_completed(run_of):
                try:
                    code = future.result()
                except BrokenProcessPool:  # killed from outside, most likely for its memory
                    code = 1
                _raise_for(code, run_of[future])
                yield run_of[future]
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def do_run(run: Run) -> int:
    """Train and evaluate one run on one thread; what it prints goes into its log.

    Args:
        run: the run, its folder laid out.

    Returns:
        0, or the exit code of the job that failed.
    """
    torch.set_num_threads(1)
    with (run.folder / ".lock").open("a") as lock, (run.folder / LOG).open("a") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a killed table's worker may still be saving
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
        note = {
            "name": run.row.name,
            "seed": run.seed,
            "digest": run.digest,
            "model_mb": round(size / 1e6, 2),
            **_read_spent(run.folder),
        }
        write_text(run.folder / NOTE, json.dumps(note, indent=1) + "\n")
    return 0


@contextmanager
def _metered(folder: Path) -> Iterator[None]:
    """Add what an attempt takes to what earlier attempts at the same model took."""
    wall, cpu = time.monotonic(), time.process_time()
    try:
        yield
    finally:
        before, model = _read_spent(folder), _model(folder)
        if before["model"] not in {"", model}:
            before = _NOTHING_SPENT
        spent = {
            "wall_s": round(before["wall_s"] + time.monotonic() - wall, 1),
            "cpu_s": round(before["cpu_s"] + time.process_time() - cpu, 1),
            "model": model,
        }
        write_text(folder / SPENT, json.dumps(spent) + "\n")


def _read_spent(folder: Path) -> dict[str, Any]:
    try:
        spent: dict[str, Any] = json.loads((folder / SPENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return dict(_NOTHING_SPENT)
    return spent


def _model(folder: Path) -> str:
    try:
        return read_artifact_header(model_package.ARTIFACT.at(folder)).digest
    except ArtifactError:
        return ""


def _raise_for(code: int, run: Run) -> None:
    if code == STOPPED:
        raise Stopped
    if code:
        raise JobFailed(
            f"run {run.folder} ended with exit code {code}; its {LOG} says why; correct that and "
            "run again",
            code,
        )


def _settings(config: Config, row: Row, seed: int, own: Path, work: Path) -> dict[str, Any]:
    """Turn the config into that of a run: plain values, the shared folder's name written out."""
    tree: dict[str, Any] = _written_out(config.model_dump(mode="json"), str(work))
    tree |= {"work": str(own), "seed": seed, "jobs": [], "table1": {}}
    for section, changes in row.changes.items():
        part = tree["model"][section] if section == "similarity" else tree[section]
        part |= changes
    tree["train"]["torch_threads"] = 1
    tree["evaluate"]["adapter"] = {}
    if not row.is_trained:
        adapter = next(item.adapter for item in config.table1.models if item.name == row.name)
        tree["evaluate"]["adapter"] = _written_out(adapter.model_dump(mode="json"), str(work))
    return tree


def _written_out(tree: Any, work: str) -> Any:
    if isinstance(tree, dict):
        return {name: _written_out(value, work) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_written_out(value, work) for value in tree]
    return tree.replace("${WORK}", work) if isinstance(tree, str) else tree


def _lay_out(run: Run) -> None:
    """Make the folder of a run: its config, and links to what all share."""
    run.folder.mkdir(parents=True, exist_ok=True)
    config_file = run.folder / CONFIG_FILE
    text = yaml.safe_dump(dict(run.settings), sort_keys=False)
    if config_file.is_file() and config_file.read_text(encoding="utf-8") != text:
        shutil.rmtree(checkpoint.ARTIFACT.at(run.folder), ignore_errors=True)  # another config's
        if not _model(run.folder):
            (run.folder / SPENT).unlink(missing_ok=True)
    shared = run.folder.parents[2]
    for item in SHARED:
        link, target = item.ARTIFACT.at(run.folder), item.ARTIFACT.at(shared)
        if target.is_dir() and not link.is_symlink():
            link.symlink_to(os.path.relpath(target, run.folder))
    write_text(config_file, text)


_STOPPED = threading.Event()
"""In a worker: its run was stopped and has saved. Runs that are queued in it must not start."""


def _do_unless_stopped(run: Run) -> int:
    code = STOPPED if _STOPPED.is_set() else do_run(run)
    if code == STOPPED:
        _STOPPED.set()
    return code


def _obey_parent(stop: Event) -> None:
    """Let a worker save and end when the table is stopped, or is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and sets `stop`
    threading.Thread(target=_follow_parent, args=(stop,), daemon=True).start()


def _follow_parent(stop: Event) -> None:
    parent = multiprocessing.parent_process()
    while parent is not None and not stop.is_set():
        if connection.wait([parent.sentinel], timeout=0.2):
            break
    os.kill(os.getpid(), signal.SIGTERM)  # ends an idle worker; a job saves and returns 75
    _STOPPED.wait()
    os._exit(STOPPED)  # concurrent.futures would wait for a dead parent's next task
