"""What imports load and hold on to: a wall that only holds on paper shows here.

`python -m tests.house.budgets` prints the figures of this module too. They may only fall.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.house.tree import ROOT, SHIPPED, modules, syntax

LOADED = {"medclip_dcl.client": 7, "medclip_dcl.inference.predictor": 29, "api.app": 63,
          "pipelines.config": 35}  # fmt: skip
"""Module -> how many modules of the project its import may load."""
WITH_TORCH = {"medclip_dcl.inference.predictor", "api.app"}

TRAIN_MODULES, TRAIN_LINES = 53, 11_000
"""Modules with code, and their lines, that `import pipelines.train` may load."""
STACK = 7
"""Modules on the call stack where a training computes its first loss."""

_CODE = """
import importlib, sys
importlib.import_module({module!r})
for name, module in list(sys.modules.items()):
    if name.split(".")[0] in {ours!r} and getattr(module, "__file__", None):
        print(name, module.__file__)
print("torch", "torch" in sys.modules)
"""


def loaded_by(module: str) -> tuple[dict[str, Path], bool]:
    """Modules of the project that an import loads, with their files; and whether torch is."""
    code = _CODE.format(module=module, ours=set(SHIPPED))
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    *listed, (_, torch) = (line.split(maxsplit=1) for line in run.stdout.splitlines())
    return {name: Path(file) for name, file in listed}, torch == "True"


@pytest.mark.parametrize("module", LOADED)
def test_an_import_loads_no_more_than_its_room(module: str) -> None:
    files, torch = loaded_by(module)
    assert 1 < len(files) <= LOADED[module]
    assert torch == (module in WITH_TORCH)


def train_figures() -> tuple[int, int]:
    """Modules with code that training loads, and lines of all that it loads."""
    files = loaded_by("pipelines.train")[0].values()
    lines = [len(file.read_text(encoding="utf-8").splitlines()) for file in files]
    return sum(file.name != "__init__.py" for file in files), sum(lines)


def test_training_loads_what_every_training_needs() -> None:
    count, lines = train_figures()
    assert 30 < count <= TRAIN_MODULES
    assert lines <= TRAIN_LINES


def import_graph() -> dict[str, set[str]]:
    """Module -> modules of the project that it imports anywhere: at its top, in a function, or for
    type checking."""
    files = {_dotted(path): path for path in modules(*SHIPPED)}
    return {name: _imported(name, path, files) - {name} for name, path in files.items()}


def _dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _imported(name: str, path: Path, files: Mapping[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in files else base)
    return found & files.keys()


def circles(graph: Mapping[str, Iterable[str]]) -> Iterator[set[str]]:
    """Groups of two or more modules that reach one another: strongly connected components."""
    reach = {name: _reached(name, graph) for name in graph}
    seen: set[str] = set()
    for name in graph:
        if name not in seen and name in reach[name]:
            circle = {other for other in reach[name] if name in reach[other]}
            seen |= circle
            yield circle


def _reached(name: str, graph: Mapping[str, Iterable[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph[name])
    while waiting:
        other = waiting.pop()
        if other not in reached:
            reached.add(other)
            waiting += graph[other]
    return reached


def test_no_files_import_one_another_in_a_circle() -> None:
    assert list(circles({"a": ["b"], "b": ["c"], "c": ["b"], "d": ["a"]})) == [{"b", "c"}]
    graph = import_graph()
    assert sum(map(len, graph.values())) > 300
    assert [sorted(circle) for circle in circles(graph)] == []


_LOSS = """
import sys, traceback
from pathlib import Path
from medclip_dcl.training import objective
from testing.corpus import write_config, write_corpus
from pipelines.train import main

computed = objective.debiased_terms

def traced(*arguments, **options):
    frames = [Path(frame.filename).resolve() for frame in traceback.extract_stack()]
    root = Path.cwd()
    own = [file.relative_to(root) for file in frames if file.is_file() and root in file.parents]
    print("STACK", *dict.fromkeys(map(str, own)), "medclip_dcl/losses/debiased.py")
    raise SystemExit(0)

objective.debiased_terms = traced
work = write_corpus(Path({work!r}))
main(["--config", str(write_config(work / "config.yaml", work, train={{"steps": 1}}))])
"""


def loss_stack(work: Path) -> list[str]:
    """Files of the project on the call stack where a tiny training computes its first loss."""
    code = _LOSS.format(work=str(work))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("STACK ")]
    return line.split()[1:]


def test_the_loss_is_few_modules_below_the_command(tmp_path: Path) -> None:
    stack = loss_stack(tmp_path / "work")
    assert stack[-1] == "medclip_dcl/losses/debiased.py"
    assert "pipelines/train.py" in stack
    assert len(stack) <= STACK
