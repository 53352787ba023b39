"""`medclip`, in the checkout also `python -m pipelines`: one command for everything.

A stage or a tool is imported when it is run: `--help` waits for none of them.
"""

import importlib
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from medclip_dcl.core.errors import withhold_messages

from .cli import ConfigFile, make_command, reuse_memory, run_folder, sibling
from .stages import HEADINGS, LISTED, STAGES, function_of

_SERVED = Path("configs/serve.yaml")
# All words are those of the client's own parser.
_PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

COMMANDS = {
    heading: {name: item.line for name, item in LISTED.items() if item.heading == heading}
    for heading in HEADINGS
}
"""Every command by its heading of the help, with its line."""


class _LazyGroup(TyperGroup):
    """Replaces the name of a command by the command once it is asked for."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name.replace("-", "_"))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        _, command, rest = super().resolve_command(ctx, args)
        return command and command.name, command and _load(command.name or ""), rest


def _load(name: str) -> Any:
    # The module is imported only now; its function becomes the command.
    if name == "train":  # with as many processes as the config asks for
        from .run import run_train

        return make_command(run_train, name)
    function = function_of(name)
    if name in STAGES:
        from .job import job_command

        function = job_command(name, function)
    return make_command(function, name, **(_PASSED_ON if name == "ask" else {}))


def serve(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", help="Folder of a run or a model, or a config; instead of --config's."
        ),
    ] = None,
    config: ConfigFile = _SERVED,
    host: Annotated[str | None, typer.Option(help="Address to bind.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind; 0: a free one.")] = None,
) -> int:
    """Start the service and its viewer, on a run's model; the demo's without a run."""
    reuse_memory()  # before a library starts its first thread, which would get a heap of its own
    from medclip_dcl.core.artifact import HEADER  # not for the help

    words = ["--config", str(config)]
    if run is not None and (run / HEADER).is_file():
        words += ["--model", str(run)]
    elif run is not None:
        words += ["--run", str(run_folder(run))]
    words += [] if host is None else ["--host", host]
    words += [] if port is None else ["--port", str(port)]
    code: int = importlib.import_module(f"{sibling('api')}.launcher").main(words)
    return code


def config_schema() -> dict[str, Any]:
    """Make the JSON schema of a config, by which an editor completes and checks its YAML.

    `make` writes `configs/schema.json`, and the first line of every config names it. What a schema
    cannot say, such as which settings exclude each other, `medclip run` still checks.
    """
    from .config import Config

    tree = Config.model_json_schema()
    tree["title"] = "medclip-dcl config"
    tree["required"].remove("work")  # by default that of the file's name
    own = tree["properties"]
    own["jobs"]["items"] = {"enum": list(STAGES)}
    base = {"type": "string", "description": "Config that this one changes section by section."}
    tree["properties"] = {"base": base, **own}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **tree}


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"medclip-dcl {version('medclip-dcl')}")
        raise typer.Exit


def _show_schema(wanted: bool) -> None:
    if wanted:
        print(json.dumps(config_schema(), indent=1, ensure_ascii=False))
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            callback=_show_schema,
            is_eager=True,
            help="Print the JSON schema of a config, by which an editor completes and checks it.",
        ),
    ] = False,
) -> None:
    """Train, evaluate and serve medical image-text models. Research use only."""


def _app() -> typer.Typer:
    app = typer.Typer(cls=_LazyGroup, no_args_is_help=True, rich_markup_mode="markdown")
    app.callback()(_options)
    for heading, names in COMMANDS.items():
        for name, line in names.items():
            app.command(name, help=line, rich_help_panel=heading)(_placeholder)
    return app


def _placeholder() -> None:
    """Stand for a command that is not imported yet."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    withhold_messages()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["demo"]:
        words.insert(0, "run")
    try:
        get_command(_app())(words, prog_name="medclip")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
