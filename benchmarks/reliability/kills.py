"""Kill -9 in the middle of a job, start it again: is the end that of an uninterrupted run?

    python -m benchmarks.reliability.kills [--quick | --long] [--strict] [--job NAME]
        [--work FOLDER]

A job works on a small generated corpus. Its whole process group is killed at a random moment
after it began to write, and started and killed again, until a run comes to its end. Kills are
aimed at flushes until enough of them hit one: the process is frozen when a half-written file is
seen, and killed where that file is still there, else let go on. What had been acknowledged before
a kill must be there after the next one, once, with the same bytes; and the end must have the
content of a run that nobody killed. For training the losses of every logged step are compared
as well; every checkpoint that can be seen after a kill must open, and no more steps may be lost
than are between two of them. Half of its kills hit a save. An index is built where an old one of
another model stands: after every kill the old one must open whole and answer as before, and from
the moment at which the new one bears its name, so must that. Some kills come between the two
renames of that moment, or right after them. Runs to an end that were made are noted in FOLDER and
not repeated; `faults` kills every command at each of its writes.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

import torch
from torch.nn.functional import normalize

from benchmarks.record import finish
from benchmarks.reliability.exactness import newest, unreadable
from benchmarks.reliability.writers import Before, Writer
from benchmarks.run_log import RunLog
from medclip_dcl.artifact import read_artifact_header
from medclip_dcl.errors import ArtifactCorrupt, ArtifactError
from medclip_dcl.files import STAGED, sha256_file
from medclip_dcl.likelihood import scoring
from medclip_dcl.progress import Progress
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.search import Hit, Query, RetrievalIndex
from medclip_dcl.tables import read_table
from medclip_dcl.training.logging import read_metrics
from testing.corpus import write_config, write_corpus
from testing.published import publish

KILLS = {"quick": 6, "normal": 12, "long": 60}
REPLACING_SHARE = 1 / 6
"""Share of the kills that come while the new index takes the old one's place."""
SAVED_EVERY = 4
_POLL_S = 0.0002
_HITS = 5
_OLD_MODEL, _MODEL = "old_model", "model"
_MOST = {"acknowledged", "steps_lost"}  # of which the largest counts, not the sum

Facts = dict[str, str]
"""What is acknowledged: its name and what it holds."""


def _shards(folder: Path) -> list[tuple[str, str]]:
    return [(path.name, _made(path)) for path in sorted(folder.glob("shard-*"))]


def _scores(folder: Path) -> list[tuple[str, str]]:
    try:
        found = [(row, 0) for row in read_table(folder, scoring.LIKELIHOODS).to_pylist()]
    except ArtifactCorrupt:  # not yet put together
        parts, _ = scoring.read_parts(folder / scoring.PARTS)
        found = [(row, row["first"]) for row in parts.to_pylist()]
    return [(f"{row['text_key']} {first}", row["pll_nats"].hex()) for row, first in found]


def vectors(folder: Path) -> list[tuple[str, str]]:
    """Shards that a build keeps and does not make again."""
    pooled = {path.stem[-5:] for path in folder.glob("pooled-*")}  # the last of a shard of images
    return [
        (path.name, _made(path))
        for path in sorted({*folder.glob("[a-z]*-?????.*"), *folder.glob("sketch.npy")})
        if path.stem[-5:] in pooled or not path.name.startswith(("regions-", "pictures-"))
    ]


def _made(path: Path) -> str:
    return f"{sha256_file(path)} {path.stat().st_mtime_ns}"


@dataclass(frozen=True)
class CrashTarget:
    """A command to kill."""

    writer: Writer
    artifact: str
    traces: str
    """Files that show that it is under way, below its folder."""
    staged: str
    """Folders in which a file half written shows that something is being acknowledged."""
    acknowledged: Callable[[Path], list[tuple[str, str]]] = lambda _: []
    """Reads what is acknowledged from the artifact, or from its draft."""
    needs: tuple[str, ...] = ()
    quick_share: float = 1.0
    """Share of the quick kills that a job gets whose restarts are long."""
    flush_share: float = 1 / 3
    """Share of the kills that must hit a flush."""

    @property
    def job(self) -> str:
        """Name in the figures."""
        return self.writer.name

    @property
    def replaces(self) -> bool:
        """Whether an old index stands in its place, which must serve until the new one does."""
        return self.artifact == ARTIFACT.name

    def kills(self, tier: str) -> int:
        """Say how many kills must hit."""
        return max(1, round(KILLS[tier] * (self.quick_share if tier == "quick" else 1)))

    def flushes(self, tier: str) -> int:
        """Say how many of them must hit a flush."""
        return int(self.kills(tier) * self.flush_share)


SMALL = (
    *("generate.patients=150", "generate.coverage_images=0", "generate.size_px=128"),
    *("images.size_px=144", "images.shard_rows=8"),
    *("images.workers=2", "likelihood.unit_pieces=500", "language_model.steps=20"),
    "language_model.vocabulary=2000",  # no sentence is longer than a unit, so each has one score
)
TINY: dict[str, dict[str, Any]] = {
    "train": {"steps": 48, "save_every_steps": SAVED_EVERY},
    "index": {"shard_rows": 2},
}
"""Sections for the tiny corpus of the tests: restarts are many."""
CRASH_TARGETS = (
    CrashTarget(
        Writer("prepare_images", "studies", SMALL),
        "prepared",
        ".prepared.draft/shard-*",
        ".prepared.draft",
        _shards,
        ("generate_studies", "build_manifest"),
    ),
    CrashTarget(
        Writer("score_sentences", "studies", SMALL),
        "likelihoods",
        ".likelihoods.draft/parts",
        ".likelihoods.draft/parts",
        _scores,
        ("generate_studies", "build_manifest", "split_sentences", "fit_language_model"),
    ),
    CrashTarget(
        Writer("train", "evaluated"),
        "model",
        "checkpoints/step-*",
        "checkpoints/.step-*.draft",  # a run keeps its newest alone; its losses tell what was lost
        quick_share=1 / 3,
        flush_share=1 / 2,
    ),
    CrashTarget(
        Writer("build_index", "evaluated"),
        ARTIFACT.name,
        ".index.draft/regions-*",
        ".index.draft",
        vectors,
    ),
)


def write_start(target: CrashTarget, work: Path) -> Path:
    """Write what a job works on, with an old index and its model where it replaces one."""
    log = work.with_suffix(".log")
    if target.needs:
        work.mkdir(exist_ok=True)
        for job in target.needs:
            if not (work / f"{job}.done").exists():
                run(Writer(job, "studies", SMALL), work, log)
                (work / f"{job}.done").touch()
        return work
    write_corpus(work)
    write_config(work / "config.yaml", work, **TINY)
    if target.replaces:
        publish(work / _MODEL)
        run(target.writer, work, log)
        (work / _MODEL).rename(work / _OLD_MODEL)
        publish(work / _MODEL, seed=1)
    return work


def run(writer: Writer, work: Path, log: Path) -> None:
    """Run a job to its end; RuntimeError where it ends with another code than 0."""
    _must_have_ended(writer.run(work, log), writer, log)


def _must_have_ended(code: int | None, writer: Writer, log: Path) -> None:
    if code:
        text = log.read_text(encoding="utf-8")[-2000:]
        raise RuntimeError(f"{writer.name} ended with exit code {code}: {text}")


def arm(name: str) -> None:
    """Let this process be killed once it has renamed a folder `name`; called in it."""
    rename = Path.replace

    def killed(self: Path, target: Path) -> Path:
        found = rename(self, target)
        if self.name == name:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    Path.replace = killed  # type: ignore[method-assign,assignment]


@dataclass
class IndexSwap:
    """What the index in its place must answer, and how often it did not."""

    digest: str
    """That of the old index."""
    old: list[Hit]
    """Its answers."""
    new: list[Hit]
    """Answers of the new one."""
    asked: int = 0
    """How often it was asked."""
    unserved: int = 0
    """How often it did not open whole, or answered otherwise."""
    replacing: int = 0
    """Kills after which the old index lay aside, the new one in its place or not yet."""
    armed: int = 0
    """Builds that were to be killed there."""

    @classmethod
    def between(cls, base: Path, reference: Path) -> Self:
        """Note what two indices answer, by their folders, which hold both models.

        ArtifactError where one does not open; ValueError where they answer alike, so that nobody
        could tell which one served.
        """
        old, new = _answers(base, _OLD_MODEL), _answers(reference, _MODEL)
        if old == new:
            raise ValueError("the old index answers as the new one; give them other models")
        return cls(read_artifact_header(ARTIFACT.at(base)).digest, old, new)

    def is_replaced(self, work: Path) -> bool:
        """Return whether another index than the old one bears its name.

        False also where none can be read: the old one must serve until there is another.
        """
        try:
            return read_artifact_header(ARTIFACT.at(work)).digest != self.digest
        except ArtifactCorrupt:
            return False

    def arming(self, work: Path, kills: int) -> Before | None:
        """Give what kills the next build after the first rename or, in turn, after the second.

        None where enough were tried, or where the old index no longer bears its name.
        """
        if self.armed >= REPLACING_SHARE * kills or self.is_replaced(work):
            return None
        self.armed += 1
        renamed = (f".{ARTIFACT.name}.draft", ARTIFACT.name)[self.armed % 2]
        return "benchmarks.reliability.kills:arm", (renamed,)

    def counts(self) -> Counter[str]:
        """Give what was counted."""
        return Counter({k: getattr(self, k) for k in ("asked", "unserved", "replacing")})

    def ask(self, work: Path) -> None:
        """Open what a kill left in the index's place, every byte checked, and ask it."""
        self.asked += 1
        self.replacing += (work / f".{ARTIFACT.name}.retired").exists()
        model, expected = (_MODEL, self.new) if self.is_replaced(work) else (_OLD_MODEL, self.old)
        try:
            self.unserved += _answers(work, model) != expected
        except ArtifactError:
            self.unserved += 1


def _answers(work: Path, model: str) -> list[Hit]:
    index = RetrievalIndex.open(ARTIFACT.at(work), read_artifact_header(work / model).digest)
    drawn = torch.randn(index.similarity.dim, generator=torch.Generator().manual_seed(0))
    vector = normalize(drawn, dim=0)
    images = index.search(Query("image", _HITS, vector=vector))
    return images + index.search(Query("text", _HITS, vector=vector))


def content(target: CrashTarget, work: Path) -> tuple[str, list[dict[str, float]]]:
    """Give the content digest of a job's artifact, and the losses of every step where it trains."""
    digest = read_artifact_header(work / target.artifact).digest
    lines = read_metrics(work / "checkpoints") if target.job == "train" else []
    kept = ("step", "loss", "uncorrected_loss", "frac_floor")
    return digest, [{name: line[name] for name in kept if name in line} for line in lines]


def half_written(target: CrashTarget, work: Path) -> bool:
    """Return whether a file that has not yet been renamed is next to those that have."""
    return seen(work, f"{target.staged}/{STAGED}*")


def seen(work: Path, pattern: str) -> bool:
    """Return whether a folder that a process works in holds such a file."""
    try:
        return any(work.glob(pattern))
    except FileNotFoundError:  # a folder on the way was removed meanwhile
        return False


def kill_once(
    target: CrashTarget, work: Path, seconds: float, rng: random.Random, aimed: bool
) -> ForkServerProcess:
    """Start a job and kill it at a random moment, or in the first flush after it where `aimed`.

    `seconds` is how long an uninterrupted run writes. A process that came to its end before has
    exit code 0.
    """
    process = target.writer.start(work, work.with_suffix(".log"))
    pid = process.pid
    assert pid is not None
    while process.is_alive() and not seen(work, target.traces):
        time.sleep(_POLL_S)
    moment = time.monotonic() + rng.uniform(0, seconds)
    while process.is_alive() and time.monotonic() < moment:
        time.sleep(_POLL_S)
    while process.is_alive():
        if aimed and not half_written(target, work):
            continue
        _signal(pid, signal.SIGSTOP)
        if not aimed or half_written(target, work):
            break
        _signal(pid, signal.SIGCONT)
    _signal(pid, signal.SIGKILL)
    process.join()
    return process


def _signal(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


@dataclass
class Count:
    """What happened to one job."""

    kills: int = 0
    in_flush: int = 0
    ends: int = 0
    different: int = 0
    lost: int = 0
    duplicates: int = 0
    acknowledged: int = 0
    """Most that was acknowledged at a kill and not yet committed."""
    unreadable: int = 0
    """Checkpoints that could be seen after a kill and not be opened."""
    steps_lost: int = 0
    """Most steps that were logged and that no checkpoint held."""

    def suffices(self, kills: int, flushes: int) -> bool:
        """Return whether there were kills enough, and enough of them within a flush."""
        return self.kills >= kills and self.in_flush >= flushes

    def add(self, found: Mapping[str, int]) -> Self:
        """Count what happened on the way to one end."""
        for name, value in found.items():
            here = getattr(self, name)
            setattr(self, name, max(here, value) if name in _MOST else here + value)
        return self

    def inspect(self, work: Path) -> None:
        """Count what a kill left of a run."""
        self.unreadable += len(unreadable(work))
        if (work / "checkpoints").exists():
            done = max((line["step"] for line in read_metrics(work / "checkpoints")), default=0)
            self.steps_lost = max(self.steps_lost, done - newest(work))

    def compare(self, before: Facts, found: list[tuple[str, str]]) -> Facts:
        """Count what a kill lost or doubled."""
        now = dict(found)
        times = Counter(name for name, _ in found)
        self.duplicates += sum(number - 1 for number in times.values())
        self.lost += sum(now.get(name) != value for name, value in before.items())
        self.acknowledged = max(self.acknowledged, len(now))
        return now


def try_target(target: CrashTarget, base: Path, tier: str, log: RunLog) -> dict[str, float]:
    """Kill a job many times and compare each end with an uninterrupted run's.

    `base` has the artifacts that the job reads, and is left unchanged. Gives counts, those of an
    old index among them, and seconds of the uninterrupted run.
    """
    reference, job_log = base.with_name(f"reference-{target.job}"), base.with_suffix(".log")
    shutil.copytree(base, reference)
    begun = time.monotonic()
    process = target.writer.start(reference, job_log)
    while process.is_alive() and not seen(reference, target.traces):
        time.sleep(_POLL_S)
    writing = time.monotonic()
    process.join()
    _must_have_ended(process.exitcode, target.writer, job_log)
    ended = time.monotonic()
    index_swap = IndexSwap.between(base, reference) if target.replaces else None
    count, served = Count(), Counter[str]()
    limits = (target.kills(tier), target.flushes(tier))
    with Progress(target.job, limits[0], "kill") as progress:
        while not count.suffices(*limits):
            trial = f"{target.job} {count.ends}"

            def reach_end(trial: str = trial) -> dict[str, Any]:
                work = Path(shutil.copytree(base, base.with_name("trial")))
                before = index_swap.counts() if index_swap else Counter[str]()
                here = _kill_until_done(
                    target, work, (count, limits, ended - writing), index_swap, random.Random(trial)
                )
                here.different = int(content(target, work) != content(target, reference))
                shutil.rmtree(work)
                after = index_swap.counts() if index_swap else Counter[str]()
                return {"of_job": vars(here), "of_index": {k: after[k] - before[k] for k in after}}

            found = log.once(trial, reach_end)
            count.add(found["of_job"])
            served.update(found["of_index"])
            progress.advance(found["of_job"]["kills"])
    shutil.rmtree(reference)
    return {**vars(count), **served, "seconds": round(ended - begun, 2)}


def _kill_until_done(
    target: CrashTarget,
    work: Path,
    so_far: tuple[Count, tuple[int, int], float],
    index_swap: IndexSwap | None,
    rng: random.Random,
) -> Count:
    earlier, limits, seconds = so_far
    count, before, log = Count(ends=1), Facts(), work.with_suffix(".log")
    while True:
        kills, in_flush = earlier.kills + count.kills, earlier.in_flush + count.in_flush
        if Count(kills, in_flush).suffices(*limits):
            run(target.writer, work, log)
            break
        aimed = in_flush < target.flush_share * (kills + 1)
        arming = None if aimed or index_swap is None else index_swap.arming(work, kills + 1)
        if arming:
            process = target.writer.start(work, log, arming)
            process.join()
        else:
            process = kill_once(target, work, seconds, rng, aimed=aimed)
        if process.exitcode != -signal.SIGKILL:
            _must_have_ended(process.exitcode, target.writer, log)
            break
        count.kills += 1
        count.in_flush += half_written(target, work)
        if index_swap:
            index_swap.ask(work)
        is_done = index_swap.is_replaced(work) if index_swap else (work / target.artifact).exists()
        if not is_done:
            count.inspect(work)
            draft = work / f".{target.artifact}.draft"
            before = count.compare(before, target.acknowledged(draft))
    final = dict(target.acknowledged(work / target.artifact))
    count.lost += sum(final[name] != value for name, value in before.items() if name in final)
    return count


def main(argv: Sequence[str] | None = None) -> int:
    """Kill every job in turn and print what was left; 1 where a job could not be run at all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.kills")
    parser.add_argument("--quick", action="store_const", const="quick", dest="tier")
    parser.add_argument("--long", action="store_const", const="long", dest="tier")
    parser.add_argument("--work", type=Path, metavar="FOLDER")
    parser.add_argument("--strict", action="store_true", help="1 where a bar is missed")
    parser.add_argument("--job", choices=[target.job for target in CRASH_TARGETS])
    arguments = parser.parse_args(argv)
    tier = arguments.tier or "normal"
    log = RunLog(arguments.work, "kills")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for target in CRASH_TARGETS:
            if arguments.job not in {None, target.job}:
                continue
            base = Path(folder) / ("studies" if target.needs else f"start-{target.job}")
            found = try_target(target, write_start(target, base), tier, log)
            shown = ", ".join(f"{name} {value}" for name, value in found.items())
            print(f"{target.job:18}{shown}", flush=True)
            figures |= {f"{target.job}_{name}": value for name, value in found.items()}
    bars = {}
    for name in ("different", "lost", "duplicates", "unreadable", "unserved"):
        counts = [figures.get(f"{target.job}_{name}", 0) for target in CRASH_TARGETS]
        bars[name] = ("0", not any(counts))
    for target in CRASH_TARGETS:
        if f"{target.job}_kills" in figures:
            least = target.flushes(tier)
            hits = figures[f"{target.job}_in_flush"]
            bars[f"{target.job}_in_flush"] = (f">= {least}", hits >= least)
            if target.replaces:
                least = int(target.kills(tier) * REPLACING_SHARE)
                hits = figures[f"{target.job}_replacing"]
                bars[f"{target.job}_replacing"] = (f">= {least}", hits >= least)
    if "train_steps_lost" in figures:
        bars["train_steps_lost"] = (f"<= {SAVED_EVERY}", figures["train_steps_lost"] <= SAVED_EVERY)
    return finish("kills", figures, bars, log.commits, strict=arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
