"""Long work in a draft, unit by unit: what a killed run had finished is read back."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from medclip_dcl.artifacts.files import write_text

Item = TypeVar("Item")
Row = dict[str, Any]

_NOTE = "unit-{}-{:06d}.json"


def in_units(
    folder: Path,
    name: str,
    items: Sequence[Item],
    size: int,
    answer: Callable[[Sequence[Item]], list[Row]],
    finished: Callable[[int], None],
) -> list[Row]:
    """Answer for every item, keeping the answers of each finished unit on disk.

    Args:
        folder: the draft's directory, which belongs to one recipe alone.
        name: what the work is called.
        items: the items, in an order that the recipe determines.
        size: items in one unit.
        answer: gives JSON-serialisable rows for the items of one unit.
        finished: told how many items have been finished.

    Returns:
        All rows, in the order of the items.
    """
    rows: list[Row] = []
    for number, start in enumerate(range(0, len(items), size)):
        part = items[start : start + size]
        note = folder / _NOTE.format(name, number)
        if note.is_file():
            rows += json.loads(note.read_text(encoding="utf-8"))
        else:
            answers = answer(part)
            write_text(note, json.dumps(answers))
            rows += answers
        finished(len(part))
    return rows


def drop_units(folder: Path) -> None:
    """Remove the notes, and what a kill left half-written, before the draft is sealed.

    Args:
        folder: the draft's directory.
    """
    for note in [*folder.glob("unit-*.json"), *folder.glob(".unit-*")]:
        note.unlink()
