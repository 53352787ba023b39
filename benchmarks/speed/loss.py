"""Cost of the debiased loss over InfoNCE, and of LSE+NL over its own matrix products.

    python -m benchmarks.speed.loss [--quick]

One thread, forward and backward, the rivals interleaved with ours in one run; medians
of the ratio within a round. The InfoNCE that ours is measured against is written out
here: a masked log-sum-exp over the negatives.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.record import finish
from medclip_dcl.losses.debiased import debiased_contrastive_loss
from medclip_dcl.losses.info_nce import info_nce_loss
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores

IMAGES, TEXTS, REGIONS, DIM = 64, 64, 225, 128
BARS = {"loss_ratio_64": 2.5, "loss_ratio_1024": 1.3, "similarity_ratio": 1.5}


def masked_info_nce(s: Tensor, diagonal: Tensor) -> Tensor:
    """The rival: InfoNCE by a masked log-sum-exp over the negatives."""
    log_ratio = s.masked_fill(diagonal, -torch.inf).logsumexp(dim=1) - s.diagonal()
    return functional.softplus(log_ratio).mean()


def matrix_products(x: Tensor, y: Tensor, query: Tensor, a: Tensor, dh: Tensor, dv: Tensor) -> None:
    """The products without which no LSE+NL can be had, forward and backward."""
    xt = x.transpose(1, 2)
    torch.matmul(y, xt)  # scores h
    query @ xt  # attention logits
    a @ x  # attended vectors v
    dh @ x  # h -> sentences
    dh.transpose(1, 2) @ y  # h -> regions
    dv @ xt  # v -> attention
    a.transpose(1, 2) @ dv  # v -> regions
    dh @ x  # logits -> query
    dh.transpose(1, 2) @ query  # logits -> regions


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, whether or not a bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.loss")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 1 if parser.parse_args(argv).quick else 4
    torch.set_num_threads(1)
    torch.manual_seed(0)

    figures: dict[str, float] = {}
    for B, repeats in ((64, 300), (1024, 30)):
        times = _interleaved(_loss_rivals(B), repeats * rounds)
        _table(f"loss alone, B = {B}, forward and backward", times)
        figures[f"loss_ratio_{B}"] = _ratio(times, "debiased", "masked InfoNCE")
        figures[f"loss_ms_{B}"] = 1e3 * statistics.median(times["debiased"])
    times = _interleaved(_similarity_rivals(), 15 * rounds)
    _table(f"similarity, {IMAGES} x {TEXTS} x {REGIONS} x {DIM}, forward and backward", times)
    figures["similarity_ratio"] = _ratio(times, "LSE+NL", "its matrix products")
    figures["similarity_ms"] = 1e3 * statistics.median(times["LSE+NL"])

    bars = {name: (f"<= {bar}", figures[name] <= bar) for name, bar in BARS.items()}
    for name, (bar, met) in bars.items():
        print(f"{name:18} {figures[name]:6.2f}  bar {bar}  {'met' if met else 'MISSED'}")
    return finish("loss", figures, bars)


def _loss_rivals(B: int) -> dict[str, Callable[[], None]]:
    s = (14 * (2 * torch.rand(B, B) - 1)).requires_grad_()
    diagonal, labels = torch.eye(B, dtype=torch.bool), torch.arange(B)
    eta, gamma = 0.2 * torch.rand(B), torch.tensor(math.sqrt(14))

    def timed(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            s.grad = None
            loss().backward()

        return run

    return {
        "masked InfoNCE": timed(lambda: masked_info_nce(s, diagonal)),
        "debiased": timed(lambda: debiased_contrastive_loss(s, labels, eta, gamma)),
        "our InfoNCE": timed(lambda: info_nce_loss(s, labels)),
        "cross_entropy": timed(lambda: functional.cross_entropy(s, labels)),
    }


def _similarity_rivals() -> dict[str, Callable[[], None]]:
    x = functional.normalize(torch.randn(IMAGES, REGIONS, DIM), dim=-1)
    y = functional.normalize(torch.randn(TEXTS, DIM), dim=-1)
    upstream = torch.randn(TEXTS, IMAGES)
    settings = SimilarityConfig()
    pairs, vectors = (torch.randn(IMAGES, TEXTS, width) for width in (REGIONS, DIM))

    def ours() -> None:
        regions, sentences = x.detach().requires_grad_(), y.detach().requires_grad_()
        image_sentence_scores(regions, sentences, settings).backward(upstream)

    def products() -> None:
        matrix_products(x, y, vectors, pairs, pairs, vectors)

    return {"its matrix products": products, "LSE+NL": ours}


def _interleaved(
    baselines: Mapping[str, Callable[[], None]], repeats: int
) -> dict[str, list[float]]:
    """CPU seconds of each rival in each round, after three rounds to warm up."""
    times: dict[str, list[float]] = {name: [] for name in baselines}
    for round_ in range(repeats + 3):
        for name, run in baselines.items():
            start = time.process_time()
            run()
            if round_ >= 3:
                times[name].append(time.process_time() - start)
    return times


def _ratio(times: Mapping[str, list[float]], ours: str, baseline: str) -> float:
    return statistics.median(
        mine / theirs for mine, theirs in zip(times[ours], times[baseline], strict=True)
    )


def _table(title: str, times: Mapping[str, list[float]]) -> None:
    print(title)
    for name, seconds in times.items():
        print(f"    {name:20} {1e3 * statistics.median(seconds):9.3f} ms CPU")


if __name__ == "__main__":
    sys.exit(main())
