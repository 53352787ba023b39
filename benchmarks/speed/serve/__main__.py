"""The service on one core: throughput over the bare model and LitServe, and how it stands loads.

    python -m benchmarks.serve [--quick | --long | --engines]

Ratios are of CPU time of all processes of a server on one core, over all that it answered in a
round, medians over rounds in which the bare model, the service and LitServe take turns; who is
not being measured is stopped. The bare model is the best of batches of one and of eight over
ready tensors, in the main thread of a process with the same allocator settings. `paper` is
ResNet-18 at 480 px, `demo` the demo's model, for which a request costs several times a forward
pass; both run in PyTorch. `resnet18` and `resnet50` are models of 480 px behind the service on
OpenVINO, over the bare model in PyTorch float32; `--engines` measures these alone. `--long` adds
the full counts of the loads, which the default and `--quick` run in tenths; `--quick` leaves out
engines, and memory, which is compared between rests.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.record import finish, judge
from benchmarks.speed.serve import loads, ratios
from benchmarks.speed.serve.processes import publish_paper_size
from medclip_dcl.model_package import ARTIFACT
from pipelines.config import load_config
from testing.published import publish

DEMO = Path("configs/demo.yaml")

BARS = {
    "paper_over_bare": ">= 0.93",
    "paper_p99_over_p50": "<= 1.8",
    "paper_over_litserve": ">= 0.98",
    "resnet18_float32_over_bare": ">= 1.25",
    "resnet50_float32_over_bare": ">= 1.35",
    "resnet18_bf16_over_bare": ">= 2.2",
    "resnet50_bf16_over_bare": ">= 2.5",
    "over_litserve_pytorch": ">= 1.25",
    "over_litserve_same_engine": ">= 1.05",
    "dicom_over_decode_and_forward": ">= 0.93",
    "dicom_over_decode_and_forward_bf16": ">= 0.85",
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
    "slow_p99_over_alone": "<= 2",
    "slow_refused_others": "<= 0",
    "slow_still_open": "<= 0",
    "departures_p99_over_alone": "<= 2",
    "departures_refused_others": "<= 0",
    "departures_encoded": "<= 0",
    "departures_decoded": "<= 0",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, whether or not a bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", action="store_true", help="fewer rounds")
    choice.add_argument("--long", action="store_true", help="the full counts of the loads")
    choice.add_argument("--engines", action="store_true", help="the engines alone")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        paper = publish_paper_size(Path(folder) / "paper")
        rounds = 2 if arguments.quick else 5
        if arguments.engines:
            figures = _engines(paper, rounds)
        else:
            demo = Path(folder) / "demo"
            publish(ARTIFACT.at(demo), config=load_config(DEMO))
            share = 1.0 if arguments.long else 0.1
            figures = _everything(paper, demo, rounds, share, is_quick=arguments.quick)
    return finish("serve", figures, judge(figures, BARS))


def _everything(
    paper: Path, demo: Path, rounds: int, share: float, *, is_quick: bool
) -> dict[str, float]:
    figures = _named("paper", ratios.measure(paper, rounds, 16 if is_quick else 32))
    for name, size in (("paper", paper), ("demo", demo)):
        figures |= _named(name, loads.overload(size, 60 * share, rests=not is_quick))
    figures |= loads.bad_manners(demo, share)
    if not is_quick:
        figures |= _named("demo", ratios.measure(demo, rounds, 160))
        figures |= _engines(paper, rounds)
    return figures


def _engines(paper: Path, rounds: int) -> dict[str, float]:
    figures = ratios.engine_over_rivals(paper, rounds, 32)
    figures |= ratios.dicom_over_parts(paper, rounds, 16)
    figures |= _named("resnet18", ratios.engine_over_bare(paper, rounds, 32))
    deep = publish_paper_size(paper.with_name("deep"), "resnet50")
    return figures | _named("resnet50", ratios.engine_over_bare(deep, rounds, 16))


def _named(prefix: str, figures: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in figures.items()}


if __name__ == "__main__":
    sys.exit(main())
