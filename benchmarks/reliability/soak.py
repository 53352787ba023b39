"""Hours of the service while models, keys and decoders change under it.

    python -m benchmarks.soak [--quick | --hours H] [--strict]

Every minute the other one of two pairs of model and index is renamed into place (at once, index
first, or with seconds in between), the API key is rotated, and a decode worker is killed with -9.
Meanwhile clients ask, some of them gone before the answer, more densely around an exchange. What
either pair answers alone is known beforehand: every answer must be that of the model it names,
index and all numbers, and none may come from a pair after its successor answered.

Anonymous memory, file descriptors and threads are sampled; a slope is that of means over equal
stretches after a warm-up, with a 95 % interval.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil
from scipy import stats

from benchmarks.record import finish, judge
from tests.support.dicom import dicom_bytes, ramp
from tests.support.service import Service, png, running, store

TOLERANCE = 1.5e-5
"""Largest difference of a number: grids are rounded to five digits."""
SEPARATION = 30
"""In tolerances, how far the numbers of the two models must differ to be distinguished."""
BLOCKS = 20
"""Stretches whose means a slope goes through."""
FLAT = {"anonymous_mib": 4.0, "descriptors": 0.5, "threads": 0.5}
"""Upper end of the interval of a slope, an hour, up to which something is flat."""
JUDGED_H = 0.5
"""Hours from which on slopes are held to that."""
NONE = ("mixed", "unknown_model", "outlived", "refused_wrongly", "silent", "old_key_taken")
NONE += ("exchange_missed",)
"""What must not be counted once."""
_CLIENTS, _LEAVING_SHARE, _WARM_UP = 3, 0.1, 1 / 6
_WATCH_S, _EXCHANGE_S = 0.5, 30.0


class Pace(NamedTuple):
    """Seconds of a round, and between samples."""

    round_s: float
    sample_s: float


QUICK, NORMAL = Pace(6, 0.5), Pace(60, 10)


class Question(NamedTuple):
    """What is asked of the service."""

    path: str
    fields: dict[str, str]
    image: bytes | None

    def ask(self, client: httpx.Client, key: str, timeout_s: float = 90) -> httpx.Response:
        """Ask it."""
        files: dict[str, Any] = (
            {"image": ("image", self.image)} if self.image else {"": (None, b"")}
        )
        headers = {"X-API-Key": key}
        return client.post(
            self.path, data=self.fields, files=files, headers=headers, timeout=timeout_s
        )


def questions() -> dict[str, Question]:
    """Every kind of question, and large images."""
    image, other, large = png(), dicom_bytes(ramp(96, 64)), dicom_bytes(ramp(700, 900))
    asked = [{"name": "heart", "positive": "The heart is enlarged.", "negative": "Normal heart"}]
    return {
        "classify": Question("/classify", {}, image),
        "own": Question("/classify", {"findings": json.dumps(asked)}, other),
        "large": Question("/classify", {"explain": "true"}, large),
        "ground": Question("/ground", {"phrase": "right pleural effusion"}, image),
        "image by text": Question("/retrieve", {"target": "image", "text": "Effusion"}, None),
        "image by image": Question("/retrieve", {"target": "image"}, other),
        "text by box": Question("/retrieve", {"target": "text", "box": "[9, 9, 30, 30]"}, image),
    }


def distance(ours: Any, theirs: Any) -> float:
    """Largest difference of two answers' numbers; infinite where anything else differs."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return max((distance(ours[name], theirs[name]) for name in ours), default=0.0)
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return max(map(distance, ours, theirs), default=0.0)
    if isinstance(ours, float | int) and isinstance(theirs, float | int):
        return abs(ours - theirs)
    return 0.0 if ours == theirs else float("inf")


class Expected:
    """What each pair answers alone."""

    def __init__(self, folders: Sequence[Path], asked: Mapping[str, Question]) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        for folder in folders:
            with running(folder) as service, service.client() as client:
                replies = {name: item.ask(client, "") for name, item in asked.items()}
            found = {name: reply.raise_for_status().json() for name, reply in replies.items()}
            self.answers[found["classify"]["model"]] = found
        self.digests = list(self.answers)

    def separation(self) -> float:
        """Smallest difference of the pairs' answers to one question, in tolerances."""
        one, other = (
            {name: np.array(_scores(answer)) for name, answer in found.items()}
            for found in self.answers.values()
        )
        return float(min(np.abs(one[name] - other[name]).max() for name in one) / TOLERANCE)

    def fault(self, name: str, answer: Any) -> str:
        """What is wrong with an answer; empty where nothing is."""
        expected = self.answers.get(answer["model"])
        if expected is None:
            return "unknown_model"
        return "" if distance(answer, expected[name]) <= TOLERANCE else "mixed"


def _scores(answer: Any) -> list[float]:
    if isinstance(answer, dict):
        own = [float(answer[name]) for name in ("score", "margin") if name in answer]
        return own + [item for value in answer.values() for item in _scores(value)]
    return [item for value in answer for item in _scores(value)] if isinstance(answer, list) else []


class Soak:
    """A service, its clients, and what changes under it."""

    def __init__(self, folder: Path, pace: Pace) -> None:
        self.folder, self.live, self.pace, self.asked = folder, folder / "live", pace, questions()
        self.counts, self.seconds = Counter[str](), defaultdict[str, list[float]](list)
        self.pairs = [store(folder / name, seed=seed) for seed, name in enumerate("ab")]
        self.expected = Expected(self.pairs, self.asked)
        self.counts["separation"] = int(self.expected.separation())
        shutil.copytree(self.pairs[0], self.live)
        self.samples: list[dict[str, float]] = []
        self.stopped, self.rush = threading.Event(), threading.Event()
        self.only: str | None = self.expected.digests[0]  # None: an exchange is under way
        self.key_file, self.key = folder / "key", _new_key()
        self._shown, self._rng, self._lock = 0, random.Random(0), threading.Lock()
        _write_keys(self.key_file, [self.key])

    def ask_on(self, service: Service, seed: int) -> None:
        """Ask one question after another, as one client."""
        rng = random.Random(seed)
        with service.client() as client:
            while not self.stopped.is_set():
                if rng.random() < _LEAVING_SHARE:
                    with suppress(httpx.HTTPError):
                        self.asked["large"].ask(client, self.key, rng.uniform(0.001, 0.03))
                        self._count("left_too_late")
                self._ask(client, rng.choice(list(self.asked)))
                self.stopped.wait(0.02 if self.rush.is_set() else rng.uniform(0.2, 1.0))

    def _ask(self, client: httpx.Client, name: str) -> None:
        only, key, began = self.only, self.key, time.monotonic()
        try:
            reply = self.asked[name].ask(client, key)
        except httpx.HTTPError as error:
            print(
                f"{name}: {type(error).__name__} after {time.monotonic() - began:.1f} s", flush=True
            )
            return self._count("silent")
        self._note("exchange" if self.rush.is_set() else "quiet", began)
        if reply.status_code == 401 and key != self.key:
            return self._count("late")  # the key was sound when this was sent
        if reply.status_code != 200:
            fault = "busy" if reply.status_code == 503 else "refused_wrongly"
        else:
            fault = self.expected.fault(name, answer := reply.json())
            if not fault and only and only == self.only and answer["model"] != only:
                fault = "outlived"
        self._count(fault or "right")
        if fault:
            print(f"{name}: {fault}: {reply.status_code} {reply.text[:500]}", flush=True)
        return None

    def exchange(self, service: Service) -> None:
        """Rename the other pair into place, and wait until it answers."""
        self._shown, self.only = 1 - self._shown, None
        self.rush.set()
        order = self._rng.choice((("model", "index"), ("index", "model")))
        pause = self._rng.choice((0.0, 0.0, _WATCH_S / 2, 4 * _WATCH_S))
        for part, wait in zip(order, (pause, 0.0), strict=True):
            draft, place, retired = (self.live / name for name in (f".{part}", part, ".retired"))
            shutil.copytree(self.pairs[self._shown] / part, draft)
            place.rename(retired)
            draft.rename(place)
            shutil.rmtree(retired)
            self.stopped.wait(wait)
        wanted, began = self.expected.digests[self._shown], time.monotonic()
        with service.client() as client:
            while self.asked["classify"].ask(client, self.key).json().get("model") != wanted:
                if time.monotonic() > began + _EXCHANGE_S:
                    return self._count("exchange_missed")
                time.sleep(0.05)
        self.only = wanted
        self._count("exchanges")
        self._note("until exchanged", began)
        self.stopped.wait(1)
        return self.rush.clear()

    def rotate(self, service: Service) -> None:
        """Add a key, move everybody to it, remove the old one after a while."""
        old, new, in_place = self.key, _new_key(), self._rng.random() < 0.5
        with service.client() as client:
            _write_keys(self.key_file, [old, new], in_place=in_place)
            self._try_keys(client, {new: 200, old: 200})
            self.key = new
            self.stopped.wait(self.pace.round_s / 6)
            _write_keys(self.key_file, [new], in_place=in_place)
            self._try_keys(client, {old: 401, new: 200})
        self._count("rotations")

    def _try_keys(self, client: httpx.Client, expected: Mapping[str, int]) -> None:
        for key, status in expected.items():
            if client.get("/model", headers={"X-API-Key": key}).status_code != status:
                self._count("old_key_taken" if status == 401 else "refused_wrongly")

    def kill_worker(self, process: psutil.Process) -> None:
        """Kill a decode worker while it is asked."""
        self.rush.set()
        self.stopped.wait(self._rng.uniform(0.2, 0.4))
        with suppress(psutil.NoSuchProcess):
            self._rng.choice(process.children()).kill()
            self._count("killed")
        self.stopped.wait(0.3)
        self.rush.clear()

    def sample(self, process: psutil.Process) -> None:
        """Sample what might grow, until stopped."""
        began = time.monotonic()
        while not self.stopped.wait(self.pace.sample_s):
            row = {"hours": (time.monotonic() - began) / 3600}
            row |= {"anonymous_mib": anonymous_mib(process.pid)}
            row |= {"descriptors": process.num_fds(), "threads": process.num_threads()}
            self.samples.append(row)

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _note(self, what: str, began: float) -> None:
        with self._lock:
            self.seconds[what].append(time.monotonic() - began)


def _new_key() -> str:
    return os.urandom(24).hex()


def _write_keys(file: Path, keys: Sequence[str], *, in_place: bool = False) -> None:
    target = file if in_place else file.with_suffix(".draft")
    target.touch(0o600)
    target.write_text("\n".join(keys), encoding="ascii")
    target.replace(file)


def anonymous_mib(pid: int) -> float:
    """Give the memory of a process that no file backs, MiB.

    What is private besides are pages of mapped files that no other process has touched: after an
    exchange of the index they come and go with the kernel's cache, and nothing leaks.

    Source: Linux, Documentation/filesystems/proc.rst, `smaps_rollup`.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
    return kib / 2**10


def slope(
    hours: Sequence[float], values: Sequence[float], left_out: float = _WARM_UP
) -> tuple[float, float, float]:
    """Slope an hour, and its 95 % interval, without the first share of the time.

    Samples follow each other; means over stretches that are longer than any cycle do so less.
    """
    kept = np.array(hours) > left_out * max(hours)
    parts = [np.array_split(np.array(column)[kept], BLOCKS) for column in (hours, values)]
    x, y = (np.array([part.mean() for part in column if len(part)]) for column in parts)
    fit = stats.linregress(x, y)
    half = float(stats.t.ppf(0.975, len(x) - 2) * np.nan_to_num(fit.stderr))  # nan: all are equal
    return float(fit.slope), float(fit.slope) - half, float(fit.slope) + half


def run(soak: Soak, hours: float) -> dict[str, float]:
    """Let everything happen; what was counted, and how memory, descriptors and threads grew."""
    settings = {"key_file": str(soak.key_file), "watch_s": _WATCH_S, "threads": 1}
    with running(soak.live, fresh=True, **settings) as service:
        process = psutil.Process(service.process.pid)
        work = [partial(soak.ask_on, service, number) for number in range(_CLIENTS)]
        threads = [threading.Thread(target=item) for item in (*work, partial(soak.sample, process))]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 3600 * hours
        try:
            while (began := time.monotonic()) + soak.pace.round_s < end:
                soak.exchange(service)
                soak.rotate(service)
                soak.kill_worker(process)
                soak.stopped.wait(max(0.0, began + soak.pace.round_s - time.monotonic()))
        finally:
            soak.stopped.set()
            for thread in threads:
                thread.join()
        soak.counts["alive"] = int(service.exit_code() is None)
    figures: dict[str, float] = dict.fromkeys(NONE, 0) | dict(soak.counts)
    at = [item["hours"] for item in soak.samples]
    figures["hours"] = max(at)
    for name in FLAT:
        values = [item[name] for item in soak.samples]
        ends = (f"{name}_per_h{end}" for end in ("", "_low", "_high"))
        figures |= {
            name: float(np.median(values)),
            **dict(zip(ends, slope(at, values), strict=True)),
        }
    for name, seconds in soak.seconds.items():
        for title, share in {"p50": 0.5, "p99": 0.99, "longest": 1.0}.items():
            key = f"{name.replace(' ', '_')}_{title}_ms"
            figures[key] = 1e3 * float(np.quantile(seconds, share))
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print; 1 with `--strict` where a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", action="store_true", help="half a minute, by rounds of 6 s")
    choice.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--strict", action="store_true")
    arguments = parser.parse_args(argv)
    hours, pace = (33 / 3600, QUICK) if arguments.quick else (arguments.hours, NORMAL)
    with tempfile.TemporaryDirectory() as folder:
        figures = run(Soak(Path(folder), pace), hours)
    bars = dict.fromkeys(NONE, "0") | {"alive": "1", "separation": f">= {SEPARATION}"}
    if figures["hours"] >= JUDGED_H:
        bars |= {f"{name}_per_h_high": f"<= {limit}" for name, limit in FLAT.items()}
    return finish("soak", figures, judge(figures, bars), strict=arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
