"""Score every distinct sentence by its pseudo-log-likelihood.

Reads sentences and language_model, writes likelihoods. The expensive job: every finished
unit of work is kept, so a killed run resumes where it stopped and ends with the same bits.
`accelerate launch` and `torchrun` give each GPU a process, on one node or on several that share
the folder `work`; without them the cores of a CPU share the work.
"""

import sys

from medclip_dcl.artifact import Artifact
from medclip_dcl.distributed import joined
from medclip_dcl.errors import ArtifactError
from medclip_dcl.likelihood import masked_lm, scoring
from medclip_dcl.text import sentences

from .job import Job, job_main


def build(job: Job) -> None:
    """Make the likelihoods."""
    with joined() as launch:
        verify = launch.is_main  # one process in many hashes every byte
        source = job.open(sentences.ARTIFACT, verify=verify)
        model = job.open(masked_lm.ARTIFACT, verify=verify)
        config = job.config
        run = scoring.CorpusScoring(
            source, model, config.likelihood, launch, job.say, config.workers
        )
        if not launch.is_main:
            run.follow()
            return
        try:
            job.make(
                scoring.ARTIFACT,
                run.choose_engine(_existing(job)),
                {"sentences": source, "language_model": model},
                lambda writer: run.lead(writer.directory),
            )
        finally:
            run.tell("")  # the others wait, whatever happened


def _existing(job: Job) -> Artifact | None:
    try:
        return job.open(scoring.ARTIFACT, verify=False)
    except ArtifactError:
        return None


main = job_main("score_sentences", build)

if __name__ == "__main__":
    sys.exit(main())
