"""Pseudo-log-likelihoods against minicons and mlm-scoring's algorithm: speed, exactness, memory.

    python -m benchmarks.pll [--quick | --long] [--trained FOLDER]

One thread; pin it to a core (`taskset -c 0`). CPU seconds, medians over interleaved rounds.
Models have random weights, sentences are real (`TEST_DATA`). The floor is the number of
operations that no exact method avoids over the best rate of a matrix product in the same
run; where processors multiply no faster by packed kernels than by torch's own, it says how
far any exact method can be ahead of a peer. `--long` compares 1,000 sentences with the loop
in float64, 50 at base size, and adds a whole sentence of 510 word pieces at base size. Scores in
bfloat16 are timed next to those in float32, and their drift is shown: of the random BERT-base,
and of the language model in FOLDER.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.record import finish, machine
from benchmarks.speed.pll import bfloat16, exactness, memory, speed
from benchmarks.speed.pll.models import SIZES, has_data, long_encoding, random_bert, tokenizer
from benchmarks.speed.pll.speed import MINICONS, PORT
from medclip_dcl.likelihood.engines import CPU_BUDGET, prepare_engine
from medclip_dcl.likelihood.pll import score_encodings

MOST_APART = 2e-4
MOST_MEGABYTES = 250.0
MOST_UNEVEN = 0.10
FLOOR = 1.35
LEAST_BF16 = 3.5
LEAST = {
    "base_minicons_ratio": 2.5,
    "small_minicons_ratio": 7.0,
    "base_port_ratio": 1.8,
    "small_port_ratio": 1.8,
    "base_corpus_minicons_ratio": 6.5,
    "small_corpus_minicons_ratio": 18.0,
}


class Tier(NamedTuple):
    """How much is measured."""

    base: int
    small: int
    base_corpus: int
    small_corpus: int
    rounds: int
    small_exact: int
    base_exact: int
    invariance: int
    drift: int


QUICK = Tier(2, 12, 0, 6, 2, 16, 1, 40, 60)
FULL = Tier(8, 60, 6, 40, 5, 200, 8, 200, 2000)
LONG = FULL._replace(small_exact=1000, base_exact=50)

_Bars = dict[str, tuple[str, bool]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 without reports to take sentences from."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pll")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", action="store_true", help="fewer sentences and rounds")
    choice.add_argument(
        "--long", action="store_true", help="more in float64, and a sentence of 510 pieces"
    )
    parser.add_argument("--trained", type=Path, help="a language model whose drift is shown")
    arguments = parser.parse_args(argv)
    if not has_data():
        return 1
    torch.set_num_threads(1)
    tier = QUICK if arguments.quick else LONG if arguments.long else FULL
    print(f"{machine()['processor']}, one thread")
    figures: dict[str, float] = {}
    bars: _Bars = {}
    _speed(tier, figures)
    for name, least in LEAST.items():
        if name in figures:
            bars[name] = (f">= {least}", figures[name] >= least)
    bars["base_over_floor"] = (f"<= {FLOOR}", figures["base_over_floor"] <= FLOOR)
    _bfloat16(tier, arguments.trained, figures, bars)
    _exactness(tier, figures, bars)
    if not arguments.quick:
        _memory(figures, bars)
    if arguments.long:
        _long(figures, bars)
    for name, (bar, met) in bars.items():
        print(f"{name:32} {figures[name]:10.3g}  bar {bar:8}  {'met' if met else 'MISSED'}")
    return finish("pll", figures, bars)


def _speed(tier: Tier, figures: dict[str, float]) -> None:
    for size, unique, rows in (
        ("base", tier.base, tier.base_corpus),
        ("small", tier.small, tier.small_corpus),
    ):
        got = speed.compare(size, unique, tier.rounds, repeats=False, peers=tier is not QUICK)
        speed.show(f"{size}: {unique} distinct sentences", got)
        figures |= {
            f"{size}_minicons_ratio": got.ratio(MINICONS),
            f"{size}_port_ratio": got.ratio(PORT),
            f"{size}_minicons_ratio_at_floor": got.reachable,
            f"{size}_over_floor": got.over_floor,
            f"{size}_prepare_s": got.prepare_s,
            f"{size}_best_gflops": got.best_gflops,
            f"{size}_torch_gflops": got.torch_gflops,
            f"{size}_apart_from_minicons": got.apart,
        }
        if rows:
            got = speed.compare(size, rows, min(3, tier.rounds), repeats=True, peers=False)
            speed.show(f"{size}: corpus of {rows * 5 // 2} rows, 60 % repeats", got)
            figures |= {
                f"{size}_corpus_minicons_ratio": got.ratio(MINICONS),
                f"{size}_corpus_minicons_ratio_at_floor": got.reachable,
            }


def _bfloat16(tier: Tier, trained: Path | None, figures: dict[str, float], bars: _Bars) -> None:
    got = bfloat16.speed(tier.base, tier.rounds)
    print(f"base in bfloat16: {tier.base} distinct sentences")
    for name, value in got.items():
        print(f"    {name:32} {value:6.2f}", flush=True)
    figures |= got | bfloat16.drift(tier.base, trained, tier.drift)
    ratio = figures["base_bf16_over_minicons"]
    bars["base_bf16_over_minicons"] = (f">= {LEAST_BF16}", ratio >= LEAST_BF16)


def _exactness(tier: Tier, figures: dict[str, float], bars: _Bars) -> None:
    for size, sentences in (("small", tier.small_exact), ("base", tier.base_exact)):
        print(f"{size}: {sentences} distinct sentences against a loop in float64, nats")
        for name, value in exactness.against_float64(size, sentences).items():
            print(f"    {name:30} {value:.2e}", flush=True)
            key = f"{size}_{name.replace(', ', '_')}"
            figures[key] = value
            if "spread" not in name:
                bars[key] = (f"<= {MOST_APART}", value <= MOST_APART)
    print(f"small: {tier.invariance} distinct sentences in other company, nats apart")
    for name, value in exactness.invariance(tier.invariance).items():
        print(f"    {name:30} {value:.2e}", flush=True)
        key = f"other_{name.replace(' ', '_')}"
        figures[key] = value
        bars[key] = (f"<= {MOST_APART}", value <= MOST_APART)


def _memory(figures: dict[str, float], bars: _Bars) -> None:
    print("base: resident MB: model | weights the engine keeps | scoring above both, at its peak")
    above = []
    for longest in (40, 510):
        got = memory.peak_of("base", longest)
        if got is None:
            print("    this system does not tell the peak")
            return
        above.append(got["peak"] - got["engine"])
        print(
            f"    longest {longest:3}: {got['model']:6.0f} | {got['engine'] - got['model']:6.0f} "
            f"| {above[-1]:6.1f}"
        )
        figures |= {
            "base_engine_mb": got["engine"] - got["model"],
            f"base_scoring_mb_{longest}": above[-1],
        }
    figures["base_scoring_mb"] = max(above)
    figures["base_memory_growth"] = above[1] / above[0] - 1
    bars["base_scoring_mb"] = (f"<= {MOST_MEGABYTES:.0f}", max(above) <= MOST_MEGABYTES)
    bars["base_memory_growth"] = (
        f"<= {MOST_UNEVEN}",
        figures["base_memory_growth"] <= MOST_UNEVEN,
    )


def _long(figures: dict[str, float], bars: _Bars) -> None:
    """Score a sentence of 510 word pieces, and compare some of its pieces with float64."""
    model, item = random_bert(SIZES["base"]), long_encoding(510)
    mask_id = int(tokenizer().mask_token_id)
    engine = prepare_engine(model, "onnxruntime", 1)
    start = time.process_time()
    score_encodings(model, [item], mask_id, "original", CPU_BUDGET, None, engine)
    figures["base_510_s"] = time.process_time() - start
    some = long_encoding(510, 16)
    got = score_encodings(model, [some], mask_id, "original", CPU_BUDGET, None, engine)
    exact = score_encodings(model.double(), [some], mask_id, "original", CPU_BUDGET)
    figures["base_510_apart"] = float((got - exact).abs().max())
    bars["base_510_apart"] = (f"<= {MOST_APART}", figures["base_510_apart"] <= MOST_APART)
    print(
        f"base: one sentence of 510 pieces in {figures['base_510_s']:.0f} s CPU; its first 16 "
        f"pieces {figures['base_510_apart']:.1e} nats from float64"
    )


if __name__ == "__main__":
    sys.exit(main())
