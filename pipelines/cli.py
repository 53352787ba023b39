"""What the command lines of all jobs and tools share: their options and their exit codes.

Exit codes
    0   done, or everything was valid already
    1   a fault of ours, with its trace
    2   configuration
    3   too many rejects
    4   a stale, missing or mismatched artifact
    75  stopped by a signal; run the same command again to go on
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from medclip_dcl.config import Config, load_config
from medclip_dcl.errors import MedclipError


def command_parser(name: str, *, config: bool | None = True) -> argparse.ArgumentParser:
    """Begin the parser of `python -m pipelines.NAME`.

    Args:
        name: job or tool.
        config: whether `--config` is required; None: the command takes neither it nor `--set`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m pipelines.{name}")
    if config is not None:
        parser.add_argument("--config", type=Path, required=config, help="a YAML file")
        parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser


def config_of(arguments: argparse.Namespace) -> Config:
    """Load what `--config` and `--set` name."""
    return load_config(arguments.config, arguments.set)


def run_command(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None,
) -> int:
    """Parse the arguments and do the work; an error is one line on stderr and an exit code."""
    arguments = parser.parse_args(argv)
    try:
        return work(arguments)
    except MedclipError as error:
        print(f"{parser.prog.rpartition('.')[2]}: {error}", file=sys.stderr)
        return error.exit_code
