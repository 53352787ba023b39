"""The stages of a run in the order in which data flows through them; print those of a config.

A new stage is a line here and a file of its name, whose `main` is the job.
"""

import argparse
import sys
from collections.abc import Sequence

from medclip_dcl.config import Config
from medclip_dcl.errors import ConfigError

from .cli import command_parser, config_of, run_command

_ALWAYS, _ON_REQUEST = True, False
_STAGES = {
    "generate_studies": _ON_REQUEST,  # studies with known truth, in MIMIC-CXR's own shape
    "build_manifest": _ALWAYS,  # raw studies -> one row per usable frontal image
    "prepare_images": _ALWAYS,  # DICOM or JPEG -> square 8-bit images
    "split_sentences": _ALWAYS,  # reports -> sentences
    "read_claims": _ALWAYS,  # sentences -> findings asserted, negated or hedged
    "fit_language_model": _ALWAYS,  # the corpus -> a masked language model
    "score_sentences": _ALWAYS,  # every distinct sentence -> its pseudo-log-likelihood, once
    "build_eta_cache": _ALWAYS,  # likelihood -> eta = min(a * p**k, eta_max), in seconds
    "train": _ALWAYS,  # images, sentences and eta -> a model, by one process or many
    "calibrate_scores": _ALWAYS,  # scores -> probabilities, by the validation images
    "evaluate": _ALWAYS,  # zero-shot findings, grounding, retrieval
    "write_cards": _ON_REQUEST,  # without intended use and limits no model is published
    "build_index": _ALWAYS,  # vectors of all images and sentences, bound to the model
    "ask_service": _ON_REQUEST,  # the service, started for real, answers three requests
    "write_report": _ALWAYS,  # one page to look at
}
STAGES = tuple(_STAGES)
"""The jobs in order."""
TOOLS = ("doctor", "plan", "check_data", "table1", "compare", "push_model")
"""Commands that answer a question; no config runs them by itself."""


def stages_of(config: Config) -> tuple[str, ...]:
    """Give the stages that a config runs, in order: those that `jobs` names, else all but a few.

    Raises:
        ConfigError: a name in `jobs` is not a stage.
    """
    unknown = set(config.jobs) - set(STAGES)
    if unknown:
        raise ConfigError(
            f"jobs names {sorted(unknown)}, which are not jobs; use those of {STAGES}"
        )
    if config.jobs:
        return tuple(name for name in STAGES if name in config.jobs)
    return tuple(name for name, always in _STAGES.items() if always)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the stages of a config on one line, for `full_run.sh`."""
    return run_command(command_parser("stages"), _print, argv)


def _print(arguments: argparse.Namespace) -> int:
    print(*stages_of(config_of(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
