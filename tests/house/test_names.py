"""Modules of one concept each, named as a colleague would search for them."""

import ast
from collections import defaultdict

from tests.house.tree import CODE, HOSPITAL, ROOT, SHIPPED, modules, name_of, syntax, tracked

FORBIDDEN = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "base"}
OF_EVERY_JOB = {"main", "build", "command"}
LONGEST_FUNCTION = 60


def test_no_module_bears_a_name_that_says_nothing() -> None:
    found = modules()
    assert len(found) > 50
    assert [name_of(path) for path in found if path.stem in FORBIDDEN] == []


def test_no_public_name_stands_for_two_things() -> None:
    owners = defaultdict(list)
    for path in modules(*SHIPPED, HOSPITAL):
        for node in syntax(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                owners[node.name].append(name_of(path))
    assert len(owners) > 1000
    twice = {
        name: files
        for name, files in owners.items()
        if len(files) > 1 and not name.startswith("_") and name not in OF_EVERY_JOB
    }
    assert twice == {}


def test_every_test_file_names_its_module() -> None:
    tests = [path for path in tracked(".py") if path.name.startswith("test_")]
    mirrors = ((ROOT / "tests", ROOT), (ROOT / "hospital/tests", ROOT / HOSPITAL))
    rooms = {
        path: code / path.parent.relative_to(mirror)
        for path in tests
        for mirror, code in mirrors
        if path.is_relative_to(mirror)
    }
    known = [ROOT / folder for folder in CODE]
    rooms = {path: room for path, room in rooms.items() if any(map(room.is_relative_to, known))}
    assert len(rooms) > 180
    lost = []
    for path, room in rooms.items():
        below = [other for other in modules() if other.is_relative_to(room)]
        names = {room.name} | {name for other in below for name in (other.stem, other.parent.name)}
        own = f"{path.stem.removeprefix('test_')}_"
        if not any(own.startswith(f"{name.strip('_')}_") for name in names):
            lost.append(name_of(path))
    assert lost == []


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in modules()
        if path.relative_to(ROOT).parts[0] != "testing"  # a server made for tests is one function
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 - _docstring_lines(node) > LONGEST_FUNCTION
    ]
    assert long == []


def test_docstrings_begin_with_the_noun_that_one_would_search_for() -> None:
    riddles = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in modules(*SHIPPED, HOSPITAL)
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (ast.get_docstring(node) or "").startswith(("What ", "Where ", "How ", "Who "))
    ]
    assert riddles == []


def test_package_files_only_re_export() -> None:
    for path in modules():
        if path.name != "__init__.py" or path.parent.name == "medclip_dcl":
            continue
        kinds = {type(node) for node in syntax(path).body}
        assert kinds <= {ast.Expr, ast.ImportFrom, ast.Assign, ast.AugAssign}, name_of(path)


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    if ast.get_docstring(node) is None or not isinstance(first, ast.Expr):
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1
