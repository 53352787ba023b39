"""What the site has besides the pages in docs/: pages from the code, and the folders' READMEs.

A README keeps its place in the repository and is `code/FOLDER/README.md` on the site; links
between pages are rewritten to that. A link to a file that is no page becomes its plain label.
`<!-- table: NAME -->` becomes a table of results.
"""

import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from docs.pages import NOTEBOOK, PAGES  # noqa: E402
from docs.tables import with_tables  # noqa: E402
from tests.house.tree import name_of, tracked  # noqa: E402

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]*)(#[^)\s]*)?\)")
_PICTURES = {".jpg", ".png", ".svg"}


def _tracked() -> list[str]:
    return [name_of(path) for path in tracked(".md", *_PICTURES)]


def _site_path(name: str) -> str:
    """Where a file of the repository is on the site."""
    if name == NOTEBOOK:
        return "trained_model.md"
    return name.removeprefix("docs/") if name.startswith("docs/") else f"code/{name}"


def _repository_path(uri: str) -> str:
    return uri.removeprefix("code/") if uri.startswith("code/") else f"docs/{uri}"


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for uri, make in PAGES.items():
        files.append(File.generated(config, uri, content=make()))
    for name in _tracked():
        if not name.startswith("docs/"):
            path = str(ROOT / name)
            files.append(File.generated(config, _site_path(name), abs_src_path=path))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Rewrite links for the site, and put tables in."""
    uri = page.file.src_uri
    if uri in PAGES:
        return markdown
    here = PurePosixPath(_repository_path(uri)).parent

    def rewrite(match: re.Match[str]) -> str:
        mark, label, target, anchor = match.groups()
        name = os.path.normpath(here / target)
        found = _site_path(name)
        if files.get_file_from_path(found) is None:
            return label
        relative = os.path.relpath(found, PurePosixPath(uri).parent)
        return f"{mark}[{label}]({relative}{anchor or ''})"

    return _LINK.sub(rewrite, with_tables(markdown))
