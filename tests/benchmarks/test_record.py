"""A benchmark's last line can be read by a machine."""

import json
from pathlib import Path

import pytest

from benchmarks.record import finish, judge, keep, machine


def test_last_line_holds_name_machine_figures_and_bars(capsys: pytest.CaptureFixture[str]) -> None:
    assert finish("loss", {"ratio": 2.0}, {"ratio": ("<= 1.5x", False)}) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["benchmark"] == "loss"
    assert line["figures"] == {"ratio": 2.0}
    assert line["bars"] == {"ratio": {"bar": "<= 1.5x", "met": False}}
    assert line["machine"] == machine()


def test_a_bar_is_met_as_its_words_say(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"ratio": 2.0, "lost": 0, "wins": 7, "off": 0.1, "peak": 3}
    bars = {"ratio": ">= 2", "lost": "0", "wins": ">= 7 of 8", "off": "< 0", "peak": "<= 2.5"}
    found = judge(figures, bars | {"not measured": "= 1"})
    assert {name for name, (_, met) in found.items() if met} == {"ratio", "lost", "wins"}
    assert {name: bar for name, (bar, _) in found.items()} == bars
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*figures]


def test_the_last_figures_of_each_kind_of_processor_are_kept(tmp_path: Path) -> None:
    def line(processor: str, ratio: float) -> dict[str, object]:
        facts = {"processor": processor, "accelerator": "", "date": f"2026-11-2{ratio:.0f}"}
        return {"machine": facts, "figures": {"ratio": ratio}}

    file = tmp_path / "loss.json"
    for processor, ratio in (("one", 1), ("other", 2), ("one", 3), ("one", 4), ("other", 5)):
        keep(file, line(processor, ratio))
    assert json.loads(file.read_text()) == line("other", 5) | {"others": {"one": line("one", 4)}}
