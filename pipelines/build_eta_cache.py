"""Turn likelihoods into the class probability eta of every distinct sentence.

Reads sentences and, as `eta.source` and `eta.fit` ask, likelihoods, claims with labels, or a table;
writes eta_cache. Seconds: a, k and the cap change without rescoring.

Warns where the paper's a and k meet a language model that was fitted here, and the false negatives
that they expect are far from what the claims of the training reports show.
"""

import sys
from collections.abc import Mapping

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ArtifactError, ArtifactMissing
from medclip_dcl.core.tables import read_table
from medclip_dcl.likelihood import eta, eta_sources, masked_lm, scoring
from medclip_dcl.likelihood.eta_fit import mean_eta, measure_shares
from medclip_dcl.likelihood.settings import EtaConfig
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels

from .job import Job, job_main

_FAR = 2.0
"""Ratio of assumed and measured false negatives from which on they are far apart."""


def build(job: Job) -> None:
    """Make the eta cache."""
    settings, inputs = job.config.eta, job.open_inputs()
    opened = {name: item for name, item in inputs.values.items() if isinstance(item, Artifact)}
    if scoring.ARTIFACT.name in opened:
        _refuse_other_scores(job, opened)
    cache = job.make(
        eta.ARTIFACT,
        {"eta": eta_sources.used_settings(settings)},
        inputs.digests,
        lambda writer: eta_sources.write_cache(
            writer.directory, settings, opened, inputs.values.get("table")
        ),
    )
    if reason := cache.summary.get("fit_obstacle"):
        a, k = cache.summary["a"], cache.summary["k"]
        job.say(warning=f"a and k are not fitted but {a:g} and {k:g}: {reason}")
    if _is_the_papers_line(job) and _is_fitted_here(job):
        _warn_where_far(job, opened[sentences.ARTIFACT.name], cache)


def _is_the_papers_line(job: Job) -> bool:
    given, paper = job.config.eta, EtaConfig()
    names = ("source", "fit", "a", "k")
    return all(getattr(given, name) == getattr(paper, name) for name in names)


def _is_fitted_here(job: Job) -> bool:
    try:
        return bool(job.open(masked_lm.ARTIFACT, verify=False).summary.get("fitted"))
    except ArtifactMissing:  # the likelihoods may have been made elsewhere
        return False


def _warn_where_far(job: Job, texts: Artifact, cache: Artifact) -> None:
    try:
        shares = measure_shares(texts, job.open(labels.ARTIFACT), "claims", None)
    except ArtifactError:  # no claims, or those of other sentences: nothing to hold it against
        return
    values = read_table(cache.path, eta.ETA, ["eta"])["eta"].to_numpy()
    assumed, measured = mean_eta(values, shares, job.config.eta.eta_max)
    _, uncapped = mean_eta(values, shares, 1.0)
    negatives = job.config.train.global_batch - 1
    if max(assumed, measured) > _FAR * min(assumed, measured):
        job.say(  # the report's section on eta has it too
            note=f"a and k are the paper's, for CXR-BERT, and the language model was fitted "
            f"here: eta expects {negatives * assumed:.2g} false negatives of {negatives}, the "
            f"claims of the training reports show {negatives * uncapped:.2g}, "
            f"{negatives * measured:.2g} with each share cut at eta.eta_max; set eta.fit=claims"
        )


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
