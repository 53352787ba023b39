"""Budgets of the whole: `python -m tests.house.budgets` prints `figure: now <= limit (target)`.

`budgets.yaml` holds the limits. A figure may only fall: what would raise one names what leaves, or
raises the limit in a commit that says why. `tests/house` fails where a figure is above its limit.
"""

import functools
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grimp
import networkx as nx
import yaml

from docs.reference import setting_references
from pipelines.__main__ import COMMANDS
from pipelines.config import Config
from tests.house.loaded import FIRST_LOSS
from tests.house.tree import HOSPITAL, ROOT, SHIPPED, files, modules, name_of, tracked

LOADING = {
    "pipelines.train": "pipelines.train",
    "pipelines.config": "pipelines.config",
    "api.app": "api.app",
    "the predictor": "medclip_dcl.inference.predictor",
    "the client": "medclip_dcl.client",
}
"""Figure -> the module whose import it counts."""
QUESTIONS = (*LOADING.values(), "api.launcher", FIRST_LOSS)
_FILE = Path(__file__).with_name("budgets.yaml")


def figures() -> dict[str, int]:
    """Every figure of `budgets.yaml` as it is now."""
    shipped = modules(*SHIPPED, "client")
    pages = tracked(".md")
    names = (name_of(path) for path in files() if not name_of(path).startswith("."))
    folders = {name.split("/")[0] for name in names if "/" in name}
    answers = measured(*QUESTIONS)
    loads = {
        figure: [Path(file) for file in answers[module]["files"].values()]
        for figure, module in LOADING.items()
    }
    circles = [group for group in nx.strongly_connected_components(imports()) if len(group) > 1]
    return {
        "shipped lines": lines_of(*shipped),
        "shipped modules": len(shipped),
        "hospital lines": lines_of(*modules(HOSPITAL)),
        "hospital test lines": lines_of(*modules("hospital/tests")),
        "test lines": lines_of(*modules("tests")),
        "benchmark lines": lines_of(*modules("benchmarks")),
        "settings": len(list(setting_references(Config))),
        "commands": sum(map(len, COMMANDS.values())),
        "Markdown files": len(pages),
        "Markdown words": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        "visible folders": len(folders),
        "lines of pipelines.train": lines_of(*loads["pipelines.train"]),
        **{f"modules of {figure}": _count(loaded) for figure, loaded in loads.items()},
        "largest circle of files": max(map(len, circles), default=0),
        "modules down to the first loss": len(answers[FIRST_LOSS]),
    }


def table() -> tuple[list[str], list[str]]:
    """A line for each figure, and the names of those that are above their limit."""
    budgets = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    found = figures()
    if budgets.keys() != found.keys():
        raise ValueError(f"{_FILE.name} names {sorted(budgets.keys() ^ found.keys())} or lacks it")
    above = [name for name, now in found.items() if now > budgets[name][0]]
    lines = [
        f"{name:32}{now:>7} <= {budgets[name][0]:<7}({budgets[name][1]})"
        + ("  ABOVE ITS LIMIT" if name in above else "")
        for name, now in found.items()
    ]
    return lines, above


def lines_of(*paths: Path) -> int:
    """Lines of files together."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def _count(paths: Iterable[Path]) -> int:
    return sum(path.name != "__init__.py" for path in paths)


@functools.cache
def measured(*names: str) -> dict[str, Any]:
    """Answers of `tests.house.loaded`, by name."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.house.loaded", folder, *names]
        subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        return {name: json.loads((Path(folder) / name).read_text("utf-8")) for name in names}


def imports() -> "nx.DiGraph[str]":
    """Which file imports which other anywhere, in functions too."""
    built = grimp.build_graph(*SHIPPED, cache_dir=None)
    graph = nx.DiGraph(
        (name, other)
        for name in built.modules
        for other in built.find_modules_directly_imported_by(name)
    )
    assert graph.number_of_edges() > 300
    return graph


if __name__ == "__main__":
    printed, too_high = table()
    print("\n".join(printed))
    sys.exit(bool(too_high))
