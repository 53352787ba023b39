"""What every benchmark says about its machine, the JSON line with which it ends, and its keeping.

    python -m benchmarks.NAME | python -m benchmarks.record

keeps that line as `results/NAME.json`. What was measured last on each other kind of processor stays
in it under `others`.
"""

import argparse
import functools
import json
import operator
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from medclip_dcl.core.artifact_writer import package_versions
from medclip_dcl.core.progress import available_cores

ROOT = Path(__file__).parents[1]
Bars = Mapping[str, tuple[str, bool]]
_COMPARISONS = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}


def machine() -> dict[str, Any]:
    """Describe the machine that the figures are measured on, and the day; no host or user name."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": available_cores(),
        "accelerator": _accelerator(),
        "python": platform.python_version(),
        "packages": package_versions(),
    }


@functools.cache
def commit() -> str:
    """Name the commit that is measured, with `+` where files differ from it; empty outside git."""
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def is_quick(argv: Sequence[str] | None) -> bool:
    """Whether `--quick` is asked for, by a benchmark that has no other option."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    return bool(parser.parse_args(argv).quick)


def judge(figures: Mapping[str, float], bars: Mapping[str, str]) -> Bars:
    """Print figures with their bars; give these with whether each is met, if its figure is there.

    A bar is a comparison, such as ">= 2.5", or the very number, such as "0"; words may follow.
    """
    judged = {
        name: (bar, _is_met(figures[name], bar)) for name, bar in bars.items() if name in figures
    }
    for name, value in figures.items():
        bar, met = judged.get(name, ("", True))
        print(f"{name:40} {value:12.5g}  {bar and f'bar {bar}'} {'' if met else 'MISSED'}".rstrip())
    return judged


def _is_met(value: float, bar: str) -> bool:
    sign, number, *_ = bar.split() if bar[0] in "<>=" else ("=", *bar.split())
    return bool(_COMPARISONS[sign](value, float(number)))


def finish(
    name: str,
    figures: Mapping[str, float],
    bars: Bars,
    commits: str | None = None,
    kept: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> int:
    """Print a benchmark's last line; 0: a missed bar is a figure like any other.

    Where `strict` it gives 1 for a missed bar, so that a change that breaks a promise is stopped.

    A bar is as people read it, and whether it is met. `commits` are those that were measured,
    where a run took several sessions. `kept` is what else its pages print, such as intervals.
    """
    line = {
        "benchmark": name,
        "machine": machine(),
        "commit": commit() if commits is None else commits,
        "figures": {key: round(float(value), 6) for key, value in figures.items()},
        "bars": {key: {"bar": bar, "met": bool(met)} for key, (bar, met) in bars.items()},
    }
    if kept is not None:
        line["kept"] = kept
    print(json.dumps(line), flush=True)
    return int(strict and not all(met for _, met in bars.values()))


def keep(file: Path, line: Mapping[str, Any]) -> None:
    """Keep a benchmark's last line, next to the last ones of other kinds of processor."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    others = kept.pop("others", {})
    if kept:
        others[processor_of(kept)] = kept
    others.pop(processor_of(line), None)
    tree = {**line, "others": others} if others else line
    file.write_text(json.dumps(tree) + "\n", encoding="utf-8")


def processor_of(line: Mapping[str, Any]) -> str:
    """Name the kind of accelerator, or else of processor, that a kept line was measured on."""
    return str(line["machine"]["accelerator"] or line["machine"]["processor"])


def main() -> int:
    """Pass a benchmark's output on, and keep its last line."""
    last = ""
    for last in sys.stdin:
        print(last, end="", flush=True)
    line = json.loads(last)
    keep(ROOT / "benchmarks" / "results" / f"{line['benchmark']}.json", line)
    return 0


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    return processor_name(text) or platform.processor()


def processor_name(cpuinfo: str) -> str:
    """Name the first processor of /proc/cpuinfo; empty if it has no name.

    A virtual machine may give several generations one name without a number. Family and model
    tell these apart.
    """
    lines = cpuinfo.strip().split("\n\n")[0].splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    name, family = facts.get("model name", ""), facts.get("cpu family")
    plain = not name or family is None or any(each.isdigit() for each in name)
    return name if plain else f"{name} (family {family}, model {facts.get('model', 'unknown')})"


def _accelerator() -> str:
    """Name the accelerator; a benchmark that never imported torch has used none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    return str(torch.cuda.get_device_name())


if __name__ == "__main__":
    sys.exit(main())
