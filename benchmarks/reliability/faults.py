"""A disk that fails at each n-th write of every command, is full, or returns other bytes.

    python -m benchmarks.reliability.faults [--quick | --long] [--strict]
        [--work FOLDER] [--only NAME | --corrupt]

Every command that writes (`writers.py`) runs on a small folder, in most cases where an artifact
of other settings is in its place, and the n-th call that changes the disk below that folder

    eio     fails once
    full    fails with ENOSPC, as all after it do, the last write cut in half
    kill    is not reached: the process and its workers are killed there; so is the next run, at a
            call that is drawn

(`failing_disk.c`, which needs a C compiler). In `cap` no file may grow beyond so many bytes. A
failing command must end with exit code 4 and say so in one line; whatever bears its final name
must open and be the old or the new one, every byte of it; what goes in the end, such as the
checkpoint that a run goes on from, must be there until the new is whole; and the same command must
then end with the files of an undisturbed run, without repeating what was acknowledged.

    corrupt   committed artifacts of every type are changed by a bit, a cut, a file that lacks, is
              one too many or another's: each must be refused by name where it is opened

Trials that were made are noted in FOLDER and not repeated. The quick tier tries three commands.
"""

import argparse
import ctypes
import errno
import functools
import importlib
import math
import mmap
import os
import pkgutil
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

import medclip_dcl
from benchmarks.record import finish
from benchmarks.reliability.writers import (
    Base,
    Before,
    Writer,
    fill_hub,
    litter,
    snapshot,
    units,
    write_base,
    writers,
)
from benchmarks.run_log import RunLog
from medclip_dcl.artifact import (
    HEADER,
    ArtifactType,
    make_fingerprint,
    open_artifact,
    read_artifact_header,
)
from medclip_dcl.errors import ArtifactError
from medclip_dcl.progress import Progress
from medclip_dcl.training import checkpoint
from medclip_dcl.training.checkpoint import CheckpointStore, Snapshot
from testing import forkserver
from testing.hub import DatasetHub, running_dataset_hub

QUICK = ("score_sentences", "build_eta_cache", "train half way")
EVERY = {"quick": 40, "normal": 40, "long": 1}
SIZES = {"quick": 2, "normal": 3, "long": 12}
CORRUPTIONS = {"quick": 500, "normal": 10_000, "long": 100_000}
FAULTS = {"eio": (errno.EIO, 0), "full": (errno.ENOSPC, 1), "kill": (0, 0)}
_CHUNK = 1_000  # corruptions of a line in the log
_SHA256 = 64  # digits
_LEAST_BYTES = 700  # of a file that a full disk still takes: the log of the job is one
_PRINTED_BYTES = 300  # of these
_WRONG = ("unclear", "silent", "broken", "different", "again")


def arm(folder: str, counter: str, at: int, error: int, lasting: int) -> None:
    """Let this process's writes fail; called in the process that is to suffer."""
    ctypes.CDLL(None).disk_fails(
        folder.encode(), counter.encode(), ctypes.c_long(at), error, lasting
    )


def limit_files(most_bytes: int) -> None:
    """Let no file of this process grow beyond a size."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


@dataclass
class Scene:
    """What a command starts from, and what an undisturbed run of it leaves."""

    writer: Writer
    start: Path
    old: dict[str, str]
    new: dict[str, str]
    seconds: float = 0.0
    """How long that takes."""
    calls: int = 0
    """Calls that change the disk."""
    printed: int = 0
    """Bytes that it prints, into a file that must not grow beyond a limit either."""
    varies: frozenset[str] = frozenset()
    """Files that hold times or the like: two undisturbed runs do not write the same."""


class Bench:
    """The folders that trials start from, made command by command."""

    def __init__(
        self,
        folder: Path,
        chosen: Sequence[str],
        table: Callable[[str], Sequence[Writer]] = writers,
        *,
        counted: bool = True,
    ) -> None:
        """`table` gives the commands by a hub's address; `counted`: their writes are counted."""
        self.folder, self.log, self._counter = folder, folder / "log", folder / "calls"
        self._chosen, self._table, self._counted = chosen, table, counted

    def scenes(self) -> Iterator[Scene]:
        """Give every chosen command in the order in which they need one another."""
        with running_dataset_hub(DatasetHub()) as hub:
            for base in get_args(Base):
                found = [item for item in self._table(hub.url) if item.base == base]
                last = max((n for n, i in enumerate(found) if i.name in self._chosen), default=-1)
                if last < 0:
                    continue
                work = write_base(base, self.folder / base)
                fill_hub(hub, work / "dataset")
                for writer in found[: last + 1]:
                    yield from self._scene(writer, work)

    def _scene(self, writer: Writer, work: Path) -> Iterator[Scene]:
        if writer.name not in self._chosen:
            if not writer.leaf:
                self._must_run(writer, work)
            return
        if writer.old is not None:
            self._must_run(writer, work, writer.old)
        start = self.copy(work, f"start-{writer.name.replace(' ', '-')}")
        old = snapshot(work)
        begun = time.monotonic()
        self._must_run(writer, work)
        scene = Scene(writer, start, old, snapshot(work), seconds=time.monotonic() - begun)
        again = self.copy(start, "trial")
        if writer.run(again, self.log, self._armed(again, 0, "eio") if self._counted else None):
            raise RuntimeError(f"{writer.name} failed with no fault: {self.said()}")
        scene.calls = self._called() if self._counted else 0
        scene.printed = self.log.stat().st_size
        found = snapshot(again)
        scene.varies = frozenset(
            name
            for name in scene.new
            if found.get(name) != scene.new[name] or Path(name).name in writer.timed
        )
        shutil.rmtree(again)
        yield scene
        shutil.rmtree(start)

    def _must_run(self, writer: Writer, work: Path, extra: Sequence[str] = ()) -> None:
        if code := writer.run(work, self.log, extra=extra):
            raise RuntimeError(f"{writer.name} ended with exit code {code}: {self.said()}")

    def copy(self, base: Path, name: str) -> Path:
        """Copy a folder next to the others."""
        return Path(shutil.copytree(base, self.folder / name, symlinks=True))

    def _armed(self, work: Path, at: int, fault: str) -> Before:
        self._counter.write_bytes(bytes(mmap.PAGESIZE))
        where = (str(work), str(self._counter), at, *FAULTS[fault])
        return "benchmarks.reliability.faults:arm", where

    def _called(self) -> int:
        return int.from_bytes(self._counter.read_bytes()[:8], sys.byteorder)

    def said(self) -> str:
        """Give the end of what the last command printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-600:]

    def suffer(self, scene: Scene, fault: str, at: int) -> dict[str, Any]:
        """Run a command with a fault, look at what is left, run it again, and compare."""
        writer, work = scene.writer, self.copy(scene.start, "trial")
        limit = ("benchmarks.reliability.faults:limit_files", (at,))
        code = writer.run(work, self.log, limit if fault == "cap" else self._armed(work, at, fault))
        found: Counter[str] = Counter(trials=1, failed=code > 0, killed=code < 0)
        notes = []
        if code > 0 and not is_clear(writer.command, code, self.log):
            found["unclear"] = 1
            notes.append(f"exit code {code}: {self.said()}")
        if code < 0:
            found += self._kill_again(scene, work, f"{writer.name} {at}")
        seen = snapshot(work)
        names = {*seen, *scene.old, *scene.new}
        odd = [name for name in names if not is_old_or_new(scene, seen, name)]
        found["broken"] = len(odd)
        found["silent"] = code == 0 and not is_new(scene, seen)
        code = 0
        if not (writer.once and is_new(scene, seen)):
            code = writer.run(work, self.log)
            seen = snapshot(work)
        found["different"] = code != 0 or not is_new(scene, seen)
        found["litter"] = len(left := litter(work))
        if code:
            notes.append(f"then exit code {code}: {self.said()}")
        elif found["different"] or found["silent"]:
            notes += [f"{name} differs" for name in _differing(scene, seen)]
        notes += [f"{name} is neither old nor new" for name in odd] + left[:3]
        shutil.rmtree(work)
        return {**found, **({"notes": notes} if notes else {})}

    def _kill_again(self, scene: Scene, work: Path, name: str) -> Counter[str]:
        # The next run is killed at a call that is drawn; what was whole before stays as it was.
        before = units(work, drafts=True)
        at = random.Random(name).randint(1, scene.calls)
        code = scene.writer.run(work, self.log, self._armed(work, at, "kill"))
        after = units(work)
        again = sum(after.get(unit, kept) != kept for unit, kept in before.items())
        return Counter(killed=code < 0, kept=len(before), again=again)


def is_old_or_new(scene: Scene, seen: dict[str, str], name: str) -> bool:
    """Return whether what bears a name is the old one or the new one, whole."""
    if name not in seen and name not in scene.new:  # it goes when the new is whole
        whole = scene.new.keys() - scene.varies
        return all(seen.get(other) == scene.new[other] for other in whole)
    if (name in scene.varies and name in seen) or (name not in scene.old and name not in scene.new):
        return len(seen[name]) == _SHA256  # a time, or a checkpoint that goes at the end: it opens
    return seen.get(name) in {scene.old.get(name), scene.new.get(name)}


def _differing(scene: Scene, seen: dict[str, str]) -> list[str]:
    same = {name for name in scene.varies if name in seen}
    names = {*seen, *scene.new} - same
    return sorted(name for name in names if seen.get(name) != scene.new.get(name))


def is_new(scene: Scene, seen: dict[str, str]) -> bool:
    """Return whether a folder holds what an undisturbed run leaves."""
    return not _differing(scene, seen)


def is_clear(job: str, code: int, log: Path) -> bool:
    """Return whether a failing command said what the disk refused, in one line and no trace."""
    text = log.read_text(encoding="utf-8", errors="replace")
    said = ("could not be written", "its log.txt says why")  # the log of one of many runs
    lines = [line for line in text.splitlines() if line.startswith(f"{job}: ")]
    own = [line for line in lines if any(words in line for words in said)]
    return code == 4 and len(own) == 1 and "Traceback" not in text


def every_write(bench: Bench, scene: Scene, tier: str, log: RunLog) -> Counter[str]:
    """Let each n-th call fail in every way, and no file grow beyond some sizes."""
    name, count = scene.writer.name, Counter[str](calls=scene.calls)
    step = max(EVERY[tier], scene.writer.stride)
    trials = [
        (fault, at)
        for number, fault in enumerate(FAULTS)
        for at in range(1 + number * step // len(FAULTS), scene.calls + 1, step)
    ]
    files = [path.stat().st_size for path in scene.start.parent.rglob("*") if path.is_file()]
    beyond = max(0, scene.printed - _PRINTED_BYTES)  # what is printed has times, whose digits vary
    least = _LEAST_BYTES + 1000 * math.ceil(beyond / 1000)
    span = max(min(max(files), 40_000) - least, 0)
    trials += [("cap", least + span * n // SIZES[tier]) for n in range(SIZES[tier])]
    with Progress(name, len(trials), "trial") as progress:
        for fault, at in trials:
            run = functools.partial(bench.suffer, scene, fault, at)
            found = log.once(f"{name} {fault} {at}", run)
            for note in found.get("notes", ()):
                print(f"{name} {fault} {at}: {note}")
            count += Counter({key: value for key, value in found.items() if key != "notes"})
            progress.advance()
    return count


def artifact_types() -> set[str]:
    """Names of all artifact types, from the modules that own them."""
    found = set()
    for info in pkgutil.walk_packages(medclip_dcl.__path__, "medclip_dcl."):
        module = importlib.import_module(info.name)
        found |= {item.name for item in vars(module).values() if isinstance(item, ArtifactType)}
    return found


def corrupt(folders: Sequence[Path], numbers: range) -> dict[str, Any]:
    """Harm committed artifacts, one at a time, and open them."""
    found: dict[str, Any] = {"corruptions": 0, "detected": 0, "unnamed": 0, "silent": 0}
    odd, kinds = [], Counter[str]()
    for number in numbers:
        rng, folder = random.Random(number), folders[number % len(folders)]
        head = read_artifact_header(folder)
        kind = ArtifactType(head.kind, head.version, "its job")
        path = folder / rng.choice([HEADER, *sorted(head.files)])
        whole, added = path.read_bytes(), folder / "added"
        harm = rng.choice(("bits", "cut", "longer", "gone", "more", "other"))
        if harm == "gone":
            path.unlink()
        elif harm == "more":
            added.write_bytes(b"")
        else:
            path.write_bytes(harmed(whole, harm, rng))
        found["corruptions"] += 1
        kinds[head.kind] += 1
        try:
            open_artifact(folder, kind)
        except ArtifactError:
            found["detected"] += 1
        except Exception as error:  # noqa: BLE001 (whatever else it is, it is counted)
            found["unnamed"] += 1
            odd.append(f"{number}: {harm} of {head.kind}/{path.name}: {type(error).__name__}")
        else:
            found["silent"] += 1
            odd.append(f"{number}: {harm} of {head.kind}/{path.name} unseen")
        path.write_bytes(whole)
        added.unlink(missing_ok=True)
    return {**found, "kinds": kinds, "odd": odd}


def harmed(whole: bytes, harm: str, rng: random.Random) -> bytes:
    """Give a file's bytes with one bit changed, cut short, longer, or those of another."""
    at = rng.randrange(len(whole)) if whole else 0
    if harm == "longer" or not whole:
        return whole + rng.randbytes(rng.randint(1, 64))
    if harm == "cut":
        return whole[:at]
    if harm == "other":
        return rng.randbytes(len(whole))
    return whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]


@contextmanager
def failing_disk(folder: Path) -> Iterator[bool]:
    """Compile the library that lets writes fail, and have trials start with it.

    False where there is no compiler.
    """
    library = folder / "failing_disk.so"
    source = Path(__file__).with_name("failing_disk.c")
    compiler = shutil.which("cc")
    if compiler is None:
        yield False
        return
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    os.environ["LD_PRELOAD"] = str(library)
    try:
        yield True
    finally:
        del os.environ["LD_PRELOAD"]


def main(argv: Sequence[str] | None = None) -> int:
    """Let the disk fail in every way and print what came of it; 1 where a command cannot be run."""
    names = [item.name for item in writers()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.faults")
    parser.add_argument("--quick", action="store_const", const="quick", dest="tier")
    parser.add_argument("--long", action="store_const", const="long", dest="tier")
    parser.add_argument("--work", type=Path, metavar="FOLDER")
    parser.add_argument("--strict", action="store_true", help="1 where a bar is missed")
    parser.add_argument("--only", action="append", choices=names)
    parser.add_argument("--corrupt", action="store_true", help="corrupt artifacts, no failing disk")
    arguments = parser.parse_args(argv)
    tier = arguments.tier or "normal"
    chosen = arguments.only or (QUICK if tier == "quick" else names)
    log = RunLog(arguments.work, "faults")
    count: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, failing_disk(Path(name)) as can_fail:
        if not can_fail:
            print("no C compiler: nothing is measured")
            return 0
        if chosen != QUICK:
            forkserver.context(sorted({f"pipelines.{item.command}" for item in writers()}))
        bench = Bench(Path(name), chosen)
        for scene in bench.scenes():
            if arguments.corrupt:
                continue
            found = every_write(bench, scene, tier, log)
            shown = ", ".join(f"{key} {value}" for key, value in found.items())
            varying = f"; varies: {', '.join(sorted(scene.varies))}" if scene.varies else ""
            print(f"{scene.writer.name:26}{shown}{varying}", flush=True)
            count += found
        figures = {f"write_{key}": float(value) for key, value in count.items()}
        figures |= _try_corruptions(Path(name), CORRUPTIONS[tier], log)
    bars = {} if arguments.corrupt else {f"write_{key}": ("0", not count[key]) for key in _WRONG}
    bars |= {
        f"corrupt_{key}": ("0", not figures[f"corrupt_{key}"]) for key in ("unnamed", "silent")
    }
    return finish("faults", figures, bars, log.commits, strict=arguments.strict)


def _try_corruptions(folder: Path, count: int, log: RunLog) -> dict[str, float]:
    by_kind: dict[str, Path] = {}
    _write_checkpoint(folder / "unended")
    for header in sorted(folder.rglob(HEADER)):
        by_kind.setdefault(read_artifact_header(header.parent).kind, header.parent)
    found: Counter[str] = Counter()
    lacking = artifact_types() - by_kind.keys() if count > CORRUPTIONS["quick"] else set()
    print(f"corrupt   {len(by_kind)} types; none of {', '.join(sorted(lacking)) or '-'}")
    with Progress("corrupt", count, "artifact") as progress:
        for first in range(0, count, _CHUNK):
            numbers = range(first, min(first + _CHUNK, count))
            run = functools.partial(corrupt, [*by_kind.values()], numbers)
            trial = f"corrupt {first}-{numbers[-1]} of {' '.join(by_kind)}"
            part = log.once(trial, run)
            print(*part["odd"], sep="\n", end="\n" if part["odd"] else "")
            found += Counter({k: part[k] for k in ("corruptions", "detected", "unnamed", "silent")})
            progress.advance(len(numbers))
    names = ("corruptions", "detected", "unnamed", "silent")
    return {"corrupt_types": len(by_kind), "corrupt_types_lacking": len(lacking)} | {
        f"corrupt_{name}": found[name] for name in names
    }


def _write_checkpoint(folder: Path) -> None:
    # a training that came to its end keeps none
    folder.mkdir()
    numbers = {"numbers": torch.arange(1000.0)}
    store = CheckpointStore(folder, make_fingerprint(checkpoint.ARTIFACT, {}, {}), 2)
    store.save(Snapshot(1, numbers, numbers, {}))


if __name__ == "__main__":
    sys.exit(main())
