"""From sentences to eta: a language model, its likelihoods, the class probability of each."""

from contextlib import suppress

from medclip_dcl.core.artifact import Artifact, json_digest
from medclip_dcl.core.errors import ArtifactError, ArtifactMissing, ConfigError
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.likelihood import eta, fitting, masked_lm, scoring
from medclip_dcl.text import sentences

from .job import Job


def fit_language_model(job: Job) -> None:
    """Fit the masked language model that scores the sentences.

    Reads sentences, writes language_model with its card, and reports what share of the masked word
    pieces of held-out reports it restores. Trains a small BERT on the training split, or
    fine-tunes `language_model.pretrained`, or takes that as it is (`language_model.steps: 0`).
    A killed fit resumes from its last saved state.
    """
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


def score_sentences(job: Job) -> None:
    """Score every distinct sentence by its pseudo-log-likelihood.

    Reads sentences and language_model, writes likelihoods. The expensive job: every finished
    unit of work is kept, so a killed run resumes where it stopped and ends with the same bits.
    Every core of a CPU, or every GPU of the machine, takes a share.
    """
    inputs, config = job.open_inputs(), job.config
    corpus = scoring.CorpusScoring(
        inputs.values["sentences"],
        inputs.values["language_model"],
        config.likelihood,
        job.say,
        config.workers,
    )
    existing = None
    with suppress(ArtifactError):
        existing = job.open(scoring.ARTIFACT, verify=False)
    job.make(
        scoring.ARTIFACT,
        corpus.choose_engine(existing),
        inputs.digests,
        lambda writer: corpus.write(writer.directory),
    )


def build_eta_cache(job: Job) -> None:
    """Turn likelihoods into the class probability eta of every distinct sentence.

    Reads sentences and, as `eta.source` asks, likelihoods or a table; writes eta_cache. Seconds: a,
    k and the cap change without rescoring.
    """
    settings, inputs = job.config.eta, job.open_inputs()
    opened = {name: item for name, item in inputs.values.items() if isinstance(item, Artifact)}
    try:
        model = job.open(masked_lm.ARTIFACT, verify=False)
    except ArtifactMissing:  # the likelihoods may have been made elsewhere
        model = None
    if scoring.ARTIFACT.name in opened:
        # Those of another model, tokenizer, variant, dtype or splitter are refused by name.
        header = scoring.score_header(opened[sentences.ARTIFACT.name], model, job.config.likelihood)
        scoring.refuse_other_scores(opened[scoring.ARTIFACT.name], header)
    job.make(
        eta.ARTIFACT,
        {"eta": eta.used_settings(settings)},
        inputs.digests,
        lambda writer: eta.write_cache(
            writer.directory, settings, opened, inputs.values.get("table")
        ),
    )
