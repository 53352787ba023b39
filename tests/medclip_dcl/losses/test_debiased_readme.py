import math
import re
from pathlib import Path

import pytest
import torch

from medclip_dcl.losses.debiased import debiased_contrastive_loss, debiased_terms
from medclip_dcl.losses.info_nce import info_nce_loss

README = Path(__file__).parents[3] / "medclip_dcl" / "losses" / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "loss = " in code]
ETAS = (0.01, 0.035, 0.05, 0.1, 0.2)
ROWS = re.findall(r"^\| (\d+) \| ([\d.]+) \| (.*) \|$", TEXT, re.M)


def test_every_module_is_in_the_table() -> None:
    modules = {path.name for path in README.parent.glob("*.py")} - {"__init__.py"}
    assert modules == set(re.findall(r"^\| `(\w+\.py)`", TEXT, re.M))


@pytest.mark.parametrize("code", EXAMPLES, ids=["clip", "sentences", "simclr"])
def test_example_runs_and_gives_a_loss(code: str) -> None:
    names: dict[str, object] = {}
    exec(code, names)
    loss = names["loss"]
    assert isinstance(loss, torch.Tensor)
    assert loss.isfinite()
    assert loss > 0


@pytest.mark.parametrize(("count", "log", "cells"), ROWS)
def test_floor_table_is_computed(count: str, log: str, cells: str) -> None:
    N = int(count)
    assert float(log) == pytest.approx(math.log(N + 1), abs=0.006)
    for eta, cell in zip(ETAS, cells.split(" | "), strict=True):
        edge, largest = map(float, cell.split(", "))
        exact = math.log1p(N * eta)
        assert edge == pytest.approx(exact, abs=0.006)
        assert largest == pytest.approx((1 + N * eta) / (1 - eta), rel=0.04)
        # The loss itself turns at that edge: one row of equal negatives, InfoNCE loss given.
        for shift, on_floor in ((1e-6, False), (-1e-6, True)):
            s = torch.zeros(1, N + 1, dtype=torch.float64)
            s[0, 0] = math.log(N) - math.log(math.expm1(exact + shift))
            assert info_nce_loss(s).item() == pytest.approx(exact + shift, rel=1e-9)
            assert (debiased_terms(s, None, eta, 10.0).ell.item() == -math.inf) == on_floor


def test_largest_weight_is_reached_at_the_edge() -> None:
    N, eta = 63, 0.05
    s = torch.zeros(1, N + 1, dtype=torch.float64)
    s[0, 0] = math.log(N) - math.log(math.expm1(math.log1p(N * eta) + 1e-7))
    s.requires_grad_()
    loss = debiased_contrastive_loss(s, None, eta, 10.0)
    ratio = torch.autograd.grad(loss, s)[0] / torch.autograd.grad(info_nce_loss(s), s)[0]
    torch.testing.assert_close(
        ratio, torch.full_like(ratio, (1 + N * eta) / (1 - eta)), rtol=1e-4, atol=0
    )
