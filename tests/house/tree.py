"""The files of the project, as git knows them."""

import ast
import functools
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import ROOT, ended

SHIPPED = ("medclip_dcl", "pipelines", "api")
"""Folders that the wheel has."""
HOSPITAL = "hospital/medclip_hospital"
"""Package of the distribution in `hospital/`."""
CODE = (*SHIPPED, HOSPITAL, "benchmarks", "tests/support")


@functools.cache
def files() -> tuple[Path, ...]:
    """Files under version control, or about to be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    paths = (ROOT / line for line in ended(command, cwd=ROOT).stdout.splitlines())
    return tuple(path for path in paths if path.is_file())


def tracked(*suffixes: str) -> tuple[Path, ...]:
    """Those with one of the suffixes; a link is its target's."""
    return tuple(path for path in files() if path.suffix in suffixes and not path.is_symlink())


def modules(*folders: str) -> tuple[Path, ...]:
    """Python files of the given folders."""
    chosen = [ROOT / folder for folder in folders or CODE]
    return tuple(path for path in tracked(".py") if any(map(path.is_relative_to, chosen)))


@functools.cache
def syntax(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def copy_files(folder: Path, without: Sequence[str] = ()) -> Path:
    """Copy them into a folder, but those below some of the tree's folders."""
    for path in files():
        name = path.relative_to(ROOT)
        if name.parts[0] not in without:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / name, follow_symlinks=False)
    return folder


def imported_by(node: ast.AST) -> list[str]:
    """Modules that a statement imports, by their whole names; relative ones left out."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        return [node.module]
    return []


def name_of(path: Path) -> str:
    """A path as people read it."""
    return path.relative_to(ROOT).as_posix()
