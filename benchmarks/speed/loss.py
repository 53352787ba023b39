"""Cost of the debiased loss over InfoNCE, of LSE+NL over its own matrix products, and of both.

    python -m benchmarks.speed.loss [--quick]

One thread, forward and backward, the rivals interleaved with ours in one run; medians of the
ratio within a round. The InfoNCE that ours is measured against is written out here: a masked
log-sum-exp over the negatives. The whole objective is scores, loss and gauges of 64 pairs.
"""

import math
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.record import finish, is_quick, judge
from benchmarks.speed.timing import cpu_ms, cpu_ratio, interleaved, show
from medclip_dcl.losses.debiased import debiased_contrastive_loss
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.training.objective import ObjectiveInputs, direction_loss
from medclip_dcl.training.settings import ObjectiveConfig

IMAGES, TEXTS, REGIONS, DIM = 64, 64, 225, 128
BARS = {"loss_ratio_64": "<= 1.6", "loss_ratio_1024": "<= 1.3", "similarity_ratio": "<= 1.3"}


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
    rounds = 1 if is_quick(argv) else 4
    torch.set_num_threads(1)
    torch.manual_seed(0)

    figures: dict[str, float] = {}
    for B, repeats in ((64, 300), (1024, 30)):
        print(f"loss alone, B = {B}, forward and backward")
        times = interleaved(_loss_rivals(B), repeats * rounds, warm_up=3)
        show(times)
        figures[f"loss_ratio_{B}"] = cpu_ratio(times, "debiased", "masked InfoNCE")
        figures[f"loss_ms_{B}"] = cpu_ms(times, "debiased")
    print(f"similarity, {IMAGES} x {TEXTS} x {REGIONS} x {DIM}, forward and backward")
    times = interleaved(_similarity_rivals(), 15 * rounds, warm_up=3)
    show(times)
    figures["similarity_ratio"] = cpu_ratio(times, "LSE+NL", "its matrix products")
    figures["similarity_ms"] = cpu_ms(times, "LSE+NL")
    figures["objective_ms"] = cpu_ms(times, "whole objective")
    return finish("loss", figures, judge(figures, BARS))


def _loss_rivals(B: int) -> dict[str, Callable[[int], None]]:
    s = (14 * (2 * torch.rand(B, B) - 1)).requires_grad_()
    diagonal, labels = torch.eye(B, dtype=torch.bool), torch.arange(B)
    eta, gamma = 0.2 * torch.rand(B), torch.tensor(math.sqrt(14))

    def timed(loss: Callable[[], Tensor]) -> Callable[[int], None]:
        def run(_round: int) -> None:
            s.grad = None
            loss().backward()

        return run

    return {
        "masked InfoNCE": timed(lambda: masked_info_nce(s, diagonal)),
        "debiased": timed(lambda: debiased_contrastive_loss(s, labels, eta, gamma)),
    }


def _similarity_rivals() -> dict[str, Callable[[int], None]]:
    x = functional.normalize(torch.randn(IMAGES, REGIONS, DIM), dim=-1)
    y = functional.normalize(torch.randn(TEXTS, DIM), dim=-1)
    upstream = torch.randn(TEXTS, IMAGES)
    settings = SimilarityConfig()
    pairs, vectors = (torch.randn(IMAGES, TEXTS, width) for width in (REGIONS, DIM))

    def ours(_round: int) -> None:
        regions, sentences = x.detach().requires_grad_(), y.detach().requires_grad_()
        image_sentence_scores(regions, sentences, settings).backward(upstream)

    def products(_round: int) -> None:
        matrix_products(x, y, vectors, pairs, pairs, vectors)

    def objective(_round: int) -> None:
        regions, sentences = x.detach().requires_grad_(), y.detach().requires_grad_()
        s = 14 * image_sentence_scores(regions, sentences, settings)
        inputs = ObjectiveInputs(
            s, torch.arange(TEXTS), torch.full((TEXTS,), 0.1), torch.tensor(3.7)
        )
        direction_loss(ObjectiveConfig(), inputs).loss.backward()

    return {"its matrix products": products, "LSE+NL": ours, "whole objective": objective}


if __name__ == "__main__":
    sys.exit(main())
