"""A benchmark's last line can be read by a machine."""

import json
from datetime import date

import pytest

from benchmarks.record import finish, machine


def test_last_line_holds_name_machine_figures_and_bars(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish("loss", {"ratio": 2.0}, {"ratio": ("<= 1.5x", False)}) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["benchmark"] == "loss"
    assert line["figures"] == {"ratio": 2.0}
    assert line["bars"] == {"ratio": {"bar": "<= 1.5x", "met": False}}
    assert line["machine"] == machine()


def test_machine_names_day_cores_and_packages() -> None:
    facts = machine()
    assert facts["cores"] >= 1
    assert date.fromisoformat(facts["date"]).year >= 2026
    assert "numpy" in facts["packages"]
