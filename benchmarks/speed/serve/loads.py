"""How the service stands more clients than it can answer, slow ones, and those that leave."""

import asyncio
import os
import re
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from benchmarks.speed.serve.clients import (
    Answered,
    Client,
    Target,
    arrivals,
    classify_request,
    crowd,
    get_request,
)
from benchmarks.speed.serve.processes import cpu_s, served, target_of
from testing.service import ROOT, Service

OVERLOAD = 4.0
ALLOWED = {200, 429, 503}
_CLIENTS = 16
_HEALTH_EVERY_S = 0.05
_LEAVES_AT_ONCE_S = 0.002
_RUDE = {"body_deadline_s": 15}
_SETTLE_S = 1.0
_REST_S = 22.0
"""After which a service that nobody asks has given memory back."""


def overload(folder: Path, seconds: float, *, rests: bool) -> dict[str, float]:
    """Ask four times what a service can answer, at a fixed rate; `folder` holds `model`.

    `rests`: memory is compared between rests before and after.
    """
    with served(folder) as service:
        return asyncio.run(_overload(service, seconds, rests=rests))


def bad_manners(folder: Path, share: float) -> dict[str, float]:
    """Let some send slowly and others leave, while one client asks as it should.

    `share` is of the full counts: 300 slow senders, 1,000 that leave.
    """
    with served(folder, **_RUDE) as service:
        target = target_of(service, classify_request())
        return {
            **asyncio.run(_slow_senders(target, round(300 * share))),
            **asyncio.run(_departures(service, target, round(1000 * share))),
        }


async def _overload(service: Service, seconds: float, *, rests: bool) -> dict[str, float]:
    target = target_of(service, classify_request())
    health = target_of(service, get_request("/health"))
    started = time.perf_counter()
    await crowd(target, _CLIENTS, 3 * _CLIENTS)  # every buffer has been used once
    rate = 3 * _CLIENTS / (time.perf_counter() - started)
    started, spent = time.perf_counter(), cpu_s(service.process)
    answers = max(2 * _CLIENTS, round(rate * seconds / 2))
    await crowd(target, _CLIENTS, answers)
    capacity = answers / (time.perf_counter() - started)
    answer_cpu_s = (cpu_s(service.process) - spent) / answers
    await asyncio.sleep(_REST_S if rests else _SETTLE_S)
    before_mb, before_files = service.resident_mb(), _open_files(service)
    watching = asyncio.ensure_future(_watch(health))
    started, spent = time.perf_counter(), cpu_s(service.process)
    reported = await arrivals(target, OVERLOAD * capacity, seconds)
    took, spent = time.perf_counter() - started, cpu_s(service.process) - spent
    watching.cancel()
    health_answers = await watching
    await asyncio.sleep(_REST_S if rests else _SETTLE_S)
    memory = {"overload_memory_mb": service.resident_mb() - before_mb} if rests else {}
    return {
        **memory,
        "overload_capacity_per_s": capacity,
        "overload_requests": sum(reported.statuses.values()),
        "overload_answered": reported.statuses.get(200, 0),
        "overload_refused": sum(reported.statuses.get(code, 0) for code in (429, 503)),
        "overload_other": sum(n for code, n in reported.statuses.items() if code not in ALLOWED),
        "overload_goodput": reported.statuses.get(200, 0) / took / capacity,
        "overload_cpu_share": reported.statuses.get(200, 0) * answer_cpu_s / spent,
        "overload_p99_s": reported.p99_s,
        "overload_health_p99_ms": 1e3 * health_answers.p99_s,
        "overload_health_failures": sum(health_answers.statuses.values())
        - health_answers.statuses.get(200, 0),
        "overload_open_files": _open_files(service) - before_files,
    }


async def _half_sent(
    target: Target, number: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin a request: odd numbers send no whole head, even ones no whole body."""
    reader, writer = await asyncio.open_connection(target.host, target.port)
    head, _, body = target.request.partition(b"\r\n\r\n")
    writer.write(head[:20] if number % 2 else head + b"\r\n\r\n" + body[:20])
    return reader, writer


async def _slow_senders(target: Target, senders: int) -> dict[str, float]:
    """Half of them never end their headers, half of them never end their body."""
    alone = await crowd(target, 1, 60)
    streams = [await _half_sent(target, number) for number in range(senders)]
    beside = await crowd(target, 1, 60)
    started = time.perf_counter()
    closed = await asyncio.gather(*(_until_closed(reader, 40) for reader, _ in streams))
    for _, writer in streams:
        writer.close()
    return {
        "slow_senders": senders,
        "slow_p99_over_alone": beside.p99_s / alone.p99_s,
        "slow_p50_over_alone": float(np.median(beside.seconds) / np.median(alone.seconds)),
        "slow_refused_others": sum(beside.statuses.values()) - beside.statuses.get(200, 0),
        "slow_still_open": sum(not is_closed for is_closed in closed),
        "slow_closed_after_s": time.perf_counter() - started,
    }


async def _departures(service: Service, target: Target, clients: int) -> dict[str, float]:
    """Clients that send a whole request and are gone before it could be answered."""
    alone = await crowd(target, 1, 60)
    before = figures_of(service)
    leaving = await _start_leaving(target, clients, _LEAVES_AT_ONCE_S)
    beside, _ = await asyncio.gather(crowd(target, 1, 60), leaving.communicate(target.request))
    await asyncio.sleep(_SETTLE_S)
    after = figures_of(service)
    names = {"encoded": "medclip_batch_images_sum"}
    names["decoded"] = 'medclip_stage_seconds_count{stage="decode"}'
    done = {name: after.get(key, 0) - before.get(key, 0) for name, key in names.items()}
    asked = beside.statuses.get(200, 0)
    return {
        "departures": clients,
        "departures_p99_over_alone": beside.p99_s / alone.p99_s,
        "departures_refused_others": sum(beside.statuses.values()) - asked,
        "departures_encoded": done["encoded"] - asked,
        "departures_decoded": done["decoded"] - asked,
    }


async def _start_leaving(
    target: Target, clients: int, every_s: float
) -> asyncio.subprocess.Process:
    """Start a process of clients that leave; it waits for the request."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.speed.serve.disconnects"),
        *(target.host, str(target.port), str(clients), str(every_s)),
        stdin=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )


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


async def _until_closed(reader: asyncio.StreamReader, patience_s: float) -> bool:
    try:
        async with asyncio.timeout(patience_s):
            while await reader.read(4096):
                pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def figures_of(service: Service) -> Mapping[str, float]:
    """Read a running service's Prometheus metrics: name with labels -> value."""
    with urllib.request.urlopen(f"{service.url}metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", text, re.M)}


def _open_files(service: Service) -> int:
    return len(os.listdir(f"/proc/{service.process.pid}/fd"))  # noqa: PTH208
