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

from benchmarks.record import finish, judge, machine
from benchmarks.speed.pll import exactness, memory, speed
from benchmarks.speed.pll.models import SIZES, has_data, long_encoding, random_bert, tokenizer
from benchmarks.speed.pll.speed import MINICONS, PORT
from medclip_dcl.likelihood.engines import CPU_BUDGET, prepare_engine
from medclip_dcl.likelihood.pll import score_encodings

BARS = {
    "base_minicons_ratio": ">= 2.5",
    "small_minicons_ratio": ">= 7.0",
    "base_port_ratio": ">= 1.8",
    "small_port_ratio": ">= 1.8",
    "base_corpus_minicons_ratio": ">= 6.5",
    "small_corpus_minicons_ratio": ">= 18.0",
    "base_over_floor": "<= 1.35",
    "base_bf16_over_minicons": ">= 3.5",
    "base_scoring_mb": "<= 250",
    "base_memory_growth": "<= 0.1",
    "base_510_apart": "<= 0.0002",
}
MOST_APART = "<= 0.0002"
"""Distances of scores from float64, and of scores in other company, nats."""


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
    _speed(tier, figures)
    figures |= speed.compare_bfloat16(tier.base, tier.rounds)
    figures |= speed.drift(tier.base, arguments.trained, tier.drift)
    exact = _exactness(tier)
    figures |= exact
    if not arguments.quick:
        _memory(figures)
    if arguments.long:
        _long(figures)
    of_scores = {name: MOST_APART for name in exact if "spread" not in name}
    return finish("pll", figures, judge(figures, BARS | of_scores))


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


def _exactness(tier: Tier) -> dict[str, float]:
    figures = {}
    for size, sentences in (("small", tier.small_exact), ("base", tier.base_exact)):
        found = exactness.against_float64(size, sentences)
        figures |= {f"{size}_{name.replace(', ', '_')}": value for name, value in found.items()}
    found = exactness.invariance(tier.invariance)
    return figures | {f"other_{name.replace(' ', '_')}": value for name, value in found.items()}


def _memory(figures: dict[str, float]) -> None:
    above = []
    for longest in (40, 510):
        got = memory.peak_of("base", longest)
        if got is None:
            print("    this system does not tell the peak")
            return
        above.append(got["peak"] - got["engine"])
        figures |= {
            "base_engine_mb": got["engine"] - got["model"],
            f"base_scoring_mb_{longest}": above[-1],
        }
    figures["base_scoring_mb"] = max(above)
    figures["base_memory_growth"] = above[1] / above[0] - 1


def _long(figures: dict[str, float]) -> None:
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


if __name__ == "__main__":
    sys.exit(main())
