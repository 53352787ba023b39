"""Mutation score: of small wrong changes to a room's code, how many do its tests notice?

    make mutants [ROOM=sampler] [MUTANTS="--sample 50 --seed 1"]

`rooms.yaml` has the rooms, `equivalent.yaml` the mutants that change nothing. Mutants are written
into a copy of the tree. Each runs in a process forked from one that has imported the libraries, but
nothing of ours. A killed run resumes: a mutant that was noticed is run again after its
module has changed, one that survived also after the tests have.
"""

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.record import machine
from checks.mutation.mutants import Mutant, sample
from medclip_dcl.progress import Progress

ROOT = Path(__file__).parents[2]
STATE = ROOT / "build" / "mutation"
TREE, DONE, LOG, IMPORTED = (STATE / name for name in ("tree", "done.jsonl", "log", "imported"))
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
GOAL = 0.85
MEMORY = 12 * 2**30
_OURS = (
    "benchmarks",
    "checks",
    "medclip_dcl",
    "medclip_exports",
    "medclip_hospital",
    "medclip_reporting",
    "medclip_sources",
)
_OURS += ("medclip_synthetic", "pipelines", "api", "hospital", "testing", "tests")
_PYTEST = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W")
_PYTEST += ("ignore::pytest.PytestAssertRewriteWarning", f"--basetemp={STATE / 'tmp'}")
_SUBREAPER, _DEATH_SIGNAL = 36, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the mutants of the rooms; the exit code is 1 where the tests fail without any."""
    rooms = yaml.safe_load(Path(__file__).with_name("rooms.yaml").read_text("utf-8"))
    parser = argparse.ArgumentParser(prog="python -m checks.mutation")
    parser.add_argument("--room", choices=sorted(rooms), action="append")
    parser.add_argument("--sample", type=int, default=50, help="mutants of a room; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--without-seed",
        type=int,
        action="append",
        default=[],
        help="leave out the mutants that were drawn with this seed, as the kept results say",
    )
    arguments = parser.parse_args(argv)
    # What tests/conftest.py sets before torch is imported, which here is earlier.
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            parser.error(f"another run uses {STATE}")
        _copy_tree()
        return max(_room(name, rooms[name], arguments) for name in arguments.room or rooms)


def _room(name: str, room: Mapping[str, Any], arguments: argparse.Namespace) -> int:
    known: list[Mutant] = []
    for seed in arguments.without_seed:
        before = _results()["rooms"].get(name, {}).get(str(seed), {"drawn": arguments.sample})
        known += sample(ROOT, room["modules"], before["drawn"], seed, known)[0]
    count = arguments.sample or sys.maxsize
    mutants, total = sample(ROOT, room["modules"], count, arguments.seed, known)
    tests = [path for item in room["tests"] for path in _test_files(item)]
    digest = hashlib.sha256(b"".join((ROOT / path).read_bytes() for path in tests)).hexdigest()
    tests += room.get("pytest", [])
    done = _finished(digest)
    left = [mutant for mutant in mutants if _key(mutant) not in done]
    limit_s = _baseline(tests, _baseline_key(room, digest), done) if left else 0.0
    if limit_s is None:
        return 1
    with Progress(name, len(mutants), "mutant", done=len(mutants) - len(left)) as progress:
        for mutant in left:
            record = _run_mutant(mutant, tests, limit_s) | {"mutant": mutant.identity}
            _keep(record | {"key": _key(mutant), "tests": digest})
            done[_key(mutant)] = record
            progress.advance()
    _report(name, arguments, total, [(mutant, done[_key(mutant)]) for mutant in mutants])
    return 0


def _run_mutant(mutant: Mutant, tests: Sequence[str], limit_s: float) -> dict[str, Any]:
    own = f"test_{Path(mutant.module).stem}.py"
    path = TREE / mutant.module
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()  # a mutant of the same second and size would not be seen
    original = path.read_text(encoding="utf-8")
    path.write_text(mutant.source, encoding="utf-8")
    try:
        ordered = sorted(tests, key=lambda test: Path(test).name != own)
        code, seconds = _forked(ordered, limit_s, write_bytecode=False)
    finally:
        path.write_text(original, encoding="utf-8")
    outcome = "timeout" if code is None else "killed" if code else "survived"
    failed = [line.split()[1] for line in _log_lines() if line.startswith(("FAILED ", "ERROR "))]
    return {"outcome": outcome, "by": failed[0] if failed else "", "seconds": round(seconds, 2)}


def _baseline(
    tests: Sequence[str], key: str, done: Mapping[str, Mapping[str, Any]]
) -> float | None:
    """Run the tests without a mutant, import what they did, and give a mutant's time limit."""
    if key not in done:
        code, seconds = _forked(tests, 1500, write_bytecode=True)
        if code:
            print("\n".join([*_log_lines()[-15:], "these tests fail without a mutant"]))
            return None
        record = {"outcome": "baseline", "by": "", "seconds": seconds, "key": key, "tests": ""}
        _keep(record | {"imported": IMPORTED.read_text("utf-8").split()})
        done = _finished("")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in done[key]["imported"]:
            with contextlib.suppress(
                BaseException
            ):  # whatever a library raises is its tests' fault
                importlib.import_module(name)
    return float(10 + 5 * done[key]["seconds"])


def _baseline_key(room: Mapping[str, Any], digest: str) -> str:
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in room["modules"])
    return hashlib.sha256(f"{digest}{text}".encode()).hexdigest()


def _keep(record: Mapping[str, Any]) -> None:
    with DONE.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def _forked(
    tests: Sequence[str], limit_s: float, *, write_bytecode: bool
) -> tuple[int | None, float]:
    """Run pytest in a forked process; its exit code, None past the limit of CPU or wall time."""
    child = os.fork()
    if not child:
        _become_pytest(tests, round(limit_s), write_bytecode)
    waited, seconds, status = 0.0, 0.0, None
    try:
        # Not by the clock: where others use the machine this loop is as slow as the tests are, and
        # a run may be stopped meanwhile.
        while status is None and waited < 10 * limit_s:
            pid, code, usage = os.wait4(child, os.WNOHANG)
            if pid:
                status, seconds = code, usage.ru_utime + usage.ru_stime
            else:
                time.sleep(0.01)
                waited += 0.01
    finally:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
    late = status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
    return None if late else os.waitstatus_to_exitcode(status or 0), seconds


def _become_pytest(tests: Sequence[str], cpu_s: int, write_bytecode: bool) -> None:
    code = 1
    try:
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(TREE)
        if not write_bytecode:
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.path[:] = [str(TREE), *(path for path in sys.path if path not in {"", str(ROOT)})]
        for name in [name for name in sys.modules if name.split(".")[0] in _OURS]:
            del sys.modules[name]
        shutil.rmtree(TREE / ".hypothesis", ignore_errors=True)  # examples of other mutants
        before = {*sys.modules}
        import pytest

        code = int(pytest.main([*_PYTEST, *tests]))
        if write_bytecode:
            names = [name for name in sys.modules if name.split(".")[0] not in _OURS]
            IMPORTED.write_text("\n".join(name for name in names if name not in before), "utf-8")
    except BaseException:  # noqa: BLE001 (nothing may return from here: this is a fork)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _copy_tree() -> None:
    shutil.rmtree(TREE, ignore_errors=True)
    for line in _git("ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / line).is_file():
            (TREE / line).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / line, TREE / line)


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _test_files(item: str) -> Iterator[str]:
    found = sorted((ROOT / item).rglob("test_*.py")) if (ROOT / item).is_dir() else [ROOT / item]
    yield from (path.relative_to(ROOT).as_posix() for path in found)


def _key(mutant: Mutant) -> str:
    return hashlib.sha256(f"{mutant.module}\n{mutant.source}".encode()).hexdigest()


def _finished(tests: str) -> dict[str, dict[str, Any]]:
    """Mutants that need no run: noticed before, or survived these very tests."""
    if not DONE.is_file():
        return {}
    records = []
    for line in DONE.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the run was killed within this line
            records.append(json.loads(line))
    return {
        record["key"]: record
        for record in records
        if record["outcome"] != "survived" or record["tests"] == tests
    }


def _results() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text("utf-8"))) if RESULTS.is_file() else {"rooms": {}}


def _log_lines() -> list[str]:
    return LOG.read_text(encoding="utf-8", errors="replace").splitlines()


def _report(
    name: str,
    arguments: argparse.Namespace,
    total: int,
    found: Sequence[tuple[Mutant, Mapping[str, Any]]],
) -> None:
    """Print the survivors and the score, and put them among the kept results."""
    kept = yaml.safe_load(Path(__file__).with_name("equivalent.yaml").read_text("utf-8"))
    judged = {
        (item["module"], item["function"], item["before"], item["after"], item.get("nth", 0))
        for item in kept
    }
    survived, equivalent, counts = [], 0, {"killed": 0, "timeout": 0}
    for mutant, record in found:
        if record["outcome"] != "survived":
            counts[record["outcome"]] += 1
            if mutant.identity in judged:
                print(f"{mutant.module}: noticed, so not equivalent: {mutant.after}")
        elif mutant.identity in judged:
            equivalent += 1
        else:
            keys = ("module", "function", "before", "after", "nth")
            survived.append(dict(zip(keys, mutant.identity, strict=True)))
    if survived:
        print(yaml.safe_dump(survived, sort_keys=False, width=1000, allow_unicode=True))
    noticed = sum(counts.values())
    score = noticed / max(1, noticed + len(survived))
    figures = {"of": total, "drawn": len(found), **counts, "equivalent": equivalent}
    figures |= {"survived": len(survived), "score": round(score, 3), "met": score >= GOAL}
    print(f"{name}: {json.dumps(figures)}")
    commit = _git("rev-parse", "--short=10", "HEAD").strip()
    results = _results()
    results |= {"benchmark": "mutation", "command": "make mutants", "goal": GOAL}
    results["machine"] = machine()
    results["rooms"].setdefault(name, {})[str(arguments.seed)] = figures | {
        "commit": commit,
        "without_seed": arguments.without_seed,
        "survivors": survived,
    }
    results["rooms"] = dict(sorted(results["rooms"].items()))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.path.append(str(STATE / "lib"))  # last: the versions of the lock win
    sys.exit(main())
