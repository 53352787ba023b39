"""What the service says about itself: JSON lines and Prometheus metrics, without contents.

A line holds ids, routes, codes and times. Bodies, file names, texts, query strings and
messages of exceptions, which may hold any of these, appear nowhere.
"""

import json
import logging
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

LOGGER = logging.getLogger("medclip.service")

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)
STAGES = (
    "receive",
    "decode_wait",
    "decode",
    "model_wait",
    "model",
    "search_wait",
    "search",
)
"""What a request goes through: its body arrives, it waits, is decoded, waits, and so on."""


def log(event: str, level: int = logging.INFO, **facts: Any) -> None:
    """Write one line.

    Args:
        event: what happened, in a word or two.
        level: of the standard library's logging.
        facts: ids, counts and times; never contents.
    """
    LOGGER.log(level, event, extra={"facts": facts})


def log_fault(event: str, error: BaseException, **facts: Any) -> None:
    """Write one line about an exception: its type and where it arose, not its message.

    Args:
        event: what happened.
        error: the exception.
        facts: ids, counts and times.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    log(event, logging.ERROR, error=type(error).__name__, where=where, **facts)


class JsonFormatter(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        """Put a record into one line.

        Args:
            record: ours, or a library's.

        Returns:
            A JSON object without line breaks.
        """
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": _event(record),
        }
        line |= getattr(record, "facts", {})
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line, ensure_ascii=True, default=str)


def _event(record: logging.LogRecord) -> str:
    """What a record says: ours and the server's own words; of other libraries the name alone."""
    if record.name == LOGGER.name:
        return str(record.msg)
    return record.getMessage() if record.name.startswith("uvicorn") else f"record of {record.name}"


def configure_logging() -> None:
    """Send every record of this process to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    LOGGER.setLevel(logging.INFO)


@dataclass(frozen=True)
class Metrics:
    """Prometheus metrics of one service."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: Counter = field(init=False)
    seconds: Histogram = field(init=False)
    stage_seconds: Histogram = field(init=False)
    batch_images: Histogram = field(init=False)
    refusals: Counter = field(init=False)
    swaps: Counter = field(init=False)
    inside: Gauge = field(init=False)
    waiting: Gauge = field(init=False)
    ready: Gauge = field(init=False)

    def __post_init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        here = self.registry
        figures = {
            "requests": Counter(
                "medclip_requests",
                "Answers by route and status",
                ("route", "status"),
                registry=here,
            ),
            "seconds": Histogram(
                "medclip_request_seconds",
                "Seconds per answer",
                ("route",),
                buckets=_SECONDS,
                registry=here,
            ),
            "stage_seconds": Histogram(
                "medclip_stage_seconds",
                f"Seconds per stage: {', '.join(STAGES)}",
                ("stage",),
                buckets=_SECONDS,
                registry=here,
            ),
            "batch_images": Histogram(
                "medclip_batch_images",
                "Images per forward pass",
                buckets=_IMAGES,
                registry=here,
            ),
            "refusals": Counter(
                "medclip_refusals", "Requests that failed, by code", ("code",), registry=here
            ),
            "swaps": Counter(
                "medclip_swaps",
                "New models and indexes found: served, or refused and the old ones kept",
                ("outcome",),
                registry=here,
            ),
            "inside": Gauge("medclip_inside", "Requests that hold a place", registry=here),
            "waiting": Gauge("medclip_waiting", "Requests that wait for the model", registry=here),
            "ready": Gauge("medclip_ready", "1 once the model and index answer", registry=here),
        }
        for name, figure in figures.items():
            object.__setattr__(self, name, figure)

    def note(self, timings: dict[str, float], stage: str, seconds: float) -> None:
        """Count what a stage of a request took.

        Args:
            timings: of the request, milliseconds by stage; for its line in the log.
            stage: one of `STAGES`.
            seconds: how long it took.
        """
        self.stage_seconds.labels(stage).observe(seconds)
        timings[stage] = round(1000 * seconds, 1)
