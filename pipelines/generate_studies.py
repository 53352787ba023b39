"""Draw chest images, reports and boxes with known truth as a MIMIC-CXR-shaped tree."""

import sys

from medclip_dcl.core.artifact import Artifact, make_fingerprint, open_artifact, remove_retired
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import ArtifactError
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.synthetic.tree import ARTIFACT, write_tree

from .job import Job, job_main


def build(job: Job) -> None:
    """Write the tree at `source.root`, unless the one there has the same fingerprint.

    Raises:
        ArtifactError: the folder holds something that this job did not write.
    """
    settings, seed = job.config.generate, job.config.seed
    path = resolve_path(job.config.source.root, job.config.work)
    fingerprint = make_fingerprint(ARTIFACT, {"generate": settings, "seed": seed}, {})
    existing: Artifact | None = None
    try:
        existing = open_artifact(path, ARTIFACT)
    except ArtifactError as error:
        if path.exists() and not (path / "artifact.json").is_file():
            raise ArtifactError(
                "source.root names a folder that this job did not write; name another"
            ) from error
    if existing is not None and existing.fingerprint == fingerprint and not job.force:
        remove_retired(path)
        job.say(artifact=ARTIFACT.name, state="reused", **existing.summary)
        job.note_changed_code(existing)
        return
    with write_artifact(path, ARTIFACT, fingerprint, same_code=job.force) as writer:
        artifact = writer.commit(write_tree(writer, seed, settings, job.config.workers))
    job.say(
        artifact=ARTIFACT.name,
        state="resumed" if writer.resumed else "made",
        seconds=artifact.origin["seconds"],
        **artifact.summary,
    )


main = job_main("generate_studies", build)

if __name__ == "__main__":
    sys.exit(main())
