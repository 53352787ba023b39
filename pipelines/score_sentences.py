"""Score every distinct sentence by its pseudo-log-likelihood.

Reads sentences and language_model, writes likelihoods. The expensive job: every finished
unit of work is kept, so a killed run resumes where it stopped and ends with the same bits.
`accelerate launch` and `torchrun` give each GPU a process, on one node or on several that share
the folder `work`; without them the cores of a CPU share the work.
"""

import sys

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.distributed import joined
from medclip_dcl.core.errors import ArtifactError
from medclip_dcl.likelihood import scoring

from .job import Job, job_main


def build(job: Job) -> None:
    """Make the likelihoods."""
    with joined() as launch:
        inputs, config = job.open_inputs(verify=launch.is_main), job.config
        run = scoring.CorpusScoring(
            inputs.values["sentences"],
            inputs.values["language_model"],
            config.likelihood,
            launch,
            job.say,
            config.workers,
        )
        if not launch.is_main:
            run.follow()
            return
        try:
            job.make(
                scoring.ARTIFACT,
                run.choose_engine(_existing(job)),
                inputs.digests,
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
