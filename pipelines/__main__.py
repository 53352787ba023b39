"""`medclip`, in the checkout also `python -m pipelines`: one command for everything.

A stage or a tool is imported when it is run: `--help` waits for none of them.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from medclip_dcl.errors import withhold_messages

from .cli import ConfigFile, Force, Overrides, Replace, make_command, run_folder, sibling
from .stages import STAGES, TOOLS

_SERVED = Path("configs/serve.yaml")
_DEMO = Path("configs/demo.yaml")
Config = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A YAML file, or a name such as `demo`.")
]
ForcedStages = Annotated[
    list[str] | None,
    typer.Option(
        "--force",
        metavar="STAGE",
        help="Make a stage's artifact again, valid or not, and what depends on it: after a change "
        "of the code; may be repeated.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Write errors alone.")]


COMMANDS = {
    "Begin here": {
        "demo": "every stage on generated studies, in minutes",
        "run": "every stage of a config; what is valid already is reused",
        "show": "the figures of a run, and its report",
        "serve": "the service and its viewer, on a run's model; the demo's without a run",
        "ask": "ask a running service: classify, ground, embed, retrieve",
        "report": "a DICOM image's answer as DICOM objects, for the viewer of a hospital",
        "gateway": "images from a PACS in, DICOM answers out",
    },
    "Stages": STAGES,
    "Tools": TOOLS,
}
"""Every command by its panel of the help, with its line."""


class _LazyGroup(TyperGroup):
    """Replaces the name of a stage or tool by its command once it is asked for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and _load(name or "", command), rest


def _load(name: str, listed: Any) -> Any:
    # The module is imported only now; its function becomes the command.
    if name in _OWN:
        return make_command(_OWN[name], name)
    if name in _ASKED:
        return listed
    module = importlib.import_module(f".{name}", __package__)
    if hasattr(module, "command"):
        return make_command(module.command, name, module.__doc__)
    job = importlib.import_module(".job", __package__)
    return make_command(job.job_command(name, module.build), name, module.__doc__)


def _demo(overrides: Overrides = None, replace: Replace = False, quiet: Quiet = False) -> int:
    """Run the whole story on generated studies, in minutes, then its report."""
    from .run import run_config

    return run_config(_DEMO, overrides, replace=replace, quiet=quiet)


def _run(
    config: Config,
    overrides: Overrides = None,
    force: ForcedStages = None,
    replace: Replace = False,
    quiet: Quiet = False,
) -> int:
    """Run every stage of a config; what is valid already is reused."""
    from .run import run_config

    return run_config(config, overrides, force=force or (), replace=replace, quiet=quiet)


def _train(
    config: ConfigFile, overrides: Overrides = None, force: Force = False, replace: Replace = False
) -> int:
    """Train a model, with as many processes as the config asks for."""
    from .run import run_train

    return run_train(config, overrides, force=force, replace=replace)


def _serve(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", help="Folder of a run, or its config; instead of --config's."
        ),
    ] = None,
    config: ConfigFile = _SERVED,
    host: Annotated[str | None, typer.Option(help="Address to bind.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind; 0: a free one.")] = None,
) -> int:
    """Start the service and its viewer, on a run's model; the demo's without a run."""
    service = sibling("api")
    # Before a library starts its first thread, which would get a heap of its own.
    importlib.import_module(f"{service}.memory").keep_memory()
    words = ["--config", str(config)]
    words += [] if run is None else ["--run", str(run_folder(run))]
    words += [] if host is None else ["--host", host]
    words += [] if port is None else ["--port", str(port)]
    code: int = importlib.import_module(f"{service}.launcher").main(words)
    return code


def _ask(ctx: typer.Context) -> None:
    """Ask a running service: `classify`, `ground`, `embed` or `retrieve`."""
    from medclip_dcl.client import main as ask

    raise typer.Exit(ask(ctx.args, prog="medclip ask"))


def _gateway(ctx: typer.Context) -> None:
    """Run the gateway, or ask for its `status`; `retry` and `forget` images."""
    gateway = importlib.import_module(f"{sibling('gateway')}.__main__")
    raise typer.Exit(gateway.main(ctx.args, prog="medclip gateway"))


_ASKED = {"ask": _ask, "gateway": _gateway}
"""Commands that read their arguments themselves."""
_OWN: dict[str, Callable[..., int]] = {"demo": _demo, "run": _run, "train": _train, "serve": _serve}


def _app() -> typer.Typer:
    app = typer.Typer(
        cls=_LazyGroup,
        help="Train, evaluate and serve medical image-text models. Research use only.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
    )
    for panel, names in COMMANDS.items():
        for name, line in names.items():
            function = _ASKED.get(name, _placeholder)
            settings = {"ignore_unknown_options": True, "allow_extra_args": True}
            app.command(
                name,
                help=line,
                rich_help_panel=panel,
                context_settings=settings,
                add_help_option=name not in _ASKED,
            )(function)
    return app


def _placeholder() -> None:
    """Stand for a command that is not imported yet."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    withhold_messages()
    try:
        get_command(_app())(argv, prog_name="medclip")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
