"""The image-only experiment: its views, its loss against the DCL paper's, a whole run."""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import train
from torch import Tensor
from torch.nn import functional

B = 6
N = 2 * B - 2
LABELS = torch.arange(B) % 3
TINY = ["--widths", "8", "16", "--size", "8", "--view-size", "8", "--batch", "32", "--steps", "40"]
TINY += ["--per-class", "60", "--test-per-class", "20", "--save-every", "8", "--log-every", "1"]


def options(*words: str) -> argparse.Namespace:
    return train.parse_options(["--out", "unused", *words])


# ---- Options and imbalance


@pytest.mark.parametrize(
    ("ratio", "low", "high"), [(0.1, 0.01818, 0.18182), (0.5, 0.06667, 0.13333)]
)
def test_eta_is_the_papers(ratio: float, low: float, high: float) -> None:
    counts, rare = [round(1000 * ratio), 1000] * 5, [True, False] * 5

    def eta(loss: str) -> list[float]:
        return train.class_eta(loss, counts, rare, ratio, 0.07).tolist()

    assert eta("low") == pytest.approx([low] * 10, abs=1e-5)
    assert eta("high") == pytest.approx([high] * 10, abs=1e-5)
    assert eta("true") == pytest.approx([low, high] * 5, abs=1e-5)
    assert eta("constant") == pytest.approx([0.07] * 10)
    assert eta("cl") == eta("oracle") == [0.0] * 10


# ---- Loss


def unit_vectors() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return functional.normalize(torch.randn(2, B, 5, generator=generator), dim=-1)


def loss_of(z: Tensor, eta: Tensor, *words: str) -> Tensor:
    return train.contrast_views(z, 0, LABELS, eta, options(*words))[0]


def official_loss(z: Tensor, eta: Tensor) -> Tensor:
    """Both views as anchors, N = 2 B - 2, in plain exponentials, as in Chuang et al.'s code."""
    out_1, out_2 = z
    out = torch.cat([out_1, out_2])
    neg = torch.exp(out @ out.T / 0.5)
    mask = ~(torch.eye(B, dtype=torch.bool).repeat(2, 2))  # neither the anchor nor its partner
    neg = neg.masked_select(mask).view(2 * B, 2 * B - 2)
    pos = torch.exp((out_1 * out_2).sum(dim=-1) / 0.5).repeat(2)
    Ng = (-eta * N * pos + neg.sum(dim=-1)) / (1 - eta)
    Ng = torch.clamp(Ng, min=N * math.exp(-1 / 0.5))
    return (-torch.log(pos / (pos + Ng))).mean()


@pytest.mark.parametrize("values", [(0.1, 0.1, 0.1), (0.02, 0.18, 0.1), (0.0, 0.6, 0.8)])
def test_the_loss_is_the_dcl_papers_over_both_views(values: tuple[float, ...]) -> None:
    """The last case is partly on the floor."""
    z, eta = unit_vectors().requires_grad_(), torch.tensor(values)
    expected = official_loss(z, eta[LABELS].repeat(2))
    found = loss_of(z, eta)
    torch.testing.assert_close(found, expected)
    both = [torch.autograd.grad(loss, z)[0] for loss in (found, expected)]
    torch.testing.assert_close(*both)


def test_further_views_estimate_the_correction_and_are_no_negatives() -> None:
    """M = 3: Eq. 8 with the mean over the positive and two more views, in plain exponentials."""
    generator = torch.Generator().manual_seed(6)
    z = functional.normalize(torch.randn(4, B, 5, generator=generator), dim=-1)
    terms = []
    for view, image in np.ndindex(2, B):
        anchor = z[view, image]
        rest = [z[v, i] for v, i in np.ndindex(2, B) if i != image]
        negatives = sum(torch.exp(2 * anchor @ u) for u in rest)
        positive = torch.exp(2 * anchor @ z[1 - view, image])
        v = (positive + sum(torch.exp(2 * anchor @ z[more, image]) for more in (2, 3))) / 3
        g = (negatives / N - 0.1 * v) / 0.9
        assert g > math.exp(-2)
        terms.append(-torch.log(positive / (positive + N * g)))
    words = "--positives", "3", "--loss", "constant"
    found = loss_of(z, torch.full((3,), 0.1), *words)
    torch.testing.assert_close(found, torch.stack(terms).mean())


def test_the_oracle_removes_images_of_the_anchors_class() -> None:
    z = unit_vectors().flatten(0, 1)
    partner = torch.arange(2 * B).roll(B)
    same = LABELS.repeat(2).unsqueeze(1) == LABELS.repeat(2)
    same[torch.arange(2 * B), partner] = False  # the partner stays; the anchor itself goes
    expected = functional.cross_entropy((2 * z @ z.T).masked_fill(same, -torch.inf), partner)
    found = loss_of(unit_vectors(), torch.zeros(3), "--loss", "oracle")
    torch.testing.assert_close(found, expected)


# ---- Whole runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("image_only") / "run"
    train.main([*TINY, "--out", str(out)])
    return out


def test_a_run_learns_probes_and_draws(run: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    log = results["training"]
    assert [line["step"] for line in log] == list(range(1, 41))
    losses = [line["uncorrected_loss"] for line in log]
    assert sum(losses[-6:]) < 0.985 * sum(losses[:6])
    cells = {(row["encoder"], row["fraction"], row["draw"]): row for row in results["probes"]}
    assert len(cells) == 2 * (3 + 3 + 1)
    last = cells["trained", 1.0, 0]
    assert last["labels"] == 5 * 60 + 5 * 6
    assert last["accuracy"] > cells["untrained", 1.0, 0]["accuracy"] > 0.1
    assert last["accuracy"] <= last["top_5"] <= 1
    assert last["mean_recall"] == pytest.approx((last["recall_whole"] + last["recall_rare"]) / 2)
    assert log[-1]["gradient_norm"] > 0
    assert (run / "map.png").read_bytes().startswith(b"\x89PNG")
