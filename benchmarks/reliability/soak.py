"""Hours of service and gateway while models, keys, decoders and the PACS change under them.

    python -m benchmarks.soak [--quick | --hours H] [--folder FOLDER] [--strict]
    python -m benchmarks.soak --show FOLDER

Every minute the other one of two pairs of model and index is renamed into place (at once, index
first, or with seconds in between), the API key is rotated, and a decode worker of the service or
of the gateway is killed with -9; every fourth minute Orthanc is. Meanwhile clients ask the
service, some of them gone before the answer, more densely around an exchange, and a modality sends
an image every few seconds. What either pair answers alone is known beforehand: every answer must
be that of the model it names, index and all numbers, and none may come from a pair after its
successor answered. In the end each image that was acknowledged has its objects in Orthanc, each
once, by one model.

Anonymous memory, file descriptors and threads of both processes are sampled; a slope is that of
means over equal stretches after a warm-up, with a 95 % interval; next to it stands that of the last
half, in which what grows towards a limit is slower. Samples and counts go to the folder as they
come: `--show` prints the figures of a run that was cut. Needs orthanc and orthanc-dicomweb.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import psutil
from scipy import stats

from benchmarks.record import finish
from benchmarks.reliability.gateway import Modality
from hospital.tests.support import orthanc
from hospital.tests.support.orthanc import Orthanc, gateway_settings, radiograph, wait_until
from medclip_hospital.gateway.journal import WAITING
from testing.dicom import dicom_bytes, ramp
from testing.service import ROOT, Service, png, running, store

TOLERANCE = 1.5e-5
"""Largest difference of a number: grids are rounded to five digits."""
SEPARATION = 30
"""In tolerances, how far the numbers of the two models must differ to be distinguished."""
BLOCKS = 24
"""Stretches whose means a slope goes through."""
FLAT = {"anonymous_mib": 4.0, "descriptors": 0.5, "threads": 0.5}
"""Upper end of the interval of a slope, an hour, up to which something is flat."""
JUDGED_H = 0.5
"""Hours from which on slopes are held to that."""
NONE = (
    *("mixed", "unknown_model", "outlived", "refused_wrongly", "silent", "old_key_taken"),
    *("exchange_missed", "images_lost", "images_doubled", "images_mixed", "images_unknown_model"),
    *("images_not_done", "images_unsent"),
)
"""What must not be counted once."""
_PATTERNS, _CLIENTS, _LEAVING_SHARE = 4, 3, 0.1
_WATCH_S, _EXCHANGE_S, _SENT_EVERY_S, _PATIENCE_S = 0.5, 30.0, 5.0, 300.0


class Pace(NamedTuple):
    """How fast things happen, seconds, and in every how many rounds the PACS is killed."""

    round_s: float
    sample_s: float
    pacs_every: int


QUICK, NORMAL = Pace(6, 0.5, 2), Pace(60, 10, 4)


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
    """Every kind of question, large images, and what the gateway asks about its images."""
    image, other = png(), dicom_bytes(ramp(96, 64))
    asked = [{"name": "heart", "positive": "The heart is enlarged.", "negative": "Normal heart"}]
    explained = partial(Question, "/classify", {"explain": "true"})
    large = [radiograph(40 * number, rows=700, columns=900) for number in range(2)]
    return {
        "classify": Question("/classify", {}, image),
        "own": Question("/classify", {"findings": json.dumps(asked)}, other),
        "ground": Question("/ground", {"phrase": "right pleural effusion"}, image),
        "image by text": Question("/retrieve", {"target": "image", "text": "Effusion"}, None),
        "image by image": Question("/retrieve", {"target": "image"}, other),
        "text by box": Question("/retrieve", {"target": "text", "box": "[9, 9, 30, 30]"}, image),
        **{f"large {number}": explained(data) for number, data in enumerate(large)},
        **{f"gateway {number}": explained(image_of(number)) for number in range(_PATTERNS)},
    }


def image_of(number: int) -> bytes:
    """Image of a patient and study of its own, one of four pictures."""
    root = f"1.2.826.0.1.3680043.10.2.{number}"
    uids = {"SOPInstanceUID": f"{root}.3", "SeriesInstanceUID": f"{root}.2"}
    uids |= {"StudyInstanceUID": f"{root}.1", "PatientID": f"ID{number:06d}"}
    return radiograph(40 * (number % _PATTERNS), rows=120, columns=150, **uids)


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
        self.stopped, self.rush = threading.Event(), threading.Event()
        self.only: str | None = self.expected.digests[0]  # None: an exchange is under way
        self.key_file, self.gateway_key, self.key = folder / "key", folder / "key2", _new_key()
        self._shown, self._rng, self._lock = 0, random.Random(0), threading.Lock()
        for file in (self.key_file, self.gateway_key):
            _write_keys(file, [self.key])

    def ask_on(self, service: Service, seed: int) -> None:
        """Ask one question after another, as one client."""
        rng = random.Random(seed)
        with service.client() as client:
            while not self.stopped.is_set():
                if rng.random() < _LEAVING_SHARE:
                    with suppress(httpx.HTTPError):
                        self.asked["large 0"].ask(client, self.key, rng.uniform(0.001, 0.03))
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
            _write_keys(self.gateway_key, [new], in_place=in_place)
            self.stopped.wait(self.pace.round_s / 6)
            _write_keys(self.key_file, [new], in_place=in_place)
            self._try_keys(client, {old: 401, new: 200})
        self._count("rotations")

    def _try_keys(self, client: httpx.Client, expected: Mapping[str, int]) -> None:
        for key, status in expected.items():
            if client.get("/model", headers={"X-API-Key": key}).status_code != status:
                self._count("old_key_taken" if status == 401 else "refused_wrongly")

    def kill_worker(self, name: str, process: psutil.Process) -> None:
        """Kill a decode worker while it is asked."""
        self.rush.set()
        self.stopped.wait(self._rng.uniform(0.2, 0.4))
        with suppress(psutil.NoSuchProcess):
            self._rng.choice(process.children()).kill()
            self._count(f"killed_of_{name}")
        self.stopped.wait(0.3)
        self.rush.clear()

    def restart_pacs(self, pacs: Orthanc) -> None:
        """Kill Orthanc and start it again after a while."""
        pacs.kill()
        self.stopped.wait(self._rng.uniform(0.05, 0.2) * self.pace.round_s)
        while True:
            try:
                pacs.start()
            except AssertionError:  # on a busy machine it may take more than its minute
                pacs.kill()
            else:
                return self._count("pacs_restarts")

    def save(self) -> None:
        """Write what was counted, so that a kill leaves it."""
        with self._lock:
            text = json.dumps({"counts": self.counts, "seconds": self.seconds})
        draft = self.folder / ".counts.json"
        draft.write_text(text)
        draft.replace(self.folder / "counts.json")

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


@contextmanager
def gateway(soak: Soak, service: Service, pacs: Orthanc) -> Iterator[subprocess.Popen[str]]:
    """Run the gateway as a process of its own, which prints its port."""
    config = soak.folder / "gateway.yaml"
    given = {"service_key_file": str(soak.gateway_key), "keep_hours": 0.2}
    to = {"kind": "dicomweb", "url": pacs.web}
    config.write_text(gateway_settings(soak.folder, service.url, to, **given).model_dump_json())
    words = [sys.executable, "-m", "medclip_hospital", "gateway", "--config", str(config)]
    with (soak.folder / "gateway.log").open("w") as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def watch(soak: Soak, processes: Mapping[str, psutil.Process]) -> None:
    """Sample the processes until the end."""
    began = time.monotonic()
    with (soak.folder / "samples.jsonl").open("w") as stream:
        while not soak.stopped.wait(soak.pace.sample_s):
            for name, process in processes.items():
                line = {"process": name, "hours": (time.monotonic() - began) / 3600}
                line |= {"anonymous_mib": anonymous_mib(process.pid)}
                line |= {"resident_mib": process.memory_info().rss / 2**20}
                line |= {"descriptors": process.num_fds(), "threads": process.num_threads()}
                stream.write(json.dumps(line) + "\n")
            stream.flush()


def anonymous_mib(pid: int) -> float:
    """Give the memory of a process that no file backs, MiB.

    What is private besides are pages of mapped files that no other process has touched: after an
    exchange of the index they come and go with the kernel's cache, and nothing leaks.

    Source: Linux, Documentation/filesystems/proc.rst, `smaps_rollup`.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
    return kib / 2**10


def run(folder: Path, hours: float, pace: Pace) -> None:
    """Let everything happen, then count what the PACS holds."""
    with ExitStack() as stack:
        soak = Soak(folder, pace)
        signal.signal(signal.SIGTERM, lambda *_: soak.stopped.set())
        pacs = stack.enter_context(orthanc.running(folder / "pacs"))
        settings = {"key_file": str(soak.key_file), "watch_s": _WATCH_S, "threads": 1}
        service = stack.enter_context(running(soak.live, fresh=True, **settings))
        process = stack.enter_context(gateway(soak, service, pacs))
        assert process.stdout is not None
        modality = Modality(json.loads(process.stdout.readline())["port"])
        watched = {"service": service.process.pid, "gateway": process.pid}
        processes = {name: psutil.Process(pid) for name, pid in watched.items()}

        def send() -> None:
            while not soak.stopped.wait(_SENT_EVERY_S * pace.round_s / 60):
                modality.give(soak.counts["images_sent"], image_of(soak.counts["images_sent"]))
                soak.counts["images_sent"] += 1

        work = [partial(watch, soak, processes), send]
        work += [partial(soak.ask_on, service, number) for number in range(_CLIENTS)]
        threads = [threading.Thread(target=item) for item in work]
        stack.callback(soak.stopped.set)
        for thread in threads:
            thread.start()
        end = time.monotonic() + 3600 * hours
        while not soak.stopped.is_set() and (began := time.monotonic()) + pace.round_s < end:
            soak.exchange(service)
            soak.rotate(service)
            name = ("service", "gateway")[soak.counts["rounds"] % 2]
            soak.kill_worker(name, processes[name])
            soak.counts["rounds"] += 1
            if soak.counts["rounds"] % pace.pacs_every == 0:
                soak.restart_pacs(pacs)
            soak.counts["alive"] = int(service.exit_code() is None and process.poll() is None)
            soak.save()
            soak.stopped.wait(max(0.0, began + pace.round_s - time.monotonic()))
        soak.stopped.set()
        for thread in threads:
            thread.join()
        journal = folder / "spool" / "journal.sqlite3"
        for condition in (modality.is_idle, lambda: not _waiting(journal)):
            with suppress(AssertionError):
                wait_until(condition, _PATIENCE_S)
        count_images(soak, pacs, journal, modality.acknowledged)
        refused = [line for line in service.lines() if line["event"] == "swap_refused"]
        soak.counts["swaps_refused"] = len(refused)
        soak.save()


def _waiting(journal: Path) -> int:
    """Count images that wait."""
    time.sleep(0.2)
    marks = ", ".join("?" * len(WAITING))
    return int(_rows(journal, f"count(*) from images where state in ({marks})", WAITING)[0][0])


def _rows(journal: Path, wanted: str, values: Sequence[str] = ()) -> list[Any]:
    db = sqlite3.connect(journal)
    try:
        return db.execute(f"select {wanted}", values).fetchall()
    finally:
        db.close()


def count_images(soak: Soak, pacs: Orthanc, journal: Path, acknowledged: Sequence[int]) -> None:
    """Hold journal and PACS to what was acknowledged: objects by study and modality."""
    rows = _rows(journal, "image_uid, state, code, answer from images")
    found, wanted = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    with httpx.Client(base_url=pacs.url, trust_env=False, timeout=_PATIENCE_S) as client:
        studies = {
            item["ID"]: item["MainDicomTags"] for item in client.get("/studies?expand").json()
        }
        for item in client.get("/series?expand").json():
            study = studies[item["ParentStudy"]]["StudyInstanceUID"]
            key = (study.rpartition(".")[0], item["MainDicomTags"]["Modality"])
            found[key] += len(item["Instances"])
    for uid, state, code, text in rows:
        if state != "done":
            soak.counts["images_not_done"] += 1
            print(f"an image is {state}: {code}", flush=True)
            continue
        study, answer = uid.rpartition(".")[0], json.loads(text)
        pattern = int(study.rpartition(".")[2]) % _PATTERNS
        soak.counts[f"images_{soak.expected.fault(f'gateway {pattern}', answer) or 'right'}"] += 1
        has_box = any(item["decision"] and item["where"]["box"] for item in answer["findings"])
        wanted.update((study, kind) for kind in ("SR", "OT", "PR")[: 2 + has_box])
    soak.counts["images_unsent"] = soak.counts["images_sent"] - len(acknowledged)
    soak.counts["images_lost"] = len(set(acknowledged)) - len(rows) + (wanted - found).total()
    soak.counts["images_doubled"] = (found - wanted).total()


def slope(
    hours: Sequence[float], values: Sequence[float], left_out: float = 1 / 6
) -> tuple[float, float, float]:
    """Slope an hour, and its 95 % interval, without the first share of the time.

    Samples follow each other; means over stretches that are longer than any cycle do so less.
    """
    kept = np.array(hours) > left_out * max(hours)
    blocks = round(BLOCKS * (1 - left_out) * 6 / 5)  # of one length, whatever is left out
    parts = [np.array_split(np.array(column)[kept], blocks) for column in (hours, values)]
    x, y = (np.array([part.mean() for part in column if len(part)]) for column in parts)
    fit = stats.linregress(x, y)
    half = float(stats.t.ppf(0.975, len(x) - 2) * np.nan_to_num(fit.stderr))  # nan: all are equal
    return float(fit.slope), float(fit.slope) - half, float(fit.slope) + half


def show(folder: Path) -> int:
    """Print the figures of a run; give 0 where every bar is met."""
    tree = json.loads((folder / "counts.json").read_text())
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    figures: dict[str, float] = dict.fromkeys(NONE, 0) | tree["counts"]
    figures["hours"] = max(item["hours"] for item in samples)
    bars = {name: ("0", figures[name] == 0) for name in NONE}
    bars["separation"] = (f">= {SEPARATION}", figures["separation"] >= SEPARATION)
    bars["alive"] = ("1", figures["alive"] == 1)
    for process in ("service", "gateway"):
        own = [item for item in samples if item["process"] == process]
        for what in ("anonymous_mib", "resident_mib", "descriptors", "threads"):
            values, name = [item[what] for item in own], f"{process}_{what}"
            figures[name], line = float(np.median(values)), f"{name:24}"
            for part, left_out in {"": 1 / 6, "_last_half": 1 / 2}.items():
                found = slope([item["hours"] for item in own], values, left_out)
                ends = (f"{name}{part}_per_h{end}" for end in ("", "_low", "_high"))
                figures |= dict(zip(ends, found, strict=True))
                line += "{:+9.3f} an hour [{:+.3f}, {:+.3f}]".format(*found)
            print(f"{line} of {figures[name]:.2f}")
            if what in FLAT and figures["hours"] >= JUDGED_H:
                high = figures[f"{name}_per_h_high"]
                bars[f"{name}_per_h_high"] = (f"<= {FLAT[what]}", high <= FLAT[what])
    for name, seconds in tree["seconds"].items():
        for title, share in {"p50": 0.5, "p99": 0.99, "longest": 1.0}.items():
            key = f"{name.replace(' ', '_')}_{title}_ms"
            figures[key] = 1e3 * float(np.quantile(seconds, share))
            print(f"{key:32} {figures[key]:9.1f} of {len(seconds)}")
    for name, (bar, met) in bars.items():
        print(f"{name:32} {figures[name]:9.3f}  bar {bar:8} {'met' if met else 'MISSED'}")
    finish("soak", figures, bars)
    return int(not all(met for _, met in bars.values()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run, or show a run; 1 with `--strict` where a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", action="store_true", help="half a minute, by rounds of 6 s")
    choice.add_argument("--hours", type=float, default=2.0)
    choice.add_argument("--show", type=Path, metavar="FOLDER", help="print what a run left")
    parser.add_argument("--folder", type=Path, help="is made; default: a temporary one")
    parser.add_argument("--strict", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.show:
        return show(arguments.show)
    if missing := orthanc.missing():
        print(f"not installed: {missing}; nothing is measured")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name) / "soak"
        folder.mkdir(parents=True)
        run(folder, *((33 / 3600, QUICK) if arguments.quick else (arguments.hours, NORMAL)))
        return show(folder) * arguments.strict


if __name__ == "__main__":
    sys.exit(main())
