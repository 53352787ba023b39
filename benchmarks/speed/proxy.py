"""What is left of the service's capacity behind its proxy, overloaded and among stalled senders.

    python -m benchmarks.proxy [--quick]

The service answers on one core, with ResNet-18 at 480 px; nginx, with the proxy's own
configuration, and the clients have the others. Rounds take turns: capacity, asked of the service
directly by 16 clients; then arrivals at four times of it through the proxy, whether or not earlier
ones are answered, next to 40 senders that have a key, send one MiB of 62, pause until they are
cut off or refused, and come again after eight seconds. Needs nginx, such as Debian's nginx-light.
"""

import asyncio
import contextlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.record import finish, is_quick, judge
from benchmarks.speed.serve.clients import Target, arrivals, classify_request, crowd, meanwhile
from benchmarks.speed.serve.processes import cpu_s, publish_paper_size, served, target_of, wait_for
from testing.processes import free_port
from testing.service import ROOT

OVERLOAD = 4.0
STALLED = 40
LEAST_GOODPUT = 0.9
BARS = {"goodput": f">= {LEAST_GOODPUT}", "other": "0"}
_CLIENTS = 16
_SENT_BYTES = 2**20
_ANNOUNCED_BYTES = 62 * 2**20
_STALLED_AGAIN_S = 8.0


def keyed_request(key: str) -> bytes:
    """A POST of a JPEG of 256 x 256 pixels to /classify, with the key."""
    header = f"\r\nX-API-Key: {key}\r\n".encode()
    return classify_request().replace(b"\r\n", header, 1)


async def measure(
    direct: Target,
    proxied: Target,
    *,
    rounds: int,
    seconds: float,
    spent_s: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Take turns between capacity, asked of `direct`, and overload among stalled senders.

    `seconds` is the length of an overload, `spent_s` gives the CPU time of the service so far.
    Gives `capacity_per_s`; `goodput` and `goodput_cpu`, as shares of it, by wall clock and by the
    service's CPU time; `p99_s` of answers under overload, all medians over rounds; counts of
    `answered`, `refused` (429, 503) and `other` requests, all rounds together.
    """
    await crowd(direct, _CLIENTS, 2 * _CLIENTS)  # every buffer has been used once
    answers = 2 * _CLIENTS
    statuses: Counter[int] = Counter()
    turns = []
    for _ in range(rounds):
        started, spent = time.perf_counter(), spent_s()
        await crowd(direct, _CLIENTS, answers)
        capacity = answers / (time.perf_counter() - started)
        answer_cpu_s = (spent_s() - spent) / answers
        answers = max(2 * _CLIENTS, round(capacity * seconds / 2))
        async with meanwhile(*(_send_and_stall(proxied) for _ in range(STALLED))):
            started, spent = time.perf_counter(), spent_s()
            seen = await arrivals(proxied, OVERLOAD * capacity, seconds)
            took_s, spent = time.perf_counter() - started, spent_s() - spent
        statuses.update(seen.statuses)
        good = seen.statuses.get(200, 0)
        shares = (good / took_s / capacity, good * answer_cpu_s / spent)
        turns.append((capacity, *shares, seen.p99_s))
    names = ("capacity_per_s", "goodput", "goodput_cpu", "p99_s")
    refused = statuses[429] + statuses[503]
    return {
        **dict(zip(names, map(float, np.median(turns, axis=0)), strict=True)),
        "answered": statuses[200],
        "refused": refused,
        "other": statuses.total() - statuses[200] - refused,
    }


async def _send_and_stall(target: Target) -> None:
    head = target.request.partition(b"\r\n\r\n")[0]
    head = re.sub(rb"(Content-Length): \d+", rb"\1: %d" % _ANNOUNCED_BYTES, head)
    while True:
        begun = time.perf_counter()
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(target.host, target.port)
            try:
                writer.write(head + b"\r\n\r\n" + bytes(_SENT_BYTES))
                while await reader.read(4096):
                    pass
            finally:
                writer.close()
        await asyncio.sleep(max(0.0, begun + _STALLED_AGAIN_S - time.perf_counter()))


@contextlib.contextmanager
def _proxy(folder: Path, service: Target) -> Iterator[int]:
    """Start nginx before a service; gives its port."""
    port = free_port()
    text = (ROOT / "docker/nginx.conf").read_text()
    for old, new in (
        ("listen 8080 default_server", f"listen 127.0.0.1:{port}"),
        ("http://$service:8000", f"http://{service.host}:{service.port}"),
        ("include /tmp/resolver.conf;", ""),
        ("/tmp/", f"{folder}/"),
    ):
        if old not in text:
            raise ValueError(f"docker/nginx.conf has no {old!r}; change benchmarks/speed/proxy.py")
        text = text.replace(old, new)
    config = folder / "nginx.conf"
    config.write_text(text)
    nginx = subprocess.Popen(["nginx", "-e", "stderr", "-c", str(config), "-g", "daemon off;"])
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield port
    finally:
        nginx.terminate()
        nginx.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where there is no nginx."""
    rounds, seconds = (1, 10.0) if is_quick(argv) else (3, 20.0)
    if shutil.which("nginx") is None:
        print("nginx is not installed; Debian's package nginx-light has it", file=sys.stderr)
        return 1
    key = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # nginx's worker is another user
        publish_paper_size(folder)
        (folder / "key").write_text(key)
        (folder / "key").chmod(0o400)
        with served(folder, key_file=str(folder / "key")) as service:
            direct = target_of(service, keyed_request(key))
            with _proxy(folder, direct) as port:
                proxied = Target("127.0.0.1", port, direct.request)
                spent_s = partial(cpu_s, service.process)
                turns = measure(direct, proxied, rounds=rounds, seconds=seconds, spent_s=spent_s)
                figures = asyncio.run(turns)
    return finish("proxy", figures, judge(figures, BARS))


if __name__ == "__main__":
    sys.exit(main())
