"""Budgets of lines and modules: `python -m tests.house.budgets` prints each room, and fails above.

`budgets.yaml` holds them. What grows a room beyond its budget names what leaves it, or raises the
budget in a commit that says why. The settings counted are the leaves of `Config`.
"""

import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from pydantic import BaseModel

from pipelines.config import Config
from tests.house import test_loaded
from tests.house.tree import ROOT, SHIPPED, modules, tracked

_FILE = Path(__file__).with_name("budgets.yaml")


def main() -> int:
    """Print a line for each room with its budget; gives 1 where one is above."""
    budgets = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    rooms = {room: modules_in(room) for room in budgets["rooms"]}
    used = {room: (sum(map(lines_of, files)), len(files)) for room, files in rooms.items()}
    allowed = {room: tuple(most) for room, most in budgets["rooms"].items()}
    shipped = modules(*SHIPPED)
    used["shipped in all"] = (sum(map(lines_of, shipped)), len(shipped))
    allowed["shipped in all"] = tuple(budgets["shipped"])
    used["settings"], allowed["settings"] = (len(list(leaves(Config))),), (budgets["settings"],)
    above = False
    for room, counts in used.items():
        pairs = list(zip(counts, allowed[room], strict=True))
        cells = "".join(f"{count:>8} of {most:<6}" for count, most in pairs)
        over = any(count > most for count, most in pairs)
        above |= over
        print(f"{room:28}{cells}{'  ABOVE ITS BUDGET' if over else ''}")
    print_loaded()
    return int(above)


def print_loaded() -> None:
    """Print what training loads, the largest circle, and how deep the loss is: `test_loaded`."""
    count, lines = test_loaded.train_figures()
    largest = max(map(len, test_loaded.circles(test_loaded.import_graph())), default=0)
    with TemporaryDirectory() as folder:
        stack = test_loaded.loss_stack(Path(folder) / "work")
    print(f"{'pipelines.train loads':28}{lines:>8} of {test_loaded.TRAIN_LINES:<6}", end="")
    print(f"{count:>8} of {test_loaded.TRAIN_MODULES:<6}")
    print(f"{'largest circle of files':28}{largest:>8} of 0")
    print(f"{'modules down to the loss':28}{len(stack):>8} of {test_loaded.STACK}")


def modules_in(room: str) -> list[Path]:
    """Python files below a folder."""
    return [path for path in tracked(".py") if path.is_relative_to(ROOT / room)]


def lines_of(path: Path) -> int:
    """Lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Names of the settings below a section, sections themselves left out."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *typing.get_args(field.annotation))
        sections = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if sections:
            yield from leaves(sections[0], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


if __name__ == "__main__":
    sys.exit(main())
