"""Kill a command, or let its disk fail; run it again: is the end that of an undisturbed run?

    python -m benchmarks.reliability.kills [--quick | --long] [--strict] [--only NAME ...]

Every command that writes (`commands`) runs on a small folder, in most cases where an artifact of
other settings is in its place. The n-th call that changes the disk below that folder

    eio     fails once
    full    fails with ENOSPC, as all after it do, the last write cut in half
    kill    is not reached: the process and its workers are killed there; so is the next run, at a
            call that is drawn

(`failing_disk.c`, which needs a C compiler).

A command that fails must end with exit code 4 and say so in one line. Whatever bears its final name
must open and be the old or the new one, every byte of it. What was whole must not be made again,
and the same command must then end with the files of an undisturbed run: for training, on one
process and on two, with the same bits in every weight.
"""

import argparse
import ctypes
import errno
import functools
import mmap
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from benchmarks.record import finish
from medclip_dcl.core.artifact import HEADER, ArtifactType, open_artifact, read_artifact_header
from medclip_dcl.core.errors import ArtifactError
from medclip_dcl.core.files import STAGED, sha256_file
from medclip_dcl.core.progress import Progress
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest
from pipelines.stages import LISTED
from tests.support import forkserver
from tests.support.corpus import write_config
from tests.support.jobs import write_evaluated
from tests.support.service import png

Base = Literal["studies", "evaluated"]
Fault = tuple[Any, ...]
"""Arguments of `arm`; none: no fault."""
QUICK = ("score_sentences", "prepare_images", "build_index", "train", "train on two processes")
EVERY = {"quick": 60, "normal": 20, "long": 1}
"""One write in so many fails, in each way."""
FAULTS = {"eio": (errno.EIO, 0), "full": (errno.ENOSPC, 1), "kill": (0, 0)}
_WRONG = ("unclear", "silent", "broken", "different", "again")
_SHA256_DIGITS = 64
_DRAFT = re.compile(r"/\.([^/]+)\.draft/")
_UNITS = ("unit-*.json", "shard-*", "run.json", "data/*.parquet")
_STUDIES = (
    *("generate.patients=8", "generate.size_px=64", "images.size_px=64"),
    *("workers=1", "source.max_reject_share=1"),
    *("language_model.steps=3", "language_model.vocabulary=300"),
    "language_model.hidden_size=32",
)
_EVALUATED: dict[str, dict[str, Any]] = {
    "source": {"root": "${WORK}"},
    "evaluate": {"prompts": "${WORK}/prompts.yaml", "bootstrap": 10, "retrieval_pool": 4},
    "card": {"intended_use": "Tests.", "limits": ["Tiny."], "licence": "mit", "data": "CC0-1.0"},
    "probabilities": {"least_per_class": 2},
    "train": {"steps": 12, "save_every_steps": 2},
    "index": {"shard_rows": 2},
}
_GRID = {"axes": {"eta.constant": [0.0, 0.1]}, "settings": {"eta.source": "constant"}}
_GRID |= {"seeds": [0], "figures": {"CNR": "grounding.cnr"}}
_GIVEN = ("--config", "{config}", "--set", "work={work}")
_REPLACED = (*_GIVEN, "--replace")
_COMPARED = ("{work}", "{work}", "--json", "{work}/comparison.json")
_EXPORTED = ("{work}", "--to", "transformers", "--out", "{work}/exported")
_PUSHED = (*_GIVEN, "--repo", "someone/model", "--dry-run", "--allow-vocabulary")
_SWEPT = (*_GIVEN, "--grid", "{work}/grid.yaml")
_PRETRAINED = ("pretrain.steps=4", "train.save_every_steps=2")
_TWO: dict[str, Any] = {"settings": ("train.processes=2", "train.global_batch=4")}
_TWO |= {"words": _REPLACED}


@dataclass(frozen=True)
class Command:
    """A command that writes into a work folder."""

    name: str
    """Its name, and what sets it apart from another of that name."""
    base: Base
    settings: tuple[str, ...] = ()
    old: tuple[str, ...] | None = None
    """Settings of the artifact that is there before; None: there is none."""
    once: bool = False
    """Whether it refuses to run where what it writes is there already."""
    leaf: bool = False
    """Whether no later one reads what it writes."""
    words: tuple[str, ...] = _GIVEN
    varying: tuple[str, ...] = ()
    """Names of files with times in them."""
    stride: int = 1
    """At most one in so many of its writes fails: it takes long."""
    processes: int = 1

    @property
    def module(self) -> str:
        """The name of the command itself."""
        return self.name.partition(" ")[0]

    def start(
        self, work: Path, log: Path, fault: Fault = (), extra: Sequence[str] = ()
    ) -> list[ForkServerProcess]:
        """Start it, each process in a group of its own; the first suffers the fault."""
        config = "configs/demo.yaml" if self.base == "studies" else str(work / "config.yaml")
        words = [
            word.replace("{config}", config).replace("{work}", str(work)) for word in self.words
        ]
        if "--config" in words:
            given = [*(_STUDIES if self.base == "studies" else ()), *self.settings, *extra]
            words += [word for item in given for word in ("--set", item)]
        temporary = work / "tmp"
        temporary.mkdir(exist_ok=True)
        own = {"TMPDIR": str(temporary), "HF_HOME": str(temporary)}
        own["MEDCLIP_ENGINE"] = "torch"  # a conversion of graphs takes seconds
        begin = ("benchmarks.reliability.kills:begin", fault)
        module, name = "pipelines.__main__", [self.module]
        if self.module == "train":  # which the command would start in processes of its own
            module, name = "pipelines.train", []
        return forkserver.start_ranks(
            self.processes, module, [*name, *words], log, before=begin, environment=own
        )

    def run(self, *arguments: Any, **more: Any) -> int:
        """Run it to its end, or to that of its first process; the exit code of that one."""
        return end_of(self.start(*arguments, **more))


def end_of(processes: Sequence[ForkServerProcess]) -> int:
    """Wait for the first process, end the others as a launcher would; the first's exit code."""
    first, *others = processes
    first.join()
    for other in others:
        other.join(60 if first.exitcode == 0 else 1)
        if other.exitcode is None:
            kill(other, signal.SIGKILL)
            other.join()
    return first.exitcode


def begin(*fault: Any) -> None:
    """Forget the folder of temporary files of the process that this one was forked from; arm it."""
    tempfile.tempdir = None
    if fault and os.environ.get("RANK", "0") == "0":
        arm(*fault)


def arm(folder: str, counter: str, at: int, error: int, lasting: int) -> None:
    """Let this process's writes fail; called in the process that is to suffer."""
    ctypes.CDLL(None).disk_fails(
        folder.encode(), counter.encode(), ctypes.c_long(at), error, lasting
    )


def commands() -> tuple[Command, ...]:
    """List them in the order in which they need one another."""
    studies = functools.partial(Command, base="studies")
    evaluated = functools.partial(Command, base="evaluated")
    return (
        studies("generate_studies", old=("seed=1",)),
        studies("build_manifest", old=("seed=1", "source.test_share=0.5")),
        studies("check_data", leaf=True, old=("seed=1",)),
        studies("prepare_images", leaf=True, old=("images.size_px=48",)),
        studies("split_sentences", old=('sentences.sections=["findings"]',)),
        studies("read_claims"),
        studies("fit_language_model", old=("language_model.steps=2",)),
        studies("score_sentences", old=("likelihood.variant=within_word_l2r",)),
        studies("build_eta_cache", old=("eta.a=0.1",)),
        evaluated("pretrain_images", old=("seed=1",), settings=_PRETRAINED),
        evaluated("calibrate_scores"),
        evaluated("fit_head"),
        evaluated("evaluate", old=("evaluate.bootstrap=5",)),
        evaluated("write_cards", old=("card.licence=apache-2.0",)),
        evaluated("build_index", old=("index.shard_rows=8",)),
        evaluated("write_report", leaf=True, old=("report.private=true",)),
        evaluated("compare", words=_COMPARED, leaf=True),
        evaluated("export", words=_EXPORTED, once=True, leaf=True),
        evaluated("push_model", words=_PUSHED, leaf=True),
        evaluated("sweep", words=_SWEPT, varying=("sweep.json",), leaf=True),
        evaluated("train", old=("seed=1",), words=_REPLACED),
        evaluated("train on two processes", stride=40, processes=2, **_TWO),
    )


def write_base(base: Base, work: Path) -> Path:
    """Write what the first command of a base works on."""
    if base == "studies":
        work.mkdir(parents=True)
        return work
    write_evaluated(work)
    for row in read_table(work / "manifest", manifest.IMAGES).to_pylist():
        (work / row["path"]).write_bytes(png())
    (work / "grid.yaml").write_text(yaml.safe_dump(_GRID))
    write_config(work / "config.yaml", work, **_EVALUATED)
    with (work / "config.yaml").open("a") as stream:
        stream.write("jobs: [train]\n")  # a grid's runs find everything before it
    return work


# --- What is left on the disk


def snapshot(work: Path) -> dict[str, str]:
    """Digest every artifact below a folder, and every file outside of one.

    An artifact that does not open is called by its error's type.
    """
    folders = {path.parent for path in work.rglob(HEADER) if _is_seen(path, work)}
    folders |= {  # its writer ended between two renames
        path.with_name(path.name[1:].removesuffix(".retired"))
        for path in work.rglob(".*.retired")
        if (path / HEADER).is_file()
    }
    digests = {folder.relative_to(work).as_posix(): digest_of(folder) for folder in folders}
    for path in work.rglob("*"):
        if path.is_file() and folders.isdisjoint(path.parents) and _is_seen(path, work):
            digests[path.relative_to(work).as_posix()] = sha256_file(path)
    return digests


def digest_of(folder: Path) -> str:
    """Digest an artifact, every byte checked; its error's type where it does not open."""
    retired = folder.with_name(f".{folder.name}.retired")
    try:
        head = read_artifact_header(folder if folder.exists() else retired)
        return open_artifact(folder, ArtifactType(head.kind, head.version, "its job")).digest
    except ArtifactError as error:
        return type(error).__name__


def _is_seen(path: Path, work: Path) -> bool:
    parts = path.relative_to(work).parts
    return parts[0] != "tmp" and not any(part.startswith(".") for part in parts)


def units(work: Path, *, drafts: bool = False) -> dict[str, tuple[str, int]]:
    """Digest and time of whole files that the next run must not make again, in drafts or anywhere.

    Their names are the same in a draft and after its commit.
    """
    paths = {path for pattern in _UNITS for path in work.rglob(pattern) if path.is_file()}
    named = [(_DRAFT.sub(r"/\1/", f"/{path.relative_to(work)}"), path) for path in paths]
    return {
        name: (sha256_file(path), path.stat().st_mtime_ns)
        for name, path in sorted(named, key=lambda item: _DRAFT.search(str(item[1])) is not None)
        if not path.name.startswith(STAGED) and not (drafts and _DRAFT.search(str(path)) is None)
    }


def is_clear(job: str, code: int, log: Path) -> bool:
    """Return whether a failing command named what the disk refused, in one line and no trace."""
    text = log.read_text(encoding="utf-8", errors="replace")
    clear = rf"^{job}: .*(could not be written|its log.txt says why)"  # that of one of many runs
    return code == 4 and len(re.findall(clear, text, re.M)) == 1 and "Traceback" not in text


# --- Trials


@dataclass
class Scene:
    """What a command starts from, and what an undisturbed run of it leaves."""

    command: Command
    start: Path
    old: Mapping[str, str]
    new: Mapping[str, str]
    calls: int = 0
    """Calls of an undisturbed run that change the disk."""
    varies: frozenset[str] = frozenset()
    """Files that hold times or the like: two undisturbed runs do not write the same."""

    def differing(self, seen: Mapping[str, str]) -> list[str]:
        """Name what is not as an undisturbed run leaves it."""
        names = {*seen, *self.new} - {name for name in self.varies if name in seen}
        return sorted(name for name in names if seen.get(name) != self.new.get(name))

    def broken(self, seen: Mapping[str, str]) -> list[str]:
        """Name what is neither the old one nor the new one, whole."""
        names = {*seen, *self.old, *self.new}
        return sorted(name for name in names if not self._is_whole(seen, name))

    def _is_whole(self, seen: Mapping[str, str], name: str) -> bool:
        if name not in {*seen, *self.new}:  # it goes when the new is whole
            return all(seen.get(item) == self.new[item] for item in self.new.keys() - self.varies)
        if name in seen and (name in self.varies or name not in {*self.old, *self.new}):
            # a time, or a checkpoint that goes at the end: it opens
            return len(seen[name]) == _SHA256_DIGITS
        return seen.get(name) in {self.old.get(name), self.new.get(name)}


class Bench:
    """The folders that trials start from, made command by command."""

    def __init__(self, folder: Path, chosen: Sequence[str]) -> None:
        self._folder, self._chosen = folder, chosen
        self.log, self._counter = folder / "log", folder / "calls"

    def scenes(self) -> Iterator[Scene]:
        """Yield every chosen command in the order in which they need one another."""
        for base in get_args(Base):
            table = [item for item in commands() if item.base == base]
            last = max((n for n, item in enumerate(table) if item.name in self._chosen), default=-1)
            if last < 0:
                continue
            work = write_base(base, self._folder / base)
            for command in table[: last + 1]:
                if command.name in self._chosen:
                    yield from self._scene(command, work)
                elif not command.leaf:
                    self._must_run(command, work)

    def _scene(self, command: Command, work: Path) -> Iterator[Scene]:
        if command.old is not None:
            self._must_run(command, work, extra=command.old)
        start, old = self._copy(work, "start"), snapshot(work)
        self._must_run(command, work)
        scene = Scene(command, start, old, snapshot(work))
        again = self._copy(start, "trial")
        self._must_run(command, again, self.armed(again, 0, "eio"))
        scene.calls = int.from_bytes(self._counter.read_bytes()[:8], sys.byteorder)
        named = {name for name in scene.new if Path(name).name in command.varying}
        scene.varies = frozenset(named.union(scene.differing(snapshot(again))) & scene.new.keys())
        shutil.rmtree(again)
        yield scene
        shutil.rmtree(start)

    def _must_run(self, command: Command, work: Path, *arguments: Any, **more: Any) -> None:
        if code := command.run(work, self.log, *arguments, **more):
            raise RuntimeError(f"{command.name} ended with exit code {code}: {self.printed()}")

    def _copy(self, base: Path, name: str) -> Path:
        return Path(shutil.copytree(base, self._folder / name, symlinks=True))

    def armed(self, work: Path, at: int, fault: str) -> Fault:
        """Prepare a fault at the n-th change of a folder; 0: none, but they are counted."""
        self._counter.write_bytes(bytes(mmap.PAGESIZE))
        return (str(work), str(self._counter), at, *FAULTS[fault])

    def printed(self) -> str:
        """Return the end of what the last command printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-600:]

    def suffer(self, scene: Scene, fault: str, at: int) -> tuple[Counter[str], list[str]]:
        """Run a command with a fault, look at what is left, run it again, and compare.

        Gives counts, and notes of what is wrong.
        """
        command, work = scene.command, self._copy(scene.start, "trial")
        notes: list[str] = []
        code = command.run(work, self.log, self.armed(work, at, fault))
        count = Counter[str](trials=1, failed=code > 0, killed=code < 0)
        if code > 0 and not is_clear(command.module, code, self.log):
            count["unclear"] = 1
            notes.append(f"exit code {code}: {self.printed()}")
        if code < 0:  # the next run is killed at a call that is drawn
            before = units(work, drafts=True)
            drawn = random.Random(f"{command.name} {at}").randint(1, scene.calls)
            count["killed"] += command.run(work, self.log, self.armed(work, drawn, "kill")) < 0
            count += _made_again(before, work)
        seen = snapshot(work)
        broken = scene.broken(seen)
        count["broken"] = len(broken)
        count["silent"] = code == 0 and bool(scene.differing(seen))
        code = 0
        if not (command.once and not scene.differing(seen)):
            code = command.run(work, self.log)
            seen = snapshot(work)
        count["different"] = code != 0 or bool(scene.differing(seen))
        if code:
            notes.append(f"then exit code {code}: {self.printed()}")
        elif count["different"] or count["silent"]:
            notes += [f"{name} differs" for name in scene.differing(seen)]
        notes += [f"{name} is neither old nor new" for name in broken]
        shutil.rmtree(work)
        return count, notes


def _made_again(before: Mapping[str, tuple[str, int]], work: Path) -> Counter[str]:
    after = units(work)
    again = sum(after.get(unit, stamp) != stamp for unit, stamp in before.items())
    return Counter(acknowledged=len(before), again=again)


def kill(process: ForkServerProcess, number: int) -> None:
    """Send a signal to the group of a process, if there is one."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def try_command(bench: Bench, scene: Scene, tier: str) -> Counter[str]:
    """Let each n-th call fail in every way."""
    name, count = scene.command.name, Counter[str](calls=scene.calls)
    step = max(EVERY[tier], scene.command.stride)
    trials = [
        (fault, at)
        for number, fault in enumerate(FAULTS)
        for at in range(1 + number * step // len(FAULTS), scene.calls + 1, step)
    ]
    with Progress(name, len(trials), "trial") as progress:
        for fault, at in trials:
            result, notes = bench.suffer(scene, fault, at)
            for note in notes:
                print(f"{name} {fault} {at}: {note}")
            count += result
            progress.advance()
    return count


@contextmanager
def failing_disk(folder: Path) -> Iterator[bool]:
    """Compile the library that lets writes fail, and have trials start with it.

    False where there is no compiler.
    """
    library, source = folder / "failing_disk.so", Path(__file__).with_name("failing_disk.c")
    if (compiler := shutil.which("cc")) is None:
        yield False
        return
    options = ("-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl")
    subprocess.run([compiler, *options], check=True)
    os.environ["LD_PRELOAD"] = str(library)
    try:
        yield True
    finally:
        del os.environ["LD_PRELOAD"]


def main(argv: Sequence[str] | None = None) -> int:
    """Disturb the commands and print what came of it; 1 where one cannot be run, or a bar fails."""
    names = [item.name for item in commands()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.kills")
    for tier in ("quick", "long"):
        parser.add_argument(f"--{tier}", action="store_const", const=tier, dest="tier")
    parser.add_argument("--strict", action="store_true", help="1 where a bar is missed")
    parser.add_argument("--only", nargs="+", choices=names)
    arguments = parser.parse_args(argv)
    tier = arguments.tier or "normal"
    chosen = arguments.only or (QUICK if tier == "quick" else names)
    count: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, failing_disk(Path(name)) as can_fail:
        if not can_fail:
            print("no C compiler: nothing is measured")
            return 0
        forkserver.context(
            sorted({f"pipelines.{LISTED[item.module].module}" for item in commands()})
        )
        bench = Bench(Path(name), chosen)
        for scene in bench.scenes():
            result = try_command(bench, scene, tier)
            shown = ", ".join(f"{key} {value}" for key, value in result.items())
            varying = f"; varies: {', '.join(sorted(scene.varies))}" if scene.varies else ""
            print(f"{scene.command.name:26}{shown}{varying}", flush=True)
            count += result
    bars = {key: ("0", not count[key]) for key in _WRONG}
    return finish("kills", dict(count), bars, strict=arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
