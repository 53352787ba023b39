"""Runs of training and evaluation side by side: each resumable, in a folder of its own.

Stages before the first that the runs change are done once, in the config's folder; the others in
each run's folder, with links to what all share. A run is done once its note says so, written after
its results were committed: the note names the settings and inputs that it was made from, so that a
changed config is run again. A killed run resumes from its newest checkpoint.
"""

import fcntl
import importlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO

import torch
import yaml
from threadpoolctl import threadpool_limits

from medclip_dcl import model_package
from medclip_dcl.artifact import HEADER, json_digest, open_artifact, read_artifact_header
from medclip_dcl.data import manifest, prepared
from medclip_dcl.errors import (
    ArtifactError,
    ArtifactMissing,
    ConfigError,
    JobFailed,
    ending_with_fault,
)
from medclip_dcl.evaluation import results
from medclip_dcl.files import disk_faults_named, write_text
from medclip_dcl.likelihood import masked_lm, scoring
from medclip_dcl.progress import Progress
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.training import checkpoint
from medclip_dcl.training.logging import read_metrics

from .build_manifest import refuse_missing_labels
from .config import check_config
from .grid import CHANGED_SECTIONS, changed_tree
from .job import STOPPED, Job, Stopped
from .stages import STAGES, stages_of

NOTE, CONFIG_FILE, LOG = "run.json", "config.yaml", "log.txt"
_SPENT = "spent.json"
_DEVICES = "CUDA_VISIBLE_DEVICES"
_ON_CPU = 2  # runs side by side without a GPU
_SHARED = (labels, masked_lm, scoring, manifest, prepared, sentences)
_EVALUATED = ("evaluate", "inference")  # sections that evaluation reads
_STAGES = ("build_eta_cache", "train", "evaluate")  # those of a run; all before are shared


@dataclass(frozen=True)
class Run:
    """One point with one seed: its folder, and what it is made from."""

    name: str
    seed: int
    folder: Path
    settings: Mapping[str, Any]
    digest: str
    shared: Path
    """Folder of what all runs share."""

    def note(self) -> dict[str, Any] | None:
        """Give `digest`, `model_mb`, and `wall_s` and `cpu_s` over all attempts.

        None where the run is not done, or was done with other settings.
        """
        try:
            tree: dict[str, Any] = json.loads((self.folder / NOTE).read_text(encoding="utf-8"))
            open_artifact(results.ARTIFACT.at(self.folder), results.ARTIFACT)
        except (OSError, ValueError, ArtifactError):
            return None
        return tree if tree.get("digest") == self.digest else None

    def costs(self) -> dict[str, float]:
        """Give what a run that is done has cost."""
        return {name: value for name, value in (self.note() or {}).items() if name != "digest"}

    def log(self) -> list[dict[str, Any]]:
        """Give the lines of the training's log."""
        return read_metrics(checkpoint.ARTIFACT.at(self.folder))

    def judged(self, judge: str) -> float:
        """Give the best value of a validation metric, that of the published step."""
        values = [line[judge] for line in self.log() if line.get(judge) is not None]
        if not values:
            raise ArtifactMissing(
                f"run {self.folder} has no {judge} in its log; delete it and run again"
            )
        return float(max(values))


Planned = Mapping[str, Mapping[str, Sequence[Run]]]
"""Group -> point -> its runs, in the order of the seeds."""


class Runs:
    """The runs of one command, below one folder.

    `changed` are the dotted settings in which runs differ, `processes` those side by side (0: as
    `runs_at_a_time`). With a `judge`, a validation metric, every run publishes the step that is
    best by it.

    Raises:
        ConfigError: a changed setting belongs to a stage that all runs share.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        changed: Iterable[str],
        *,
        processes: int = 0,
        judge: str | None = None,
    ) -> None:
        sections = {key.partition(".")[0] for key in changed}
        if others := sorted(sections.difference(CHANGED_SECTIONS)):
            raise ConfigError(
                f"a grid changes {others}, which its runs share; change settings of "
                f"{', '.join(CHANGED_SECTIONS)}, or give each value a config of its own"
            )
        self._job, self._folder = job, folder
        self._processes, self._judge = processes or runs_at_a_time(), judge
        self._inputs: dict[str, str] = {}
        # The shared folder's name is written out: a run's own is another.
        text = json.dumps(job.config.model_dump(mode="json"))
        self._settings: str = text.replace("${WORK}", json.dumps(str(job.work))[1:-1])

    def prepare(self) -> None:
        """Run the stages that all runs share; each leaves alone what is valid."""
        config = self._job.config
        before = tuple(STAGES)[: list(STAGES).index(_STAGES[0])]
        config_file = self._folder / CONFIG_FILE
        with disk_faults_named(self._folder), self._lock() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another slice may be preparing
            text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
            write_text(config_file, text)
            for name in [name for name in stages_of(config) if name in before]:
                code = _run_stage(name, config_file)
                if code == STOPPED:
                    raise Stopped
                if code:
                    raise JobFailed(
                        f"{name} failed; correct what it names and run again to go on", code
                    )
        self._inputs = {
            item.ARTIFACT.name: read_artifact_header(item.ARTIFACT.at(self._job.work)).digest
            for item in _SHARED
            if (item.ARTIFACT.at(self._job.work) / HEADER).is_file()
        }

    def _lock(self) -> TextIO:
        self._folder.mkdir(parents=True, exist_ok=True)
        return (self._folder / ".lock").open("a")

    def plan(
        self,
        name: str,
        seed: int,
        changes: Mapping[str, Any],
        adapter: Mapping[str, Any] | None = None,
    ) -> Run:
        """Plan a run of the config with changed settings; with an adapter it only evaluates.

        Raises:
            ConfigError: a setting is unknown, or a value breaks its rule.
        """
        tree: dict[str, Any] = json.loads(self._settings)
        own = self._folder / name / f"seed-{seed}"
        tree |= {"work": str(own), "seed": seed, "jobs": [], "table1": {}}
        tree["evaluate"]["adapter"] = dict(adapter or {})
        if self._judge:
            tree["train"]["best_metric"] = self._judge
        config = check_config(changed_tree(tree, changes), f"of run {name}")
        listed = manifest.ARTIFACT.at(self._job.work)
        if (listed / HEADER).is_file() and not adapter:
            refuse_missing_labels(config, read_artifact_header(listed))
        # What was prepared is known by its digests; speed alone does not make another run.
        made_from = {
            part: tree[part] for part in ("seed", "source", *_EVALUATED, *CHANGED_SECTIONS)
        }
        made_from["train"] = config.train.result_settings()
        digest = json_digest({"settings": made_from, "inputs": self._inputs})
        if self._processes > 1:
            tree["train"]["torch_threads"] = 1
        return Run(name, seed, own, tree, digest, self._job.work)

    def race(self, planned: Planned, keep: int, mine: Callable[[Run], bool]) -> Planned:
        """Do the first seed of every point, then the other seeds of each group's best `keep`.

        With a `keep` of 0, or of no fewer than a group's points, all get all seeds. Only runs that
        are `mine` are done. Gives the runs of the points that were kept; a group of which the
        first seeds are not all done is left out.
        """
        open_groups = [group for group, points in planned.items() if 0 < keep < len(points)]
        heats = [each[0] for group in open_groups for each in planned[group].values()]
        if heats:
            self._do([run for run in heats if mine(run)])
        kept: dict[str, Mapping[str, Sequence[Run]]] = {}
        for group, points in planned.items():
            if group not in open_groups:
                kept[group] = points
            elif all(each[0].note() is not None for each in points.values()):
                scores = {name: each[0].judged(self._judge or "") for name, each in points.items()}
                kept[group] = {name: points[name] for name in best_points(scores, keep)}
        rows = [each for points in kept.values() for each in points.values()]
        by_seed = itertools.chain(*itertools.zip_longest(*rows))
        self._do([run for run in by_seed if run and mine(run)])
        return kept

    def _do(self, runs: Sequence[Run]) -> None:
        done = sum(run.note() is not None for run in runs)
        self._job.say(runs=len(runs), done=done, processes=self._processes)
        with Progress("runs", len(runs), "run") as progress:
            progress.advance(done)
            for run in _do_runs(runs, self._processes):
                self._job.say(run=run.name, seed=run.seed, **run.costs())
                progress.advance(1)

    def is_complete(self, planned: Planned, kept: Planned) -> bool:
        """Check that every run is done; says how many other slices have yet to do."""
        runs = [run for points in kept.values() for each in points.values() for run in each]
        left = sum(run.note() is None for run in runs)
        undecided = [group for group in planned if group not in kept]
        if left or undecided:
            self._job.say(missing=left, undecided=undecided, next="the same without a slice")
        return not (left or undecided)


def best_points(scores: Mapping[str, float], keep: int) -> list[str]:
    """Give the names with the highest scores, best first; of equals the earlier ones."""
    return sorted(scores, key=lambda name: -scores[name])[:keep]


def _run_stage(name: str, config_file: Path) -> int:
    code: int = importlib.import_module(f".{name}", __package__).main(
        # a run's folder is the sweep's own, whatever an earlier one left in it
        ["--config", str(config_file), "--replace"]
    )
    return code


def _lay_out(run: Run) -> None:
    """Write a run's config, and links to what all share."""
    config_file = run.folder / CONFIG_FILE
    text = yaml.safe_dump(dict(run.settings), sort_keys=False)
    if config_file.is_file() and config_file.read_text(encoding="utf-8") != text:
        shutil.rmtree(checkpoint.ARTIFACT.at(run.folder), ignore_errors=True)  # another config's
        (run.folder / _SPENT).unlink(missing_ok=True)
    for item in _SHARED:
        link, target = item.ARTIFACT.at(run.folder), item.ARTIFACT.at(run.shared)
        if target.is_dir() and not link.is_symlink():
            link.symlink_to(os.path.relpath(target, run.folder))
    write_text(config_file, text)


def _do_runs(runs: Sequence[Run], processes: int) -> Iterator[Run]:
    """Do what is not done yet, `processes` at a time, and yield every run as it is done.

    With one process runs are done in this one. When the command is stopped or a run fails, the
    others save and end.
    """
    waiting = [run for run in runs if run.note() is None]
    if processes == 1:
        for run in waiting:
            _raise_for(_do_run(run), run)
            yield run
        return
    devices = _devices()
    # A run is forked from a process that has imported the jobs, which takes seconds, and no more.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.{name}" for name in ("train", "evaluate")])
    running: dict[int, tuple[BaseProcess, Run]] = {}
    try:
        while waiting or running:
            for place in range(processes):
                if waiting and place not in running:
                    device = devices[place % len(devices)] if devices else None
                    process = context.Process(target=_do_run_of_parent, args=(waiting[0], device))
                    process.start()
                    running[place] = process, waiting.pop(0)
            connection.wait([child.sentinel for child, _ in running.values()])
            ended = [place for place, (child, _) in running.items() if child.exitcode is not None]
            for child, run in [running.pop(place) for place in ended]:
                _raise_for(child.exitcode, run)
                yield run
    finally:
        for child, _ in running.values():
            child.terminate()
        for child, _ in running.values():
            child.join()


def visible_devices(count: int, named: str | None) -> list[str]:
    """Name the GPUs that a run may be given: `count` are visible, `named` is the variable."""
    return [*map(str, range(count))] if named is None else named.split(",")[:count]


def _devices() -> list[str]:
    return visible_devices(torch.cuda.device_count(), os.environ.get(_DEVICES))


def runs_at_a_time() -> int:
    """Give how many runs go side by side where nobody says: one a GPU, two without one."""
    return len(_devices()) or _ON_CPU


def _do_run_of_parent(run: Run, device: str | None) -> None:
    """Do a run in a process of its own, on one thread; it saves when its parent is killed."""
    if device is not None:  # before anything asks for a GPU: each run sees one, as its first
        os.environ[_DEVICES] = device
    threading.Thread(target=_follow_parent, daemon=True).start()
    torch.set_num_threads(1)
    with ending_with_fault():
        sys.exit(_do_run(run, threads=1))


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


def _do_run(run: Run, threads: int | None = None) -> int:
    """Run the stages of a run; 0, or the exit code of the one that failed.

    Raises:
        ArtifactUnwritable: the disk is full, or fails, or may not be written to.
    """
    with disk_faults_named(run.folder):
        return _do_stages(run, threads)


def _do_stages(run: Run, threads: int | None) -> int:
    limits = threadpool_limits(threads) if threads else nullcontext()
    run.folder.mkdir(parents=True, exist_ok=True)
    with (run.folder / ".lock").open("a") as lock, (run.folder / LOG).open("a") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another slice, or a killed command's process, may save
        if run.note() is not None:
            return 0
        _lay_out(run)
        with _metered(run.folder), limits:
            given = run.settings["evaluate"]["adapter"]
            for stage in _STAGES[-1:] if given else _STAGES:
                with redirect_stdout(log), redirect_stderr(log):
                    code = _run_stage(stage, run.folder / CONFIG_FILE)
                if code:
                    return code
        model = model_package.ARTIFACT.at(run.folder)
        size = sum(file.stat().st_size for file in model.rglob("*") if file.is_file())
        note = {"digest": run.digest, "model_mb": round(size / 1e6, 2), **_spent(run.folder)}
        write_text(run.folder / NOTE, json.dumps(note, indent=1) + "\n")
    return 0


@contextmanager
def _metered(folder: Path) -> Iterator[None]:
    """Add what an attempt takes to what earlier attempts took."""
    wall, cpu, before = time.monotonic(), time.process_time(), _spent(folder)
    try:
        yield
    finally:
        spent = {"wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - cpu}
        total = {name: round(before.get(name, 0) + value, 1) for name, value in spent.items()}
        write_text(folder / _SPENT, json.dumps(total) + "\n")


def _spent(folder: Path) -> dict[str, float]:
    try:
        spent: dict[str, float] = json.loads((folder / _SPENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return spent
