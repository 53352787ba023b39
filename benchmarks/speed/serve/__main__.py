"""The service on one core: CPU time over the bare model and LitServe, and how it stands loads.

    python -m benchmarks.serve [--quick | --long]

Ratios are of CPU time of all processes of a server on one core, over all that it answered in a
round, medians over rounds in which the bare model, the service and LitServe take turns; who is
not being measured is stopped. The bare model is the best of batches of one and of eight over
ready tensors in PyTorch float32, in the main thread of a process with the same allocator settings.
`paper` is ResNet-18 at 480 px, `demo` the demo's model, for which a request costs several times a
forward pass; `bfloat16` is the first on OpenVINO. `--long` overloads for a minute, else it is a
tenth; `--quick` leaves out engines, and memory, which is compared between rests.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.record import finish, judge
from benchmarks.speed.serve import loads, ratios
from benchmarks.speed.serve.processes import publish_paper_size
from medclip_dcl.inference.model_package import ARTIFACT
from pipelines.config import load_config
from tests.support.published import publish

DEMO = Path("configs/demo.yaml")
BARS = {
    "paper_over_bare": ">= 0.93",
    "paper_p99_over_p50": "<= 1.8",
    "paper_over_litserve": ">= 0.98",
    "bfloat16_over_bare": ">= 2.2",
    "bfloat16_over_litserve": ">= 1.05",
    **{
        f"{model}_overload_{figure}": bar
        for model in ("paper", "demo")
        for figure, bar in {
            "other": "<= 0",
            "goodput": ">= 0.8",
            "health_p99_ms": "<= 250",
            "memory_mb": "<= 32",
        }.items()
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, whether or not a bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", action="store_true", help="fewer rounds")
    choice.add_argument("--long", action="store_true", help="a minute of overload")
    arguments = parser.parse_args(argv)
    quick, rounds = arguments.quick, 2 if arguments.quick else 5
    with tempfile.TemporaryDirectory() as folder:
        paper, demo = publish_paper_size(Path(folder) / "paper"), Path(folder) / "demo"
        publish(ARTIFACT.at(demo), config=load_config(DEMO))
        figures = _named("paper", ratios.measure(paper, rounds, 16 if quick else 32))
        for name, size in (("paper", paper), ("demo", demo)):
            seconds = 60 if arguments.long else 6
            figures |= _named(name, loads.overload(size, seconds, rests=not quick))
        if not quick:
            figures |= _named("demo", ratios.measure(demo, rounds, 160))
            engine = ("openvino", "bfloat16")
            figures |= _named("bfloat16", ratios.measure(paper, rounds, 32, engine))
    return finish("serve", figures, judge(figures, BARS))


def _named(prefix: str, figures: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in figures.items()}


if __name__ == "__main__":
    sys.exit(main())
