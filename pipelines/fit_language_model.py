"""Fit the masked language model that scores the sentences.

Reads sentences, writes language_model with its card, and reports what share of the masked word
pieces of held-out reports it restores. Trains a small BERT on the training split, or
fine-tunes `language_model.pretrained`, or takes that as it is (`language_model.steps: 0`).
A killed fit resumes from its last saved state.
"""

import sys

from medclip_dcl.core.artifact import json_digest
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.likelihood import fitting, masked_lm

from .job import Job, job_main


def build(job: Job) -> None:
    """Make the language model."""
    settings, seed = job.config.language_model, job.config.seed
    given = resolve_path(settings.pretrained, job.config.work) if settings.pretrained else None
    digest = json_digest(masked_lm.checkpoint_digests(given)) if given else ""
    if settings.steps:
        inputs = job.open_inputs()
        job.make(
            masked_lm.ARTIFACT,
            {"language_model": fitting.weight_settings(settings), "seed": seed},
            {**inputs.digests, "pretrained": digest},
            lambda writer: fitting.fit_language_model(
                writer.directory, inputs.values["sentences"], settings, given, digest, seed
            ),
        )
    elif given is None:
        raise ConfigError("language_model.steps is 0 and no pretrained is set; set one of them")
    else:
        job.make(
            masked_lm.ARTIFACT,
            {"fit": False},
            {"pretrained": digest},
            lambda writer: fitting.copy_language_model(writer.directory, given, digest),
        )


main = job_main("fit_language_model", build)

if __name__ == "__main__":
    sys.exit(main())
