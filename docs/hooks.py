"""What the site has besides the pages in docs/: pages from the code, and the folders' READMEs.

A README keeps its place in the repository and is `code/FOLDER/README.md` on the site; links
between pages are rewritten to that. A link to a file that is no page becomes its plain label.
`<!-- file: PATH -->` becomes that file's text.
"""

import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the documents of the checkout, not of an installed package

NOTEBOOK = "examples/trained_model.ipynb"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]*)(#[^)\s]*)?\)")
_FILE = re.compile(r"<!-- file: (\S+) -->")
_PICTURES = {".jpg", ".png", ".svg"}


def _tracked() -> list[str]:
    tree = importlib.import_module("tests.house.tree")
    return [tree.name_of(path) for path in tree.tracked(".md", *_PICTURES)]


def _site_path(name: str) -> str:
    """Where a file of the repository is on the site."""
    if name == NOTEBOOK:
        return "tutorials/trained_model.md"
    return name.removeprefix("docs/") if name.startswith("docs/") else f"code/{name}"


def _repository_path(uri: str) -> str:
    return uri.removeprefix("code/") if uri.startswith("code/") else f"docs/{uri}"


def _settings() -> str:
    documents = importlib.import_module("tests.house.documents")
    return (
        "# Settings\n\nBy dotted name: `--set train.steps=100`, or a key of a YAML file.\n\n"
        f"{documents.settings_table()}\n"
    )


def _errors() -> str:
    documents = importlib.import_module("tests.house.documents")
    text = importlib.import_module("pipelines.cli").__doc__ or ""
    codes = re.findall(r"^    (\d+)\s+(.+)$", text, re.MULTILINE)
    table = "\n".join(f"| {code} | {meaning} |" for code, meaning in codes)
    return (
        f"# Exit codes and errors\n\n| exit code | meaning |\n|---|---|\n{table}\n\n"
        f"## Errors\n\n{documents.errors_table()}\n"
    )


def _routes() -> str:
    from api.app import create_app
    from api.settings import ServeSettings

    document = create_app(ServeSettings(model="model", allow_anonymous=True)).openapi()
    lines = ["# Routes and answers", "", "From the service's own OpenAPI document."]
    for path, methods in document["paths"].items():
        for method, facts in methods.items():
            about = facts.get("description") or facts.get("summary", "")
            lines += ["", f"## `{method.upper()} {path}`", "", about, "", "| status | answer |"]
            lines += ["|---|---|"]
            lines += [
                f"| {status} | {_cell(answer['description'])} |"
                for status, answer in sorted(facts["responses"].items())
            ]
    lines += ["", "## Answers", "", "| answer | field | meaning |", "|---|---|---|"]
    for name, schema in document["components"]["schemas"].items():
        for field, facts in schema.get("properties", {}).items():
            lines.append(f"| {name} | `{field}` | {_cell(facts.get('description', ''))} |")
    return "\n".join(lines) + "\n"


def _troubleshooting() -> str:
    from api.errors import ERRORS, IMAGE_STATUS
    from medclip_dcl.data.limits import REASONS

    rows = [(status, code, line) for code, (status, line) in ERRORS.items()]
    rows += [(IMAGE_STATUS.get(code, 422), code, line) for code, line in REASONS.items()]
    table = "\n".join(f"| `{code}` | {status} | {_cell(line)} |" for status, code, line in rows)
    documents = importlib.import_module("tests.house.documents")
    return (
        "# Troubleshooting by error code\n\nThe service answers a request that fails with a code, "
        "a line and the id that its log knows it by.\n\n| code | status | what to do |\n"
        f"|---|---|---|\n{table}\n\n## Rejects\n\n{documents.reasons_table()}"
    )


def _command() -> str:
    from pipelines.__main__ import COMMANDS

    parts = [
        "# The command",
        "`medclip NAME --help` has the options of each. In the checkout, "
        "`python -m pipelines NAME` is the same. [Exit codes](errors.md).",
    ]
    for panel, names in COMMANDS.items():
        rows = "\n".join(f"| `medclip {name}` | {_cell(line)} |" for name, line in names.items())
        parts.append(f"## {panel}\n\n| command | does |\n|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def _api() -> str:
    package = importlib.import_module("medclip_dcl")
    parts = ["# Python API", "Public names of `medclip_dcl`; each is loaded on first use."]
    parts += [f"::: medclip_dcl.{package._HOMES[name]}.{name}" for name in sorted(package._HOMES)]
    parts.append("::: medclip_dcl.client.Client")
    return "\n\n".join(parts) + "\n"


def _notebook() -> str:
    cells = json.loads((ROOT / NOTEBOOK).read_text("utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            else:
                picture = "".join(output["data"]["image/png"].split())
                parts.append(f"![Output of the cell above](data:image/png;base64,{picture})")
    return "\n\n".join(parts) + "\n"


_GENERATED: dict[str, Callable[[], str]] = {
    "reference/api.md": _api,
    "reference/command.md": _command,
    "reference/errors.md": _errors,
    "reference/routes.md": _routes,
    "reference/settings.md": _settings,
    "reference/troubleshooting.md": _troubleshooting,
    "tutorials/trained_model.md": _notebook,
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for uri, make in _GENERATED.items():
        files.append(File.generated(config, uri, content=make()))
    for name in _tracked():
        if not name.startswith("docs/"):
            path = str(ROOT / name)
            files.append(File.generated(config, _site_path(name), abs_src_path=path))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Rewrite links for the site, and put files in."""
    uri = page.file.src_uri
    if uri in _GENERATED:
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

    def inserted(match: re.Match[str]) -> str:
        text = (ROOT / match[1]).read_text(encoding="utf-8").rstrip()
        return f"```python\n{text}\n```"

    return _FILE.sub(inserted, _LINK.sub(rewrite, markdown))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
