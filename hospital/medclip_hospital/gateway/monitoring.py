"""What the gateway says about itself: JSON lines, /metrics and /health on loopback.

A line holds the first digits of a digest, an AE title of the settings, states, codes and
milliseconds. Names, ids, UIDs and messages of exceptions, which may hold any of these, appear
nowhere.
"""

import datetime as dt
import json
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from .journal import Journal
from .spool import Spool

_SHOWN_DIGITS = 12
_lock = threading.Lock()


def write_line(event: str, digest: str = "", **facts: Any) -> None:
    """Write one line; of a digest its first digits."""
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    line: dict[str, Any] = {"time": f"{now.isoformat(timespec='milliseconds')}Z", "event": event}
    if digest:
        line["image"] = digest[:_SHOWN_DIGITS]
    with _lock:
        print(json.dumps(line | facts), file=sys.stderr, flush=True)


def write_fault(event: str, error: BaseException, digest: str = "") -> None:
    """Write one line about an exception: its type and where it arose, not its message."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    write_line(event, digest, error=type(error).__name__, where=where)


def silence_libraries() -> None:
    """Let libraries write nothing: their records and warnings quote what they were given."""
    logging.basicConfig(level=logging.CRITICAL + 1, handlers=[logging.NullHandler()], force=True)
    logging.getLogger("pynetdicom").setLevel(logging.CRITICAL + 1)
    warnings.simplefilter("ignore")
    threading.excepthook = lambda hook: write_fault("fault", hook.exc_value or RuntimeError())


class Monitor:
    """Counts of this process, and what the journal holds when it is asked."""

    def __init__(self, journal: Journal, spool: Spool) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._journal, self._spool = journal, spool
        self.registry = here = CollectorRegistry()
        self.received = Counter(
            "medclip_gateway_received",
            "Images that arrived, by outcome",
            ["outcome"],
            registry=here,
        )
        self.rejected = Counter(
            "medclip_gateway_rejected", "Associations that were rejected", registry=here
        )
        self.steps = Counter(
            "medclip_gateway_steps", "Steps, by state that was left and code", ["state", "code"],
            registry=here,
        )  # fmt: skip
        self.failed_in_a_row = 0
        """Deliveries to the destination that failed since the last that did not."""
        self.catch_up_failed_in_a_row = 0
        """Looks at the archive of `catch_up` that failed since the last that did not."""
        self.disk_fault = False
        """Whether the last step found no room on the disk, or a disk that fails."""
        here.register(self)

    def collect(self) -> Iterator[Metric]:
        """Read the journal, for Prometheus."""
        for name, text, label, counts in (
            ("images", "Images in the journal, by state", "state", self._journal.counts()),
            ("refusals", "Images in the journal that were refused", "code",
             self._journal.refusals()),
        ):  # fmt: skip
            family = GaugeMetricFamily(f"medclip_gateway_{name}", text, labels=[label])
            for key, count in counts.items():
                family.add_metric([key], count)
            yield family
        age_s, looks = self._journal.oldest_waiting_s(), self.catch_up_failed_in_a_row
        for name, text, value in (
            ("oldest_waiting_seconds", "Age of the oldest waiting", age_s),
            ("sends_failed_in_a_row", "Deliveries failed in a row", self.failed_in_a_row),
            ("catch_up_failed_in_a_row", "Looks of catch_up failed in a row", looks),
            ("spool_bytes", "Bytes of images in the spool", self._spool.bytes),
            ("disk_fault", "1 while the disk takes nothing", int(self.disk_fault)),
        ):
            yield GaugeMetricFamily(f"medclip_gateway_{name}", text, value=value)

    def status(self) -> str:
        """Return `ok`, or what is wrong: `disk`, `destination` or `catch_up`."""
        if self.disk_fault:
            return "disk"
        if self.failed_in_a_row:
            return "destination"
        return "catch_up" if self.catch_up_failed_in_a_row else "ok"

    def serve(self, port: int) -> ThreadingHTTPServer:
        """Answer /metrics and /health on loopback, in threads of their own."""
        monitor = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                code, kind, body = 404, "text/plain", b""
                if self.path == "/metrics":
                    code, kind = 200, "text/plain; version=0.0.4"
                    body = generate_latest(monitor.registry)
                elif self.path == "/health":
                    status = monitor.status()
                    code, kind = 200 if status == "ok" else 503, "application/json"
                    body = json.dumps({"status": status}).encode()
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Write nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server
