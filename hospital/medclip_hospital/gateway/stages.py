"""What happens to an image once it is durable: answered, built, sent; one durable step each."""

import datetime as dt
import io
import sqlite3
import threading
import time
from collections.abc import Callable

from pydicom.filereader import read_dataset

from medclip_dcl.client import Client
from medclip_dcl.core.errors import ImageError, ServiceError
from medclip_dcl.data.images import Decoder, ImageHeader
from medclip_dcl.data.limits import REASONS, ImagesConfig
from medclip_dcl.schemas import OUT_OF_RANGE, ClassifyAnswer
from medclip_hospital.instance import ResultsConfig
from medclip_hospital.results import encode_results

from .destinations import Destination
from .journal import Entry, Journal
from .listener import ACCEPTED
from .monitoring import Monitor, write_fault, write_line
from .settings import MEBIBYTE, GatewaySettings
from .spool import Spool

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 600.0
"""Waiting time after the first failure of an image, which doubles, and the longest."""
_OF_THE_SERVICE = 500
_DISK_WAIT_S = 1.0
_IDLE_S = 1.0


class _KeptAnswer(ClassifyAnswer):
    """An answer in the journal: what is built and sent does not depend on later settings."""

    refused: str = ""
    """Code by which the image is refused once the destination knows; empty: it is not."""

    def settings(self, settings: ResultsConfig) -> ResultsConfig:
        """Return settings by which objects are made as it was decided then."""
        return settings.model_copy(update={"out_of_range": "refuse" if self.refused else "answer"})


class Workers:
    """Threads that take images from the journal; each image is one thread's at a time."""

    def __init__(
        self,
        settings: GatewaySettings,
        spool: Spool,
        journal: Journal,
        monitor: Monitor,
        client: Client,
        destination: Destination,
    ) -> None:
        self._settings, self._spool, self._journal = settings, spool, journal
        self._monitor, self._client, self._destination = monitor, client, destination
        limits = ImagesConfig(max_bytes=settings.max_bytes_mb * MEBIBYTE)
        self._decoder = Decoder(limits, settings.workers)
        self._claimed: set[str] = set()
        self._changed = threading.Condition()
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, name=f"worker-{number}", daemon=True)
            for number in range(settings.workers)
        ]
        self._steps: dict[str, Callable[[Entry], None]] = {
            "received": self._answer,
            "answered": self._build,
            "built": self._send,
        }

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Say that an image has come."""
        with self._changed:
            self._changed.notify()

    def stop(self) -> None:
        """Let every thread end after its step."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._decoder.close()

    def _run(self) -> None:
        while not self._stopped:
            try:
                entry = self._claim()
                if entry is None:
                    continue
                try:
                    self._go_on(entry)
                finally:
                    with self._changed:  # not while another looks for an image
                        self._claimed.discard(entry.digest)
                self._monitor.disk_fault = False
            except (OSError, sqlite3.Error) as error:  # the disk is full, or fails: nothing is lost
                self._monitor.disk_fault = True
                write_fault("disk", error)
                self._rest(_DISK_WAIT_S)

    def _rest(self, seconds: float) -> None:
        with self._changed:
            if not self._stopped:
                self._changed.wait(seconds)

    def _claim(self) -> Entry | None:
        with self._changed:
            now = time.time()
            for entry in self._journal.waiting(now, len(self._claimed) + 1):
                if entry.digest not in self._claimed:
                    self._claimed.add(entry.digest)
                    return entry
            if not self._stopped:
                self._changed.wait(min(self._journal.next_wait_s(now) or _IDLE_S, _IDLE_S))
            return None

    def _go_on(self, entry: Entry) -> None:
        """Take an image as far as it goes."""
        current: Entry | None = entry
        while current is not None and current.state in self._steps and not self._stopped:
            started = time.monotonic()
            code = self._step(current)
            taken_ms = round(1000 * (time.monotonic() - started), 1)
            self._monitor.steps.labels(current.state, code).inc()
            write_line("step", current.digest, state=current.state, code=code, ms=taken_ms)
            if code != "ok":
                return
            current = self._journal.entry(current.digest)

    def _step(self, entry: Entry) -> str:
        try:
            self._steps[entry.state](entry)
        except ImageError as error:
            self._journal.refused(entry.digest, error.code)
            return error.code
        except ServiceError as error:
            whose = "destination" if entry.state == "built" else "service"
            code = f"{whose}_{error.code}"
        except (OSError, sqlite3.Error):
            raise
        except Exception as error:  # noqa: BLE001 (one image that nothing foresaw holds up no other)
            write_fault("fault", error, entry.digest)
            code = "fault"
        else:
            return "ok"
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(entry.attempts, 32))
        give_up_s = 3600 * self._settings.give_up_hours
        is_stuck = self._journal.failed(entry, code, time.time() + wait_s, give_up_s)
        return f"stuck_{code}" if is_stuck else code

    def _answer(self, entry: Entry) -> None:
        image = self._decoder.separate(self._spool.image(entry.digest))
        self._require_ours(image.header)
        try:
            answer = self._client.classify(image.stripped, explain=True)
        except ServiceError as error:
            if error.code in REASONS and error.status < _OF_THE_SERVICE:  # both know a `deadline`
                raise ImageError(error.code, "the service refuses the image") from error
            raise
        refused = OUT_OF_RANGE if self._settings.refuses(answer) else ""
        decided = _KeptAnswer(**dict(answer), refused=refused)
        self._journal.answered(entry.digest, decided.model_dump_json(), time.time())

    def _require_ours(self, header: ImageHeader) -> None:
        tags = read_dataset(io.BytesIO(header.data_set), False, True)  # cleaned: codes are codes
        if tags.get("PresentationIntentType") == "FOR PROCESSING":
            raise ImageError("for_processing", "the image is not for presentation")
        if tags.SOPClassUID not in ACCEPTED:  # the listener takes no others; catch-up may find some
            raise ImageError("sop_class", "the image is neither CR nor DX for presentation")
        for name, allowed, code in (
            ("ViewPosition", self._settings.views, "view"),
            ("BodyPartExamined", self._settings.body_parts, "body_part"),
        ):
            if tags.get(name, "") not in allowed:
                raise ImageError(code, f"{name} is not one that the settings name")

    def _build(self, entry: Entry) -> None:
        assert entry.answer is not None
        assert entry.answered_at is not None
        answer = _KeptAnswer.model_validate_json(entry.answer)
        objects: dict[str, bytes] = {}
        heads = answer.heads if self._settings.heads else []
        is_positive = any(item.decision for item in answer.findings) or any(
            item.decision for item in heads
        )
        if answer.refused or is_positive or not self._settings.only_positive:
            path = self._spool.image(entry.digest)
            # The header is the same again, and with it everything that is built: nothing between
            # the two steps is kept but the answer and its time.
            header = self._decoder.separate(path).header
            moment = dt.datetime.fromtimestamp(entry.answered_at, dt.UTC).astimezone()
            results = answer.settings(self._settings)
            made = encode_results(header, answer, self._decoder.open(path), moment, results)
            objects = {item.sop_instance_uid: item.data for item in made}
        self._spool.write_objects(entry.digest, objects)
        self._journal.built(entry.digest, objects)

    def _send(self, entry: Entry) -> None:
        unsent = self._journal.unsent(entry.digest)
        assert entry.answer is not None
        refused = _KeptAnswer.model_validate_json(entry.answer).refused
        try:
            paths = {uid: self._spool.object(entry.digest, uid) for uid in unsent}
            stored = self._destination.send(paths) if paths else ()
        except Exception:
            self._monitor.failed_in_a_row += 1
            raise
        self._journal.sent(entry.digest, stored, refused)
        if len(stored) < len(unsent):
            self._monitor.failed_in_a_row += 1
            raise ServiceError("refused", "the destination did not take every object")
        self._monitor.failed_in_a_row = 0
