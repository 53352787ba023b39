"""What the service knows of a request, and says about itself: JSON lines and Prometheus metrics.

A line holds ids, routes, codes and times. Bodies, file names, texts, query strings and
messages of exceptions, which may hold any of these, appear nowhere.
"""

import json
import logging
import sys
import time
import traceback
from collections import Counter as Counts
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from starlette.types import Scope

from medclip_dcl.schemas import OUT_OF_RANGE, ClassifyAnswer, ImageFacts

LOGGER = logging.getLogger("medclip.service")

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)
_SCORES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
# What a log line may call a method: a client can make up others.
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"))
_DIGITS = 8  # of a model's digest
# What a request goes through: its body arrives, it waits, is decoded, waits, and so on.
_STAGES = (
    *("receive", "decode_wait", "decode", "model_wait", "model"),
    *("search_wait", "search", "draw_wait", "draw"),
)


@dataclass
class RequestState:
    """Facts that travel with a request; its log line is written from them."""

    request_id: str  # under which the log knows the request
    key_id: str = ""  # first digits of the hash of its API key; empty without one
    code: str = ""  # code of the error that it was answered with; empty without one
    deadline: float = float("inf")  # time on the monotonic clock after which nobody waits, seconds
    timings: dict[str, float] = field(default_factory=dict)  # stage -> milliseconds spent in it


def state_of(scope: Scope) -> RequestState:
    """Return the state that `RequestMiddleware` made for a request."""
    state: RequestState = scope["state"]["request"]
    return state


def log(event: str, level: int = logging.INFO, **facts: Any) -> None:
    """Write one line of ids, counts and times; never of contents."""
    LOGGER.log(level, event, extra={"facts": facts})


def log_fault(event: str, error: BaseException, **facts: Any) -> None:
    """Write one line about an exception: its type and where it arose, not its message."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    log(event, logging.ERROR, error=type(error).__name__, where=where, **facts)


class JsonFormatter(logging.Formatter):
    """One JSON object per record, without line breaks."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, ours or a library's."""
        # Our own words and the server's; of other libraries, whose messages may quote, the name.
        event = f"record of {record.name}"
        if record.name == LOGGER.name:
            event = str(record.msg)
        elif record.name.startswith("uvicorn"):
            event = record.getMessage()
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": event,
        }
        line |= getattr(record, "facts", {})
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line, ensure_ascii=True, default=str)


class RepeatFilter(logging.Filter):
    """Passes the first lines that strangers cause, and counts the others of a kind in one line."""

    _WINDOW_S, _MOST = 10.0, 10

    def __init__(self) -> None:
        super().__init__()
        self._since = time.monotonic()
        self._counts: Counts[str] = Counts()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        self.flush()
        kind = getattr(record, "kind", "")
        if record.name.startswith(("uvicorn", "asyncio")) and record.levelno < logging.CRITICAL:
            kind = f"{record.name}: {record.msg}"  # malformed requests, offers of WebSockets
        if not kind:
            return True
        self._counts[kind] += 1
        return self._counts[kind] <= self._MOST

    def flush(self) -> None:
        """Write what has been counted, once the time for that has come."""
        if time.monotonic() - self._since < self._WINDOW_S:
            return
        counts, self._counts, self._since = self._counts, Counts(), time.monotonic()
        for kind, count in counts.items():
            if count > self._MOST:
                log("repeated", lines=count - self._MOST, kind=kind)


def configure_logging() -> None:
    """Send every record and warning of this process to standard error as JSON lines."""
    logging.captureWarnings(True)
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatFilter())
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    LOGGER.setLevel(logging.INFO)


class Metrics:
    """Prometheus metrics of one service."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter(
            "medclip_requests", "Answers by route and status", ("route", "status")
        )
        self.seconds = histogram(
            "medclip_request_seconds", "Seconds per answer", ("route",), buckets=_SECONDS
        )
        stages = f"Seconds per stage: {', '.join(_STAGES)}"
        self.stage_seconds = histogram(
            "medclip_stage_seconds", stages, ("stage",), buckets=_SECONDS
        )
        self.batch_images = histogram(
            "medclip_batch_images", "Images per forward pass", buckets=_IMAGES
        )
        self.refusals = counter("medclip_refusals", "Requests that failed, by code", ("code",))
        self.images = counter(
            "medclip_images",
            "Images by model and outcome: answered, out_of_range, or the code of a refusal",
            ("model", "outcome"),
        )
        self.scores = histogram(
            "medclip_scores",
            "Scores of the model's own findings and heads, on images that are in range",
            ("model", "source", "finding"),
            buckets=_SCORES,
        )
        self.swaps = counter(
            "medclip_swaps",
            "New models and indexes found: served, or refused and the old ones kept",
            ("outcome",),
        )
        self.inside = gauge("medclip_inside", "Requests that hold a place")
        self.waiting = gauge("medclip_waiting", "Requests that wait for the model")
        self.ready = gauge("medclip_ready", "1 once the model and index answer")
        self.keys_current = gauge(
            "medclip_keys_current",
            "0 while the key file is gone or refused, and the keys before it stay valid",
        )
        self.keys_current.set(1)

    def note_request(
        self, scope: Scope, status: int, seconds: float, *, by_stranger: bool = False
    ) -> None:
        """Count an answered request, and write its line; of strangers' only the first ones."""
        route, state = getattr(scope.get("route"), "path", "unmatched"), state_of(scope)
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)
        if state.code:
            self.refusals.labels(state.code).inc()
        facts: dict[str, Any] = {"key": state.key_id, "code": state.code, "timings": state.timings}
        facts = {
            "request_id": state.request_id,
            "method": scope["method"] if scope["method"] in _METHODS else "other",
            "route": route,
            "status": status,
            "ms": round(1000 * seconds, 1),
            **{name: fact for name, fact in facts.items() if fact},
        }
        kind = f"request {route} {status} {state.code}".rstrip() if by_stranger else ""
        LOGGER.info("request", extra={"facts": facts, "kind": kind})

    def note(self, timings: dict[str, float], stage: str, seconds: float) -> None:
        """Count what a stage of a request took, and add it to the request's timings."""
        self.stage_seconds.labels(stage).observe(seconds)
        timings[stage] = round(1000 * seconds, 1)

    def note_image(self, model: str, outcome: str) -> None:
        """Count an image; `model` is the model's digest."""
        self.images.labels(model[:_DIGITS], outcome).inc()

    def note_facts(self, model: str, facts: ImageFacts) -> None:
        """Count an image that was answered."""
        self.note_image(model, OUT_OF_RANGE if facts.is_out_of_range else "answered")

    def note_answer(self, answer: ClassifyAnswer, *, own: bool) -> None:
        """Count an image that was classified, and what the model's own questions gave.

        `own`: the findings are the model's; a caller's words are never counted.
        """
        self.note_facts(answer.model, answer.image)
        if answer.image.is_out_of_range:  # its scores say nothing
            return
        model = answer.model[:_DIGITS]
        for finding in answer.findings if own else ():
            self.scores.labels(model, "prompts", finding.name).observe(finding.score)
        for head in answer.heads:
            self.scores.labels(model, "head", head.name).observe(head.score)
