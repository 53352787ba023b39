"""Long work goes on with the first unit that no run had finished."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from medclip_dcl.artifact_writer import map_resumable, remove_resumable


def doubled(part: Sequence[int]) -> list[dict[str, Any]]:
    return [{"value": 2 * item} for item in part]


def test_a_killed_run_goes_on_after_its_last_unit(tmp_path: Path) -> None:
    def fail_at_four(part: Sequence[int]) -> list[dict[str, Any]]:
        if 4 in part:
            raise KeyboardInterrupt
        return doubled(part)

    with pytest.raises(KeyboardInterrupt):
        map_resumable(tmp_path, "x", range(6), 2, fail_at_four, lambda _: None)
    asked: list[int] = []

    def record(part: Sequence[int]) -> list[dict[str, Any]]:
        asked.extend(part)
        return doubled(part)

    done: list[int] = []
    rows = map_resumable(tmp_path, "x", range(6), 2, record, done.append)
    assert asked == [4, 5]
    assert [row["value"] for row in rows] == [0, 2, 4, 6, 8, 10]
    assert done == [2, 2, 2]


def test_works_of_two_names_do_not_meet(tmp_path: Path) -> None:
    map_resumable(tmp_path, "x", range(3), 2, doubled, lambda _: None)
    rows = map_resumable(tmp_path, "y", range(10, 12), 2, doubled, lambda _: None)
    assert [row["value"] for row in rows] == [20, 22]


def test_nothing_of_it_is_sealed(tmp_path: Path) -> None:
    map_resumable(tmp_path, "x", range(3), 2, doubled, lambda _: None)
    (tmp_path / ".unit-x-000009.json.half").touch()
    (tmp_path / "kept").touch()
    remove_resumable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
