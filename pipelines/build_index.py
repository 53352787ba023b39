"""Embed films and sentences with a trained model and seal them as a retrieval index."""

import sys
from collections.abc import Sequence

from medclip_dcl.artifacts import embeddings, manifest, prepared, published, sentences
from medclip_dcl.artifacts.frame import Draft
from medclip_dcl.artifacts.prepared import PreparedImages
from medclip_dcl.artifacts.published import read_published
from medclip_dcl.artifacts.tables import read_table
from medclip_dcl.index.build import select, write_index
from medclip_dcl.tasks.predictor import load
from pipelines.job import Job, run_job


def build(job: Job) -> None:
    """Build the index of a recipe.

    Args:
        job: the job's frame.
    """
    model, studies = job.open(published.KIND), job.open(manifest.KIND)
    films, texts = job.open(prepared.KIND), job.open(sentences.KIND)
    settings = job.config.index
    similarity = read_published(model.path).config.model.similarity

    def write(draft: Draft) -> dict[str, int]:
        images = PreparedImages(films)
        chosen = select(
            read_table(studies.path, manifest.IMAGES),
            read_table(texts.path, sentences.SENTENCES),
            images,
            settings.splits,
        )
        return write_index(draft.directory, chosen, images, load(model.path), settings)

    job.make(
        embeddings.KIND,
        {"index": settings, "similarity": similarity},
        {"model": model, "manifest": studies, "prepared": films, "sentences": texts},
        write,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        The exit code.
    """
    return run_job("build_index", build, argv)


if __name__ == "__main__":
    sys.exit(main())
