"""Print the jobs of a recipe on one line, for `full_run.sh`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from medclip_dcl.config import Config, load_config
from medclip_dcl.errors import ConfigError, MedclipError
from pipelines.__main__ import STAGES

_ASKED_FOR = {
    "generate_studies",
    "ask_service",
    "prepare_image_set",
    "probe_images",
    "write_cards",
}
"""Jobs that a recipe has to name."""


def stages_of(config: Config) -> tuple[str, ...]:
    """Give the jobs of a recipe, in order.

    Args:
        config: the recipe.

    Returns:
        The names in `config.jobs`; where it names none, all jobs but `generate_studies`,
        `write_cards`, `ask_service` and those of the image-only experiment.

    Raises:
        ConfigError: a name is no job.
    """
    unknown = set(config.jobs) - set(STAGES)
    if unknown:
        raise ConfigError(f"jobs names {sorted(unknown)}, which are no jobs; use those of {STAGES}")
    if config.jobs:
        return tuple(name for name in STAGES if name in config.jobs)
    return tuple(name for name in STAGES if name not in _ASKED_FOR)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the jobs of the recipe that `--config` names.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m pipelines.story")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args(argv)
    try:
        print(*stages_of(load_config(arguments.config, arguments.set)))
    except MedclipError as error:
        print(f"story: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
