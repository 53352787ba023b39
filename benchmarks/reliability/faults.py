"""A disk that fails at every n-th write, that is full, and that returns other bytes.

    python -m benchmarks.reliability.faults [--quick | --long]

Three trials of the likelihoods and the eta cache on a small generated corpus:

    write     the n-th call that changes the disk fails, in score_sentences and on into
              build_eta_cache, for each n: once with EIO, once with ENOSPC from there on,
              the last write cut in half (`failing_disk.c`, which needs a C compiler)
    full      no file may grow beyond so many bytes, for sizes up to that of the largest
    corrupt   one bit of one file of a committed artifact is flipped, or the file is cut short

A failing job must end with exit code 4 and say so in one line; what was committed before must
open; the same commands must then end with the content of an undisturbed run. A corrupt
artifact must be refused by name where it is opened, or where it is first used.
"""

import argparse
import ctypes
import errno
import mmap
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fixtures import forkserver
from benchmarks.record import finish
from medclip_dcl.artifact import ArtifactType, open_artifact
from medclip_dcl.errors import MedclipError
from medclip_dcl.likelihood import eta, scoring
from medclip_dcl.likelihood.eta import EtaCache
from medclip_dcl.tables import read_table

CONFIG = "configs/demo.yaml"
SMALL = (
    "generate.patients=20",
    "generate.coverage_images=0",
    "generate.size_px=64",
    "generate.workers=1",
    "language_model.steps=5",
    "language_model.vocabulary=300",
    "language_model.hidden_size=32",
    "likelihood.unit_pieces=1500",
    "likelihood.workers=1",
)
BEFORE = (
    "generate_studies",
    "build_manifest",
    "split_sentences",
    "read_claims",
    "fit_language_model",
)
JOBS = ("score_sentences", "build_eta_cache")
KINDS = (scoring.ARTIFACT, eta.ARTIFACT)
OLD = ("likelihood.variant=within_word_l2r", "eta.a=0.1")
"""Settings of the artifacts that are there before the disk fails."""
EVERY = {"quick": 20, "normal": 10, "long": 1}
SIZES = {"quick": 3, "normal": 6, "long": 24}
CORRUPTIONS = {"quick": 50, "normal": 100, "long": 500}
_LEAST_BYTES = 700  # of a file that a full disk still takes: the log of the job is one
_ONCE, _LASTING = 0, 1


@dataclass
class Bench:
    """The folder that trials start from, and what an undisturbed run ends with."""

    base: Path
    log: Path
    digests: dict[str, str] = field(default_factory=dict)
    """Kind -> content digest: of the old artifacts as `old ARTIFACT`, of the new ones as
    `ARTIFACT`."""


@dataclass
class Count:
    """What happened in one kind of trial."""

    trials: int = 0
    failed: int = 0
    """Trials in which a job ended with an error."""
    unclear: int = 0
    """Errors without their own line, with a trace, or with another exit code than 4."""
    unreadable: int = 0
    """Artifacts that no longer opened, or hold neither the old content nor the new."""
    different: int = 0
    """Trials whose second run failed or ended with other content."""


def arm(folder: str, counter: str, at: int, error: int, lasting: int) -> None:
    """Let this process's writes fail; called in the process that is to suffer."""
    ctypes.CDLL(None).disk_fails(
        folder.encode(), counter.encode(), ctypes.c_long(at), error, lasting
    )


def limit_files(most_bytes: int) -> None:
    """Let no file of this process grow beyond a size."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


def run(job: str, work: Path, log: Path, before: Any = None, extra: Sequence[str] = ()) -> int:
    """Run a job; give its exit code."""
    settings = (f"work={work}", *SMALL, *extra)
    options = [word for setting in settings for word in ("--set", setting)]
    return forkserver.run(f"pipelines.{job}", ["--config", CONFIG, *options], log, before=before)


def must_run(job: str, work: Path, log: Path, extra: Sequence[str] = ()) -> None:
    """Run a job that nothing disturbs.

    Raises:
        RuntimeError: it ended with another code than 0.
    """
    code = run(job, work, log, extra=extra)
    if code:
        raise RuntimeError(f"{job} ended with exit code {code}: {log.read_text()[-2000:]}")


def prepare(folder: Path) -> Bench:
    """Make what trials start from: old artifacts, and the digests of old and new ones."""
    bench = Bench(folder / "base", folder / "log")
    for job in BEFORE:
        must_run(job, bench.base, bench.log)
    for name, extra in (("", ()), ("old ", OLD)):
        for job in JOBS:
            must_run(job, bench.base, bench.log, extra)
        for kind in KINDS:
            bench.digests[name + kind.name] = open_artifact(kind.at(bench.base), kind).digest
    shutil.rmtree(bench.base / "studies", ignore_errors=True)  # images are copied in no trial
    return bench


def suffer(bench: Bench, faults: Iterator[Any], count: Count) -> None:
    """Run both jobs with faults, look at what is left, run them again, and compare."""
    count.trials += 1
    work = bench.base.with_name("trial")
    shutil.copytree(bench.base, work)
    for job, before in zip(JOBS, faults, strict=False):
        code = run(job, work, bench.log, before)
        if code:
            count.failed += 1
            count.unclear += not _is_clear(job, code, bench.log)
            break
    for kind in KINDS:
        count.unreadable += not _holds_old_or_new(bench, work, kind)
    codes = [run(job, work, bench.log) for job in JOBS]
    ends = [_digest(work, kind) == bench.digests[kind.name] for kind in KINDS]
    count.different += any(codes) or not all(ends)
    shutil.rmtree(work)


def _is_clear(job: str, code: int, log: Path) -> bool:
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    own = [line for line in lines if line.startswith(f"{job}: ") and "could not be written" in line]
    return code == 4 and len(own) == 1 and "Traceback" not in text


def _digest(work: Path, kind: ArtifactType) -> str:
    try:
        return open_artifact(kind.at(work), kind).digest
    except MedclipError as error:
        return str(type(error))


def _holds_old_or_new(bench: Bench, work: Path, kind: ArtifactType) -> bool:
    return _digest(work, kind) in {bench.digests[kind.name], bench.digests[f"old {kind.name}"]}


def every_write(bench: Bench, step: int) -> Count:
    """Let each `step`-th call that changes the disk fail."""
    counter = bench.base.with_name("calls")
    count = Count()
    total = _count_calls(bench, counter)
    for error, lasting in ((errno.EIO, _ONCE), (errno.ENOSPC, _LASTING)):
        for at in range(1 + (step // 2 if lasting else 0), total + 1, step):
            suffer(bench, _armed(bench, counter, at, error, lasting), count)
    print(f"write     {total} calls that change the disk")
    return count


def _armed(bench: Bench, counter: Path, at: int, error: int, lasting: int) -> Iterator[Any]:
    """Arm one process after the other, counting calls on."""
    seen = 0
    work = str(bench.base.with_name("trial"))
    while True:
        counter.write_bytes(bytes(mmap.PAGESIZE))
        left = max(0, at - seen)
        yield "benchmarks.reliability.faults:arm", (work, str(counter), left, error, lasting)
        seen += int.from_bytes(counter.read_bytes()[:8], sys.byteorder)


def _count_calls(bench: Bench, counter: Path) -> int:
    work = bench.base.with_name("trial")
    shutil.copytree(bench.base, work)
    total = 0
    for job, before in zip(JOBS, _armed(bench, counter, 0, 0, _ONCE), strict=False):
        if run(job, work, bench.log, before):
            raise RuntimeError(f"{job} failed with no fault: {bench.log.read_text()[-2000:]}")
        total += int.from_bytes(counter.read_bytes()[:8], sys.byteorder)
    shutil.rmtree(work)
    return total


def full_disk(bench: Bench, sizes: int) -> Count:
    """Let no file grow beyond a size, for some sizes up to the largest file's."""
    folders = [kind.at(bench.base) for kind in KINDS]
    largest = max(path.stat().st_size for folder in folders for path in folder.iterdir())
    count = Count()
    for number in range(sizes):
        most = _LEAST_BYTES + (largest - _LEAST_BYTES) * number // sizes
        faults = [("benchmarks.reliability.faults:limit_files", (most,))] * len(JOBS)
        suffer(bench, iter(faults), count)
    return count


def corrupt(bench: Bench, corruptions: int, rng: random.Random) -> dict[str, int]:
    """Harm committed artifacts, one file at a time, and use them."""
    keys, expected = _use(bench, KINDS)
    found = {"corruptions": 0, "detected": 0, "unnamed": 0, "silent": 0}
    files = [(kind, path) for kind in KINDS for path in sorted(kind.at(bench.base).iterdir())]
    for number in range(corruptions):
        kind, path = files[number % len(files)]
        whole = path.read_bytes()
        path.write_bytes(_harmed(whole, rng))
        found["corruptions"] += 1
        try:
            seen = _use(bench, KINDS)
        except MedclipError:
            found["detected"] += 1
        except Exception:  # noqa: BLE001 (whatever else it is, it is counted)
            found["unnamed"] += 1
        else:
            found["silent"] += 1
            print(f"corrupt   unseen in {kind.name}/{path.name}; same: {seen == (keys, expected)}")
        path.write_bytes(whole)
    return found


def _harmed(whole: bytes, rng: random.Random) -> bytes:
    index = rng.randrange(len(whole))
    if rng.random() < 0.3:
        return whole[:index]
    return whole[:index] + bytes([whole[index] ^ 1 << rng.randrange(8)]) + whole[index + 1 :]


def _use(bench: Bench, kinds: Sequence[ArtifactType]) -> tuple[list[str], list[float]]:
    """Open the artifacts and read all that they hold."""
    scored, cache = (open_artifact(kind.at(bench.base), kind) for kind in kinds)
    table = read_table(scored.path, scoring.LIKELIHOODS)
    keys = table["text_key"].to_pylist()
    values = table["pll_nats"].to_pylist() + EtaCache(cache).eta_of(keys).tolist()
    return keys, values


@contextmanager
def failing_disk(folder: Path) -> Iterator[bool]:
    """Compile the library that lets writes fail, and have trials start with it.

    Yields:
        Whether there is a compiler to do so.
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
    """Let the disk fail in every way and print what came of it.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        0, or 1 where a job could not be run at all.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.faults")
    parser.add_argument("--quick", action="store_const", const="quick", dest="tier")
    parser.add_argument("--long", action="store_const", const="long", dest="tier")
    tier = parser.parse_args(argv).tier or "normal"
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, failing_disk(Path(name)) as can_fail:
        bench = prepare(Path(name))
        found = {"corrupt": corrupt(bench, CORRUPTIONS[tier], random.Random(0))}
        found["full"] = vars(full_disk(bench, SIZES[tier]))
        if can_fail:
            found["write"] = vars(every_write(bench, EVERY[tier]))
        else:
            print("write     no C compiler: not measured")
    for kind, counts in found.items():
        print(f"{kind:10}" + ", ".join(f"{key} {value}" for key, value in counts.items()))
        figures |= {f"{kind}_{key}": value for key, value in counts.items()}
    bad = [key for key in figures if key.endswith(("unclear", "unreadable", "different"))]
    bars = {key: ("0", figures[key] == 0) for key in [*bad, "corrupt_unnamed", "corrupt_silent"]}
    return finish("faults", figures, bars)


if __name__ == "__main__":
    sys.exit(main())
