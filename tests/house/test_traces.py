"""The project speaks of itself alone: no machine, no workplace, no left-overs."""

import ast
import re

from tests.house.tree import HOSPITAL, SHIPPED, modules, name_of, syntax, tracked

FOREIGN = re.compile(r"/(?:work|root|home/[a-z]+|tmp/ceo)/|\.\./(?:shared)|\+(?:cpu)\b")
SUFFIXES = (".py", ".md", ".yaml", ".yml", ".toml", ".cfg", ".sh", ".html", ".js", ".css", ".lock")
SUFFIXES += (".cff",)


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    files = [path for path in tracked(*SUFFIXES) if ".ci" not in path.parts]
    assert len(files) > 80
    found = [
        f"{name_of(path)}: {match.group()}"
        for path in files
        if path.name not in {"test_traces.py", "cpu.lock"}  # which is of torch's CPU build
        and (match := FOREIGN.search(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_no_refusal_names_a_python_class() -> None:
    shown = re.compile(r"type\(\w+\)\.__name__|__class__|\{\w+!r\} from error")
    refusals = [
        (path, node)
        for path in modules(*SHIPPED, HOSPITAL)
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Raise | ast.Assign)
    ]
    assert sum(isinstance(node, ast.Raise) for _, node in refusals) > 500
    named = [item for item in refusals if shown.search(ast.unparse(item[1]))]
    assert [f"{name_of(path)}:{node.lineno}" for path, node in named] == []


def test_the_lock_installs_on_every_machine() -> None:
    (lock,) = (path for path in tracked(".lock") if path.name == "requirements.lock")
    names = {line.split("==")[0] for line in lock.read_text().splitlines() if line[0] != "#"}
    assert {"torch", "transformers", "pydicom", "fastapi", "pytest"} <= names
    assert names.isdisjoint({"torchvision", "torchaudio", "timm", "python-gdcm", "triton"})
    assert not any(name.startswith("nvidia-") for name in names)
