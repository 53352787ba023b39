"""Budgets of the whole: `python -m tests.house.budgets` prints `figure: now <= limit (target)`.

`budgets.yaml` holds the limits. A figure may only fall: what would raise one names what leaves, or
raises the limit in a commit that says why. `tests/house` fails where a figure is above its limit.
"""

import functools
import subprocess
import sys
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import grimp
import networkx as nx
import yaml
from pydantic import BaseModel

from pipelines.__main__ import COMMANDS
from pipelines.config import Config
from tests.house.tree import HOSPITAL, ROOT, SHIPPED, modules, tracked

_FILE = Path(__file__).with_name("budgets.yaml")


def figures() -> dict[str, int]:
    """Every figure of `budgets.yaml` as it is now."""
    shipped = modules(*SHIPPED, "client")
    pages = tracked(".md")
    train = loaded_by("pipelines.train")[0].values()
    with TemporaryDirectory() as folder:
        stack = loss_stack(Path(folder) / "work")
    return {
        "shipped lines": lines_of(*shipped),
        "shipped modules": len(shipped),
        "hospital lines": lines_of(*modules(HOSPITAL)),
        "hospital test lines": lines_of(*modules("hospital/tests")),
        "test lines": lines_of(*modules("tests")),
        "benchmark lines": lines_of(*modules("benchmarks")),
        "settings": len(list(leaves(Config))),
        "commands": sum(map(len, COMMANDS.values())),
        "Markdown files": len(pages),
        "Markdown words": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        "visible folders": len({path.relative_to(ROOT).parts[0] for path in _in_visible_folders()}),
        "modules of pipelines.train": _count(train),
        "lines of pipelines.train": lines_of(*train),
        "modules of pipelines.config": _count(loaded_by("pipelines.config")[0].values()),
        "modules of api.app": _count(loaded_by("api.app")[0].values()),
        "modules of the predictor": _count(
            loaded_by("medclip_dcl.inference.predictor")[0].values()
        ),
        "modules of the client": _count(loaded_by("medclip_dcl.client")[0].values()),
        "largest circle of files": max(map(len, circles()), default=0),
        "modules down to the first loss": len(stack),
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


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Names of the settings below a section, sections themselves left out."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *typing.get_args(field.annotation))
        sections = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if sections:
            yield from leaves(sections[0], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _in_visible_folders() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return (ROOT / name for name in listed.splitlines() if "/" in name and name[0] != ".")


_LOADED = """
import importlib, sys
importlib.import_module({module!r})
for name, module in list(sys.modules.items()):
    if name.split(".")[0] in {ours!r} and getattr(module, "__file__", None):
        print(name, module.__file__)
print("torch", "torch" in sys.modules)
"""


def _count(files: Iterable[Path]) -> int:
    return sum(file.name != "__init__.py" for file in files)


@functools.cache
def loaded_by(module: str) -> tuple[dict[str, Path], bool]:
    """Modules of the project that an import loads, with their files; and whether torch is."""
    code = _LOADED.format(module=module, ours=set(SHIPPED))
    *listed, (_, torch) = (line.split(maxsplit=1) for line in _printed(code).splitlines())
    return {name: Path(file) for name, file in listed}, torch == "True"


def _printed(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


_LOSS = """
import traceback
from pathlib import Path
from medclip_dcl.training import objective
from tests.support.corpus import write_config, write_corpus
from pipelines.train import main

def traced(*arguments, **options):
    frames = [Path(frame.filename).resolve() for frame in traceback.extract_stack()]
    root = Path.cwd()
    inside = (file.relative_to(root) for file in frames if file.is_file() and root in file.parents)
    own = [file for file in inside if not file.parts[0].startswith(".")]  # no environment
    print("STACK", *dict.fromkeys(map(str, own)), "medclip_dcl/losses/debiased.py")
    raise SystemExit(0)

objective.debiased_terms = traced
work = write_corpus(Path({work!r}))
main(["--config", str(write_config(work / "config.yaml", work, train={{"steps": 1}}))])
"""


def loss_stack(work: Path) -> list[str]:
    """Files of the project on the call stack where a tiny training computes its first loss."""
    printed = _printed(_LOSS.format(work=str(work)))
    (line,) = [line for line in printed.splitlines() if line.startswith("STACK ")]
    return line.split()[1:]


def circles() -> Iterator[set[str]]:
    """Groups of two or more files that import one another anywhere, in functions too."""
    built = grimp.build_graph(*SHIPPED, cache_dir=None)
    graph = nx.DiGraph(
        (name, other)
        for name in built.modules
        for other in built.find_modules_directly_imported_by(name)
    )
    assert graph.number_of_edges() > 300
    yield from (group for group in nx.strongly_connected_components(graph) if len(group) > 1)


if __name__ == "__main__":
    printed, too_high = table()
    print("\n".join(printed))
    sys.exit(bool(too_high))
