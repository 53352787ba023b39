"""Conventions that no linter has: who writes files, what is trusted, and no trace of a machine.

Raw calls that stand in their gate alone are ruff's, in `pyproject.toml`.
"""

import ast
import re
import sys
from pathlib import Path

from tests.house.tree import HOSPITAL, ROOT, SHIPPED, modules, name_of, syntax, tracked
from tests.support.processes import ended

FOREIGN = re.compile(r"/(?:work|root|home/[a-z]+|tmp/ceo)/|\.\./(?:shared)|\+(?:cpu)\b")
SUFFIXES = (".py", ".md", ".yaml", ".yml", ".toml", ".cfg", ".sh", ".html", ".js", ".css", ".lock")
SUFFIXES += (".cff",)
WRITERS = {"medclip_dcl/core/files.py", f"{HOSPITAL}/gateway/spool.py", "pipelines/init.py"}
"""Files that may open another for writing: the spool keeps what was written and fsynced, and the
preview of a table is its owner's alone from the first byte."""


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    files = [path for path in tracked(*SUFFIXES) if ".ci" not in path.parts]
    assert len(files) > 80
    found = [
        f"{name_of(path)}: {match.group()}"
        for path in files
        if path.name not in {"test_conventions.py", "cpu.lock"}  # which is of torch's CPU build
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


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    found = (node for node in ast.walk(syntax(path)) if isinstance(node, ast.Call))
    return [(ast.unparse(node.func), node) for node in found]


def opens_for_writing(name: str, call: ast.Call) -> bool:
    if name.endswith((".write_text", ".write_bytes")):
        return not name.startswith("files.")
    modes = {"'w'", "'wb'", "'x'", "'xb'"}
    given = {ast.unparse(item) for item in (*call.args, *(word.value for word in call.keywords))}
    return (name == "open" or name.endswith(".open")) and not modes.isdisjoint(given)


def test_files_are_written_whole_or_not_at_all() -> None:
    writers = {
        name_of(path)
        for path in modules(*SHIPPED, HOSPITAL)
        for name, call in calls(path)
        if opens_for_writing(name, call)
    }
    assert writers <= WRITERS


def test_remote_code_is_never_trusted() -> None:
    trusted = {
        name_of(path): ast.unparse(word.value)
        for path in modules()
        for _, call in calls(path)
        for word in call.keywords
        if word.arg == "trust_remote_code"
    }
    assert set(trusted.values()) <= {"False"}, trusted


def test_actions_are_named_by_commit_and_libraries_we_reach_into_are_capped() -> None:
    used = [
        line.strip()
        for path in (ROOT / ".github/workflows").glob("*.yaml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert used
    assert all(re.fullmatch(r"- uses: [\w/-]+@[0-9a-f]{40} # v[\d.]+", line) for line in used)
    named = (ROOT / "pyproject.toml").read_text()
    for library in ("uvicorn", "pynetdicom", "highdicom"):
        found = re.findall(rf'"{library}>=([^"]*)"', named)
        assert found
        assert all(re.search(r",<\d+\.\d+$", versions) for versions in found)


def test_every_benchmark_can_be_imported() -> None:
    """Types are checked in shipped code alone: what was renamed under a benchmark shows here."""
    files = [*modules("benchmarks"), ROOT / "hospital/benchmark.py"]
    names = [name_of(path).removesuffix(".py").replace("/", ".") for path in files]
    code = f"import importlib; [importlib.import_module(name) for name in {names}]"
    run = ended([sys.executable, "-W", "error", "-c", code.replace(".__init__", "")], cwd=ROOT)
    assert run.returncode == 0, run.stderr
