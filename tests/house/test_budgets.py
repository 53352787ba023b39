"""The budgets are kept, and their measures count what they say."""

import pytest

from tests.house.budgets import QUESTIONS, measured, table
from tests.house.loaded import LIGHT


def test_no_figure_is_above_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    lines, above = table()
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert above == []


def test_what_every_command_reads_loads_no_torch() -> None:
    for module in LIGHT:
        answer = measured(*QUESTIONS)[module]
        assert module in answer["files"]
        assert not answer["torch"]
