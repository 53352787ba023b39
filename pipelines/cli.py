"""What the commands of all jobs and tools share: their options and their exit codes.

Exit codes
    0   done, or everything was valid already
    1   a fault of the program, with its type and frames
    2   configuration
    3   too many rejects
    4   a stale, missing or mismatched artifact
    75  stopped by a signal; run the same command again to go on
"""

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand
from typer.main import get_command

from medclip_dcl.core.errors import ArtifactMissing, MedclipError, withhold_messages
from medclip_dcl.core.progress import FORMAT

if TYPE_CHECKING:  # half a second that `--help` does not wait for
    from .config import Config

_FILE = "A YAML file; `configs/...` that is not here comes with the package."
ConfigFile = Annotated[Path, typer.Option("--config", metavar="FILE", help=_FILE)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated."),
]


Force = Annotated[
    bool, typer.Option("--force", help="Make it again, valid or not: after a change of the code.")
]
Replace = Annotated[
    bool,
    typer.Option("--replace", help="Replace a finished model that other settings have made."),
]
Log = Annotated[
    Literal["words", "json"] | None,
    typer.Option("--log", help="What it reports off a terminal: words, or JSON lines."),
]


def set_log(log: str | None) -> None:
    """Let this process, and those that it starts, report in words or as JSON."""
    if log is not None:
        os.environ[FORMAT] = log


def config_of(config: Path, overrides: Sequence[str] | None) -> "Config":
    """Load what `--config` and `--set` name."""
    from .config import load_config

    return load_config(config, overrides or ())


def run_folder(run: Path) -> Path:
    """Return the folder of a run, which is named by itself or by its config.

    ArtifactMissing where it is neither.
    """
    if run.is_dir():
        return run
    from medclip_dcl.core.files import find_config
    from medclip_dcl.core.settings import resolve_path

    if not find_config(run).is_file() or run.suffix.lower() not in {"", ".yaml", ".yml"}:
        raise ArtifactMissing(
            f"{run} is neither the folder of a run nor a config in YAML; medclip run CONFIG makes "
            "one, and a browser opens its report.html"
        )
    config = config_of(run, ())
    return resolve_path(config.work, config.work)


def sibling(package: str) -> str:
    """Name a package next to this one: `api` in the checkout, `medclip_dcl.api` in the wheel."""
    return ".".join([*(__package__ or "").split(".")[:-1], package])


def reuse_memory() -> None:
    """Keep memory as the service does: glibc would map the activations of each pass again."""
    importlib.import_module(f"{sibling('api')}.memory").keep_memory()


def make_command(function: Callable[..., int], name: str, **settings: Any) -> TyperCommand:
    """Make a command whose options are a function's parameters; `settings` are those of click.

    An error of ours is one line on stderr and its exit code.
    """

    @functools.wraps(function)
    def guarded(*arguments: object, **options: object) -> None:
        withhold_messages()
        try:
            code = function(*arguments, **options)
        except MedclipError as error:
            print(f"{name}: {error}", file=sys.stderr)
            code = error.exit_code
        raise typer.Exit(code)

    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    app.command(name, context_settings=settings)(guarded)
    command = get_command(app)
    assert isinstance(command, TyperCommand)
    return command
