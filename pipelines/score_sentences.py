"""Score every distinct sentence by its pseudo-log-likelihood.

Reads sentences and language_model, writes likelihoods. The expensive job: every finished
unit of work is kept, so a killed run resumes where it stopped and ends with the same bits.
Every core of a CPU, or every GPU of the machine, takes a share.
"""

import sys

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ArtifactError
from medclip_dcl.likelihood import scoring

from .job import Job, job_main


def build(job: Job) -> None:
    """Make the likelihoods."""
    inputs, config = job.open_inputs(), job.config
    corpus = scoring.CorpusScoring(
        inputs.values["sentences"],
        inputs.values["language_model"],
        config.likelihood,
        job.say,
        config.workers,
    )
    job.make(
        scoring.ARTIFACT,
        corpus.choose_engine(_existing(job)),
        inputs.digests,
        lambda writer: corpus.write(writer.directory),
    )


def _existing(job: Job) -> Artifact | None:
    try:
        return job.open(scoring.ARTIFACT, verify=False)
    except ArtifactError:
        return None


main = job_main("score_sentences", build)

if __name__ == "__main__":
    sys.exit(main())
