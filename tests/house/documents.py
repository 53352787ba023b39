"""Tables in the READMEs that are made from the code: settings, jobs, columns, errors.

`make docs` writes them; a house test holds them.
"""

import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic.fields import FieldInfo

from medclip_dcl import artifacts, errors
from medclip_dcl.artifacts.tables import Column, TableFormat
from medclip_dcl.config import Config, Section
from pipelines.__main__ import job_summaries

ROOT = Path(__file__).parents[2]


def settings_table() -> str:
    """One row per field of the schema."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in _leaves(Config, ""):
        default = "required" if field.is_required() else f"`{_shown(field.default)}`"
        rows.append(f"| `{name}` | {default} | {' '.join((field.description or '').split())} |")
    return "\n".join(rows)


def jobs_table() -> str:
    """One row per job."""
    rows = ["| job | does |", "|---|---|"]
    rows += [f"| `{name}` | {line} |" for name, line in job_summaries().items()]
    return "\n".join(rows)


def columns_table() -> str:
    """One row per column of every artifact's tables."""
    rows = ["| artifact | file | column | type | meaning |", "|---|---|---|---|---|"]
    for info in sorted(pkgutil.iter_modules(artifacts.__path__), key=lambda item: item.name):
        module = importlib.import_module(f"medclip_dcl.artifacts.{info.name}")
        kind = getattr(module, "KIND", None)
        if kind is None:
            continue
        for file, columns in _tables(module):
            rows += [
                f"| `{kind.name}` | `{file}` | `{column.name}` | {column.type} | {column.meaning} |"
                for column in columns
            ]
    return "\n".join(rows)


def errors_table() -> str:
    """One row per exception."""
    rows = ["| error | exit code | raised when |", "|---|---|---|"]
    for name, item in vars(errors).items():
        if inspect.isclass(item) and issubclass(item, errors.MedclipError):
            line = (item.__doc__ or "").splitlines()[0]
            rows.append(f"| `{name}` | {item.exit_code} | {line} |")
    return "\n".join(rows)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "settings": ("configs/README.md", settings_table),
    "jobs": ("pipelines/README.md", jobs_table),
    "columns": ("medclip_dcl/artifacts/README.md", columns_table),
    "errors": ("medclip_dcl/README.md", errors_table),
}


def with_table(text: str, name: str, table: str) -> str:
    """Put a table between the marks that bear its name."""
    marks = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end of table -->)", re.DOTALL)
    if not marks.search(text):
        raise ValueError(f"no marks for table {name}")
    return marks.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text)


def _leaves(section: type[Section], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if inspect.isclass(kind) and issubclass(kind, Section):
            yield from _leaves(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return str(value) if value != "" else '""'


def _tables(module: types.ModuleType) -> Iterator[tuple[str, tuple[Column, ...]]]:
    for item in vars(module).values():
        if isinstance(item, TableFormat):
            yield item.file, item.columns
    columns = getattr(module, "COLUMNS", None)
    if isinstance(columns, tuple) and all(isinstance(item, Column) for item in columns):
        yield "shard-*.arrow", typing.cast("tuple[Column, ...]", columns)


def main() -> None:
    """Write every table into its README."""
    for name, (file, make) in TABLES.items():
        path = ROOT / file
        path.write_text(with_table(path.read_text("utf-8"), name, make()), "utf-8")
        print(f"{file}: {name}")


if __name__ == "__main__":
    main()
