import math
import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[3] / "medclip_dcl" / "losses" / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "loss = " in code]
ETAS = (0.01, 0.05, 0.2)
ROWS = re.findall(r"^\| (\d+) \| ([\d.]+) \| (.*) \|$", TEXT, re.M)


def test_every_module_is_in_the_table() -> None:
    modules = {path.name for path in README.parent.glob("*.py")} - {"__init__.py"}
    assert modules == set(re.findall(r"^- `(\w+\.py)`", TEXT, re.M))


@pytest.mark.parametrize("code", EXAMPLES, ids=["clip", "sentences"])
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
