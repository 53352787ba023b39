"""Turn likelihoods into the class probability eta of every distinct sentence.

Reads sentences and, as `eta.source` asks, likelihoods, claims with labels, or a table; writes
eta_cache. Seconds: a, k and the cap change without rescoring.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from medclip_dcl.artifact import Artifact
from medclip_dcl.config import resolve_path
from medclip_dcl.errors import ArtifactMissing, ConfigError
from medclip_dcl.files import sha256_file
from medclip_dcl.likelihood import eta, masked_lm, scoring
from medclip_dcl.text import sentences

from .job import Job, job_main


def build(job: Job) -> None:
    """Make the eta cache."""
    settings = job.config.eta
    inputs = {kind.name: job.open(kind) for kind in eta.inputs_of(settings.source)}
    if scoring.ARTIFACT.name in inputs:
        _refuse_other_scores(job, inputs)
    table = _table(job) if settings.source in {"table", "oracle"} else None
    job.make(
        eta.ARTIFACT,
        {"eta": eta.used_settings(settings)},
        {**inputs, **({"table": sha256_file(table)} if table else {})},
        lambda writer: eta.write_cache(writer.directory, settings, inputs, table),
    )


def _table(job: Job) -> Path:
    settings = job.config.eta
    table = resolve_path(settings.table, job.config)
    if not table.is_file():
        raise ConfigError(f"eta.source is {settings.source!r} and eta.table names no file")
    return table


def _refuse_other_scores(job: Job, inputs: Mapping[str, Artifact]) -> None:
    """Refuse likelihoods of another model, tokenizer, variant, dtype or splitter by name."""
    try:
        model = job.open(masked_lm.ARTIFACT, verify=False)
    except ArtifactMissing:  # the likelihoods may have been made elsewhere
        model = None
    source = inputs[sentences.ARTIFACT.name]
    header = scoring.score_header(source, model, job.config.likelihood)
    scoring.refuse_other_scores(inputs[scoring.ARTIFACT.name], header)


main = job_main("build_eta_cache", build)

if __name__ == "__main__":
    sys.exit(main())
