"""How the service stands more requests than it can answer."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.speed.serve.clients import (
    Answered,
    Client,
    Target,
    arrivals,
    classify_request,
    crowd,
    get_request,
)
from benchmarks.speed.serve.processes import served, target_of
from tests.support.service import Service

OVERLOAD = 4.0
ALLOWED = {200, 429, 503}
_CLIENTS = 16
_HEALTH_EVERY_S = 0.05
_REST_S = 22.0
"""After which a service that nobody asks has given memory back."""


def overload(folder: Path, seconds: float, *, rests: bool) -> dict[str, float]:
    """Ask four times what a service can answer, at a fixed rate; `folder` holds `model`.

    `rests`: memory is compared between rests before and after.
    """
    with served(folder) as service:
        return asyncio.run(_overload(service, seconds, rests=rests))


async def _overload(service: Service, seconds: float, *, rests: bool) -> dict[str, float]:
    target = target_of(service, classify_request())
    await crowd(target, _CLIENTS, 3 * _CLIENTS)  # every buffer has been used once
    started = time.perf_counter()
    await crowd(target, _CLIENTS, 6 * _CLIENTS)
    capacity = 6 * _CLIENTS / (time.perf_counter() - started)
    await asyncio.sleep(_REST_S if rests else 1)
    before_mb, before_files = service.resident_mb(), _open_files(service)
    watching = asyncio.ensure_future(_watch(target_of(service, get_request("/health"))))
    started = time.perf_counter()
    reported = await arrivals(target, OVERLOAD * capacity, seconds)
    took = time.perf_counter() - started
    watching.cancel()
    health = await watching
    await asyncio.sleep(_REST_S if rests else 1)
    memory = {"overload_memory_mb": service.resident_mb() - before_mb} if rests else {}
    return {
        **memory,
        "overload_capacity_per_s": capacity,
        "overload_requests": sum(reported.statuses.values()),
        "overload_answered": reported.statuses.get(200, 0),
        "overload_other": sum(n for code, n in reported.statuses.items() if code not in ALLOWED),
        "overload_goodput": reported.statuses.get(200, 0) / took / capacity,
        "overload_p99_s": reported.p99_s,
        "overload_health_p99_ms": 1e3 * health.p99_s,
        "overload_health_failures": sum(health.statuses.values()) - health.statuses.get(200, 0),
        "overload_open_files": _open_files(service) - before_files,
    }


async def _watch(health: Target) -> Answered:
    """Look at a route at a steady rate until cancelled."""
    answered, client = Answered(), Client(health)
    with suppress(asyncio.CancelledError):
        while True:
            started = time.perf_counter()
            status, _ = await client.ask()
            answered.note(status, time.perf_counter() - started)
            await asyncio.sleep(_HEALTH_EVERY_S)
    client.close()
    return answered


def _open_files(service: Service) -> int:
    return len(os.listdir(f"/proc/{service.process.pid}/fd"))  # noqa: PTH208
