"""The budgets are kept, and their measures count what they say."""

import pytest

from tests.house.budgets import loaded_by, table


def test_no_figure_is_above_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    lines, above = table()
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert above == []


@pytest.mark.parametrize("module", ["medclip_dcl.client", "pipelines.config"])
def test_what_every_command_reads_loads_no_torch(module: str) -> None:
    files, torch = loaded_by(module)
    assert module in files
    assert not torch
