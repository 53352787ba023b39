"""Files are written by what writes them whole; nothing that others publish is taken on trust.

Other raw calls that stand in their gate alone are ruff's, in `pyproject.toml`.
"""

import ast
import re
from pathlib import Path

from tests.house.tree import HOSPITAL, ROOT, SHIPPED, modules, name_of, syntax

WRITERS = {"medclip_dcl/core/files.py", f"{HOSPITAL}/gateway/spool.py", "pipelines/init.py"}
"""Files that may open another for writing: the spool keeps what was written and fsynced, and the
preview of a table is its owner's alone from the first byte."""


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
