"""What a process loads of this project: a wall that only holds on paper shows here."""

import subprocess
import sys

import pytest

from tests.house.tree import SHIPPED

LOADED = {"gateway.launcher": 32, "medclip_dcl.client": 6, "medclip_dcl.inference.predictor": 32,
          "api.app": 64, "pipelines.config": 47}  # fmt: skip
"""Module -> how many modules of the project its import may load."""

_CODE = """
import sys, {module}
ours = {ours}
own = [name for name in sys.modules if name.split(".")[0] in ours]
print(len(own), "torch" in sys.modules)
"""


@pytest.mark.parametrize("module", LOADED)
def test_an_import_loads_no_more_than_its_room(module: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _CODE.format(module=module, ours=set(SHIPPED))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    count, torch = run.stdout.split()
    assert 1 < int(count) <= LOADED[module]
    assert torch == str(module in {"medclip_dcl.inference.predictor", "api.app"})
