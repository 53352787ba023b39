"""Kill -9 of the gateway and the PACS, disks that fail: is what was acknowledged answered, once?

    python -m hospital.benchmark [--quick | --long] [--strict]

A modality sends every image twice, and again until it is acknowledged; Orthanc receives the
answers, a stub gives them. The gateway is killed while an image arrives and while one is worked
on, at random moments, and so is Orthanc. In the end Orthanc must hold exactly the objects whose
UIDs follow from the images: `lost` counts those that lack, `doubled` those that nothing accounts
for. The journal is then deleted and everything sent again, which may add none.

Then calls that change the disk below the spool fail, the n-th from now, once with EIO and from
there on with ENOSPC, until the disk is healed (`failing_disk.c`, which needs a C compiler): the
gateway must refuse or wait, and must not end.

Two gateways that are wrong must be found out: one that acknowledges before the image is durable
loses images, one that draws its UIDs doubles objects. Last, images whose headers are canaries go
through it: none may be in what it logs, shows, sends to the service or leaves in its spool. Needs
the Debian packages orthanc and orthanc-dicomweb.
"""

import argparse
import contextlib
import datetime as dt
import errno
import json
import mmap
import random
import shutil
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import httpx
from pydicom.uid import generate_uid

from benchmarks.record import finish
from benchmarks.reliability.kills import arm as arm_disk
from benchmarks.reliability.kills import failing_disk
from hospital.tests.support import orthanc
from hospital.tests.support.orthanc import Orthanc, radiograph, send, wait_until
from medclip_dcl.core.errors import ServiceError
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.schemas import ClassifyAnswer
from medclip_hospital.gateway.journal import WAITING, Journal
from medclip_hospital.gateway.launcher import started
from medclip_hospital.gateway.monitoring import silence_libraries
from medclip_hospital.gateway.settings import GatewaySettings
from medclip_hospital.instance import ResultsConfig
from medclip_hospital.results import encode_results
from tests.support import forkserver
from tests.support.canaries import HEADER, search, spoil_header
from tests.support.stub_service import StubService, stub_answer, stub_service

PATIENCE_S = 600.0
ROWS, COLUMNS = 700, 900
"""Of the images: large enough that a kill can come while one arrives."""
TIERS = {
    # images, kills of the worker, of the listener, of Orthanc; every n-th call that fails
    "quick": (10, 6, 3, 1, 12),
    "normal": (20, 24, 12, 4, 4),
    "long": (30, 120, 60, 20, 1),
}
PRELOADED = ("medclip_hospital.gateway.launcher", "medclip_hospital.structured_report")
PRELOADED += ("benchmarks.reliability.kills", "hospital.tests.support.orthanc")
"""What the process that gateways are forked from has imported."""
_FAR = 1 << 40  # call that fails; the counter is set to just before it


class Bench:
    """A gateway in a process of its own, and what it talks to."""

    def __init__(
        self, folder: Path, pacs: Orthanc, service: StubService, objects: Sequence[str] = ()
    ) -> None:
        folder.mkdir(parents=True)
        self.spool, self.pacs, self.service = folder / "spool", pacs, service
        self.log, self._output = folder / "log", folder / "output"
        self._config, self.port = folder / "gateway.yaml", orthanc.free_port()
        self._process: ForkServerProcess | None = None
        settings = {
            "port": self.port,
            "metrics_port": 0,
            "callers": {"MODALITY": ["127.0.0.1"]},
            "service": service.url,
            "destination": {"kind": "dicomweb", "url": pacs.web},
            "spool": str(self.spool),
        }
        settings |= {"objects": list(objects)} if objects else {}
        self._config.write_text(json.dumps(settings))

    def start(self, before: Any = None) -> None:
        """Start the gateway and wait until it listens."""
        self._output.write_bytes(b"")
        words = ["--config", str(self._config)]
        log = self.log.with_suffix(f".{time.monotonic_ns()}")
        self._process = process = forkserver.start(
            "medclip_hospital.gateway.launcher", words, log, output=self._output, before=before
        )
        while not self._output.read_bytes().endswith(b"\n"):
            if not process.is_alive():
                raise RuntimeError(f"the gateway ended: {log.read_text()[-2000:]}")
            time.sleep(0.005)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.is_alive()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def counts(self) -> dict[str, int]:
        """Images by state."""
        journal = Journal(self.spool / "journal.sqlite3")
        try:
            return journal.counts()
        finally:
            journal.close()

    def is_done(self) -> bool:
        """Whether nothing waits."""
        return not any(self.counts()[state] for state in WAITING)

    def forget_journal(self) -> None:
        """Delete the journal of a gateway that was ended."""
        for path in self.spool.glob("journal.*"):
            path.unlink()


class Modality:
    """Sends images one by one, each until it is acknowledged."""

    def __init__(self, port: int) -> None:
        self.acknowledged: list[int] = []
        self.sent_again = 0
        self._port = port
        self._queue: list[tuple[int, bytes]] = []
        self._wake = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def give(self, number: int, image: bytes) -> None:
        """Have an image sent."""
        with self._wake:
            self._queue.append((number, image))
            self._wake.notify()

    def is_idle(self) -> bool:
        """Whether everything has been acknowledged."""
        return not self._queue

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue:
                    self._wake.wait()
                number, image = self._queue[0]
            try:
                (status,) = send(self._port, [image])
            except (ConnectionRefusedError, OSError):
                status = None
            if status != 0:
                self.sent_again += 1
                time.sleep(0.02)
                continue
            self.acknowledged.append(number)
            with self._wake:
                self._queue.pop(0)


def image_of(number: int) -> bytes:
    """An image; its UIDs go by the number."""
    return radiograph(number, rows=ROWS, columns=COLUMNS)


def expected_uids(
    images: Sequence[bytes], service: StubService, objects: Sequence[str] = ("sr", "pr", "sc")
) -> set[str]:
    """UIDs of the objects that the images have, without a gateway."""
    settings = ResultsConfig.model_validate({"objects": objects})
    answer = ClassifyAnswer.model_validate(service.answer)
    found = set()
    with Decoder(ImagesConfig(), 1) as decoder:
        for image in images:
            made = encode_results(
                decoder.separate(image).header,
                answer,
                decoder.open(image),
                dt.datetime.now(dt.UTC),
                settings,
            )
            found |= {item.sop_instance_uid for item in made}
    return found


def kills(bench: Bench, tier: str, rng: random.Random) -> dict[str, float]:
    """Deliver every image twice under kills, then again without the journal."""
    count, worker, listener, of_pacs, _ = TIERS[tier]
    images = {number: image_of(number) for number in range(count)}
    targets = ["worker"] * worker + ["listener"] * listener + ["pacs"] * of_pacs
    rng.shuffle(targets)
    deliveries = [*images, *images]
    modality, hit = Modality(bench.port), Counter[str]()
    bench.start()
    while targets or deliveries:
        for _ in range(-(-len(deliveries) // max(1, len(targets)))):
            modality.give(number := deliveries.pop(0), images[number])
        if not targets:
            break
        target = targets.pop()
        if target == "pacs":
            bench.pacs.kill()
            time.sleep(0.2)
            bench.pacs.start()
            hit["pacs"] += 1
            continue
        if not deliveries and modality.is_idle() and bench.is_done():
            deliveries = list(images)  # long tier: more kills than deliveries
        _wait_for_moment(bench, target, rng)
        bench.kill()
        hit[_moment(bench)] += 1
        bench.start()
    wait_until(modality.is_idle, PATIENCE_S)
    wait_until(bench.is_done, PATIENCE_S)
    expected = expected_uids(list(images.values()), bench.service)
    there = bench.pacs.uids()
    bench.kill()
    bench.forget_journal()
    bench.start()
    for number, image in images.items():
        modality.give(number, image)
    wait_until(modality.is_idle, PATIENCE_S)
    wait_until(bench.is_done, PATIENCE_S)
    after = bench.pacs.uids()
    bench.kill()
    return {
        "deliveries": len(modality.acknowledged),
        "sent_again": modality.sent_again,
        **{f"kills_{name}": number for name, number in sorted(hit.items())},
        "lost": len(expected - set(there)),
        "doubled": len(there) - len(expected & set(there)),
        "added_without_journal": len(after) - len(there),
    }


def _wait_for_moment(bench: Bench, target: str, rng: random.Random) -> None:
    """Wait until an image arrives, or is worked on, then a random time; a second at most."""
    end = time.monotonic() + 1
    folder = bench.spool / "incoming"
    while time.monotonic() < end:
        if target == "listener" and any(folder.glob("*.part")):
            time.sleep(rng.uniform(0, 0.02))
            return
        if target == "worker" and not bench.is_done():
            time.sleep(rng.uniform(0, 0.5))
            return
        time.sleep(0.0005)


def _moment(bench: Bench) -> str:
    """Say what a kill hit: an image that arrived, or one in some state; `idle`: nothing."""
    if any((bench.spool / "incoming").glob("*.part")):
        return "receiving"
    counts = bench.counts()
    return next((state for state in reversed(WAITING) if counts[state]), "idle")


def arm(folder: str, counter: str, error: int, lasting: int) -> None:
    """Let a call far away fail; called in the process that is to suffer."""
    arm_disk(folder, counter, _FAR, error, lasting)


class Disk:
    """The counter of `failing_disk.c`, which the gateway shares: when the next call fails."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_bytes(bytes(mmap.PAGESIZE))
        with file.open("r+b") as stream:
            self._page = mmap.mmap(stream.fileno(), mmap.PAGESIZE)

    def fail_after(self, calls: int) -> None:
        """Let the n-th call from now fail."""
        self._page[:8] = struct.pack("=q", _FAR - calls)

    def heal(self) -> None:
        """Let none fail."""
        self._page[:8] = struct.pack("=q", 0)

    def calls(self) -> int:
        """Count the calls since `heal`."""
        return int(struct.unpack("=q", self._page[:8])[0])


def disks(bench: Bench, step: int, counter: Path) -> dict[str, float]:
    """Let one call after the other fail while an image is received, answered and sent."""
    disk, trials, ended, number = Disk(counter), 0, 0, 1000
    images: list[bytes] = []

    def deliver() -> None:
        nonlocal number
        number += 1
        images.append(radiograph(number))
        modality.give(number, images[-1])

    def is_done() -> bool:
        return modality.is_idle() and bench.is_done()

    for error, lasting in ((errno.EIO, 0), (errno.ENOSPC, 1)):
        bench.start(("hospital.benchmark:arm", (str(bench.spool), str(counter), error, lasting)))
        modality = Modality(bench.port)
        disk.heal()
        deliver()
        wait_until(is_done, PATIENCE_S)
        total = disk.calls()
        for at in range(1 + lasting * (step // 2), total + 1, step):
            disk.fail_after(at)
            deliver()
            with suppress(AssertionError):  # it waits for room
                wait_until(is_done, 0.6)
            disk.heal()
            trials += 1
            if not bench.is_alive():
                ended += 1
                break
            wait_until(is_done, PATIENCE_S)
        bench.kill()
    missing = expected_uids(images, bench.service, ("pr",)) - set(bench.pacs.uids())
    return {"disk_faults": trials, "disk_ended": ended, "disk_lost": len(missing)}


def acknowledge_early() -> None:
    """Make this gateway wrong: it acknowledges, then makes the image durable."""
    from medclip_hospital.gateway.listener import SUCCESS, Intake
    from medclip_hospital.gateway.spool import IncomingImage

    durable = Intake.accept

    def early(self: Intake, part: IncomingImage, image_uid: str, caller: str) -> int:
        copy = self.part()  # pynetdicom removes its own when the handler returns
        part.sync()
        copy.write(part.path.read_bytes())
        threading.Timer(0.3, durable, (self, copy, image_uid, caller)).start()
        return SUCCESS

    Intake.accept = early  # type: ignore[method-assign]


def draw_uids() -> None:
    """Make this gateway wrong: it draws the UIDs of its objects."""
    from medclip_hospital import instance

    instance.make_uid = lambda *_: str(generate_uid())  # type: ignore[assignment]


def lost_by_early_acknowledgement(bench: Bench) -> int:
    """Kill a gateway after each acknowledgement that came too early; count lost objects."""
    images = [radiograph(number) for number in range(2000, 2004)]
    for image in images:
        bench.start(("hospital.benchmark:acknowledge_early", ()))
        assert send(bench.port, [image]) == [0]
        bench.kill()
    bench.start()
    wait_until(bench.is_done, PATIENCE_S)
    bench.kill()
    return len(expected_uids(images, bench.service, ("pr",)) - set(bench.pacs.uids()))


def doubled_by_drawn_uids(bench: Bench) -> int:
    """Answer images with drawn UIDs, delete the journal, and again; count what was added."""
    images = [radiograph(number) for number in range(3000, 3002)]
    counts = []
    for _ in range(2):
        bench.start(("hospital.benchmark:draw_uids", ()))
        assert send(bench.port, images) == [0] * len(images)
        wait_until(bench.is_done, PATIENCE_S)
        bench.kill()
        bench.forget_journal()
        counts.append(len(bench.pacs.instances()))
    return counts[1] - counts[0]


def canaries(base: Path) -> dict[str, float]:
    """Send images whose headers are canaries, and search what the gateway said and left.

    `objects_named` are those stored with the patient's name, as they must be.
    """
    stored: list[bytes] = []
    out = base / "out"
    out.mkdir(parents=True)
    images: dict[str, dict[str, str]] = {
        "answered": {},
        "refused": {"ViewPosition": "LL"},
        "nameless": {"StudyInstanceUID": HEADER},
    }
    files = []
    for number, (name, tags) in enumerate(images.items()):
        path = base / f"{name}.dcm"
        path.write_bytes(radiograph(number, **tags))
        spoil_header(path, number)
        files.append(path.read_bytes())

    class Pacs:
        def send(self, objects: Mapping[str, Path]) -> Sequence[str]:
            stored.extend(path.read_bytes() for path in objects.values())
            if len(stored) == len(objects):
                raise ServiceError("unreachable", "the PACS is gone")  # once
            return list(objects)

    silence_libraries()
    with (out / "log").open("w") as log, contextlib.redirect_stderr(log), stub_service() as service:
        tree = {"port": 0, "metrics_port": 0, "callers": {"MODALITY": ["127.0.0.1"]}}
        tree |= {"service": service.url, "spool": str(base / "spool"), "keep_hours": 0}
        tree["destination"] = {"kind": "dicomweb", "url": "http://127.0.0.1:9"}
        settings = GatewaySettings.model_validate(tree)
        with started(settings, Pacs()) as running_gateway:
            send(running_gateway.port, files)
            with contextlib.suppress(ConnectionRefusedError):
                send(running_gateway.port, files, calling=HEADER)
            wait_until(lambda: running_gateway.journal.counts()["refused"] == len(files) - 1)
            wait_until(lambda: running_gateway.journal.counts()["done"] == 1)
            for page in ("metrics", "health"):
                text = httpx.get(f"http://127.0.0.1:{running_gateway.metrics_port}/{page}").text
                (out / page).write_text(text)
            running_gateway.tidy()
        (out / "sent_to_service").write_bytes(b"".join(service.bodies))
    folders = ("images", "objects", "incoming")
    left = sum(path.is_file() for name in folders for path in (base / "spool" / name).rglob("*"))
    shutil.copytree(base / "spool", out / "spool")
    leaks = search(out, {"header": {}, "text": {}})["header_leaks"]
    print(*leaks, sep="\n")
    named = sum(HEADER.encode() in data for data in stored)
    return {"objects_named": named, "spool_left": left, "header_leaks": len(leaks)}


def main(argv: Sequence[str] | None = None) -> int:
    """Kill, let disks fail, try the wrong gateways, and print what was left.

    With `--strict` 1 where an image was lost, doubled, or the gateway ended, or where a wrong one
    was not found out.
    """
    parser = argparse.ArgumentParser(prog="python -m hospital.benchmark")
    parser.add_argument("--quick", action="store_const", const="quick", dest="tier")
    parser.add_argument("--long", action="store_const", const="long", dest="tier")
    parser.add_argument("--strict", action="store_true")
    arguments = parser.parse_args(argv)
    tier = arguments.tier or "normal"
    if missing := orthanc.missing():
        print(f"not installed: {missing}; nothing is measured")
        return 0
    begun, rng = time.monotonic(), random.Random(0)
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        has_compiler = stack.enter_context(failing_disk(base))
        forkserver.context(PRELOADED)
        pacs = stack.enter_context(orthanc.running(base / "pacs"))
        service = stack.enter_context(stub_service(ROWS, COLUMNS))
        figures = kills(Bench(base / "kills", pacs, service), tier, rng)
        print(figures, flush=True)
        service.answer = stub_answer()
        lost = lost_by_early_acknowledgement(Bench(base / "early", pacs, service, ("pr",)))
        doubled = doubled_by_drawn_uids(Bench(base / "drawn", pacs, service, ("pr",)))
        figures |= {"control_lost": lost, "control_doubled": doubled}
        figures |= canaries(base / "canaries")
        if has_compiler:
            bench = Bench(base / "disks", pacs, service, ("pr",))
            figures |= disks(bench, TIERS[tier][-1], base / "calls")
        else:
            print("no C compiler: no disk fails")
    figures["seconds"] = round(time.monotonic() - begun, 1)
    bars = {
        name: ("0", not figures.get(name, 0))
        for name in ("lost", "doubled", "added_without_journal", "disk_ended", "disk_lost",
                     "spool_left", "header_leaks")
    } | {
        name: (">= 1", figures[name] >= 1)
        for name in ("control_lost", "control_doubled", "objects_named")
    }  # fmt: skip
    return finish("gateway", figures, bars, strict=arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
