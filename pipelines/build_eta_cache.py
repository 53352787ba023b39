"""Turn likelihoods into the class probability eta of every distinct sentence.

Reads sentences and, as `eta.source` asks, likelihoods or a table; writes eta_cache. Seconds: a, k
and the cap change without rescoring. Notes where the paper's a and k meet a language model that was
fitted here.
"""

import sys
from collections.abc import Mapping

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ArtifactMissing
from medclip_dcl.likelihood import eta, masked_lm, scoring
from medclip_dcl.likelihood.settings import EtaConfig
from medclip_dcl.text import sentences

from .job import Job, job_main


def build(job: Job) -> None:
    """Make the eta cache."""
    settings, inputs = job.config.eta, job.open_inputs()
    opened = {name: item for name, item in inputs.values.items() if isinstance(item, Artifact)}
    if scoring.ARTIFACT.name in opened:
        _refuse_other_scores(job, opened)
    job.make(
        eta.ARTIFACT,
        {"eta": eta.used_settings(settings)},
        inputs.digests,
        lambda writer: eta.write_cache(
            writer.directory, settings, opened, inputs.values.get("table")
        ),
    )
    if _is_the_papers_line(job) and _is_fitted_here(job):
        job.say(
            note="a and k are the paper's, for CXR-BERT, and the language model was fitted here: "
            "its likelihoods have another scale. The report shows how many false negatives eta "
            "expects; search eta.a and eta.k with configs/sweeps/a_k.yaml"
        )


def _is_the_papers_line(job: Job) -> bool:
    given, paper = job.config.eta, EtaConfig()
    return (given.source, given.a, given.k) == (paper.source, paper.a, paper.k)


def _is_fitted_here(job: Job) -> bool:
    try:
        return bool(job.open(masked_lm.ARTIFACT, verify=False).summary.get("fitted"))
    except ArtifactMissing:  # the likelihoods may have been made elsewhere
        return False


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
