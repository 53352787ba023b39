"""What the service makes of its own document and of hostile requests.

    python -m benchmarks.reliability.service [--quick] [--strict]

A tiny model is served by a real process behind a key. schemathesis holds every answer to the
OpenAPI document, all checks switched on; hostile requests must be answered without a fault, by a
code that the document names for that route, and what they brought may stand in no answer, log line
or figure, while the process lives on and does not grow. `--strict` ends with 1 where a bar is
missed. Files made to exhaust a reader are `benchmarks.reliability.fuzz`'s.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from benchmarks.record import finish, judge
from tests.support.hostile import CANARY, named_requests
from tests.support.processes import ROOT
from tests.support.service import Service, running, store
from tests.support.wire import Answer, Request, exchange

TIERS = {"quick": (8, 200), "normal": (150, 2_000)}
"""Examples of schemathesis per operation, and the least cases that it makes of them."""
_NONE = ("_failures", "_errors", "_faults", "_echoes", "_undocumented", "_silent")
_KEY = "service-benchmark-" + "0123456789abcdef" * 2
_THREADS = 4
_SHOWN = 8
_LINE = 300  # characters; a request with an image is one of thousands


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, ask, count; 1 where nothing could be measured, or `--strict` and a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.service")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--strict", action="store_true")
    arguments = parser.parse_args(argv)
    examples, cases = TIERS["quick" if arguments.quick else "normal"]
    with tempfile.TemporaryDirectory() as name:
        folder = store(Path(name))
        key_file = folder / "key"
        key_file.write_text(_KEY, encoding="ascii")
        key_file.chmod(0o400)
        settings = {"publish_schema": True, "key_file": str(key_file)}
        with running(folder, max_body_mb=4, body_deadline_s=0.5, **settings) as service:
            figures = try_document(service, examples)
            figures |= try_hostile(service)
    bars = {"document_cases": f">= {cases}", "hostile_named": ">= 300"}
    ends = {"_growth_mib": "<= 256", "_alive": "1"} | dict.fromkeys(_NONE, "0")
    bars |= {name: bar for name in figures for end, bar in ends.items() if name.endswith(end)}
    return finish("service", figures, judge(figures, bars), strict=arguments.strict)


def try_document(service: Service, examples: int) -> dict[str, float]:
    """Let schemathesis hold the service to its OpenAPI document: cases, failures and errors.

    `examples` are the most per operation and phase.
    """
    report = service.log.parent / "schemathesis.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}openapi.json"),
            # Limits are in /model, and not in the document: a sound form may be beyond one.
            *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
            *("--header", f"X-API-Key: {_KEY}"),
            *("--seed", "1", "--max-examples", str(examples)),
            *("--continue-on-failure", "--output-truncate", "true"),
            *("--report", "json", "--report-json-path", str(report)),
        ],
        cwd=ROOT,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks"},
        capture_output=True,
        text=True,
        errors="replace",
    )
    found = json.loads(report.read_text(encoding="utf-8"))
    cases = found["test_cases"]
    if found["failures"] or found["errors"]:
        print("\n".join(line[:_LINE] for line in done.stdout.splitlines())[-6000:])
    print(f"document: {cases['generated']} cases, {len(found['failures'])} kinds of failure")
    return {
        "document_operations": found["operations"]["tested"],
        "document_cases": cases["generated"],
        "document_failures": cases["unique_failures"],
        "document_errors": len(found["errors"]) + cases["errored"],
    }


def try_hostile(service: Service) -> dict[str, float]:
    """Send the named requests, then look for canaries."""
    requests = list(dict(named_requests()).items())
    before, address = service.resident_mb(), service.address
    with ThreadPoolExecutor(_THREADS) as threads:
        asking = threads.map(lambda item: exchange(address, item[1].encoded(_KEY)), requests)
        answers = list(asking)
    documented = _documented(service)
    odd: dict[str, list[str]] = {"faults": [], "echoes": [], "undocumented": [], "silent": []}
    for (name, request), answer in zip(requests, answers, strict=True):
        for kind in _faults(request, answer, documented):
            odd[kind].append(f"{name} ({answer.status})")
    statuses = Counter(
        f"{answer.status} {_code(answer)}" if answer.status >= 500 else str(answer.status)
        for answer in answers
    )
    print(f"hostile: {len(requests)} named; {dict(sorted(statuses.items()))}")
    for kind, names in odd.items():
        _show(kind, names)
    with service.client(**{"X-API-Key": _KEY}) as client:
        figures, alive = client.get("/metrics").text, client.get("/ready").status_code == 200
    log = service.log.read_text(encoding="utf-8")
    leaks = [name for name, text in (("log", log), ("metrics", figures)) if _holds(text.encode())]
    _show("canary or key in", leaks)
    return {
        "hostile_named": len(requests),
        "hostile_faults": len(odd["faults"]),
        "hostile_echoes": len(odd["echoes"]) + len(leaks),
        "hostile_undocumented": len(odd["undocumented"]),
        "hostile_silent": len(odd["silent"]),
        "hostile_growth_mib": service.resident_mb() - before,
        "hostile_alive": int(alive and service.process.exitcode is None),
    }


def _faults(
    request: Request, answer: Answer, documented: dict[tuple[str, str], set[str]]
) -> Iterator[str]:
    """What is wrong with an answer."""
    if answer.status == 0:
        yield "silent"
    if answer.status >= 500 and answer.status != 503:
        yield "faults"
    if _holds(answer.body) or _holds(answer.head):
        yield "echoes"
    route = str(request.path).removeprefix("/v1")
    known = documented.get((route, str(request.method).lower()))
    if known is not None and request.raw is None and answer.status >= 400:
        code = _code(answer)  # the server itself refuses what is not HTTP, in a plain line
        if code and f"{answer.status} {code}" not in known:
            yield "undocumented"


def _codes(content: dict[str, Any]) -> list[str]:
    codes: list[str] = (
        content.get("schema", {}).get("properties", {}).get("code", {}).get("enum", [])
    )
    return codes


def _documented(service: Service) -> dict[tuple[str, str], set[str]]:
    """Route and method -> the statuses and codes that the document names."""
    tree: dict[str, Any] = httpx.get(
        f"{service.url}openapi.json", headers={"X-API-Key": _KEY}
    ).json()
    return {
        (path, method): {
            f"{status} {code}"
            for status, answer in operation["responses"].items()
            for code in _codes(answer["content"].get("application/json", {}))
        }
        for path, operations in tree["paths"].items()
        for method, operation in operations.items()
    }


def _code(answer: Answer) -> str:
    if answer.status == 200 or not answer.body.startswith(b"{"):
        return ""
    return str(json.loads(answer.body)["code"])


def _holds(data: bytes) -> bool:
    return CANARY.encode() in data or _KEY.encode() in data


def _show(what: str, names: Sequence[str]) -> None:
    if names:
        print(f"    {what}: {len(names)}: {'; '.join(names[:_SHOWN])}")


if __name__ == "__main__":
    sys.exit(main())
