"""Evaluate a model on held-out images: findings, probes, grounding, retrieval.

Reads the model, manifest, prepared images and sentences, and where the source is a
generated one its exact truth; writes `results`. A question that the data cannot put is
named with the reason. `evaluate.adapter` puts other people's model to the same questions.
"""

import sys
from typing import Any

from medclip_dcl import model_package
from medclip_dcl.artifact import Artifact, ArtifactWriter
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.evaluated_model import adapter_digest, evaluated_model, load_adapter
from medclip_dcl.evaluation.questions import (
    Evaluation,
    input_files,
    read_image_rows,
    refuse_contaminated,
)
from medclip_dcl.files import sha256_file
from medclip_dcl.inference import load
from medclip_dcl.tables import write_table
from medclip_dcl.text import sentences

from .job import Job, job_main


def build(job: Job) -> None:
    """Make the results and print the headline figures."""
    config = job.config
    inputs: dict[str, Artifact | str] = {
        kind.name: job.open(kind)
        for kind in (manifest.ARTIFACT, prepared.ARTIFACT, sentences.ARTIFACT)
    }
    adapted = bool(config.evaluate.adapter.model)
    inputs["model"] = adapter_digest(config) if adapted else job.open(model_package.ARTIFACT)
    inputs |= {name: sha256_file(file) for name, file in input_files(config).items()}
    settings: dict[str, Any] = {"evaluate": config.evaluate, "inference": config.inference}
    if config.source.images_per_study != "frontal":  # a study is scored, not an image
        settings["images_per_study"] = config.source.images_per_study
    artifact = job.make(results.ARTIFACT, settings, inputs, lambda draft: _evaluate(job, draft))
    print(results.results_table(results.read_figures(artifact)), flush=True)


def _evaluate(job: Job, writer: ArtifactWriter) -> dict[str, Any]:
    settings = job.config.evaluate
    # build has verified every artifact
    source = job.open(manifest.ARTIFACT, verify=False)
    images = PreparedImages(job.open(prepared.ARTIFACT, verify=False))
    rows = read_image_rows(source, images, settings.split)
    contamination: dict[str, int | None] = {"contaminated": None, "repeated_images": None}
    if settings.adapter.model:
        model = load_adapter(job.config)
    else:
        folder = model_package.ARTIFACT.at(job.work)
        contamination |= refuse_contaminated(
            folder, source, rows, images, allowed=settings.allow_contaminated
        )
        inference = job.config.inference
        predictor = load(folder, engine=inference.engine, precision=inference.precision)
        model = evaluated_model(predictor)
    said = job.open(sentences.ARTIFACT, verify=False)
    evaluation = Evaluation(job.config, model, source, images, said)
    tree = evaluation.put_questions(rows) | contamination
    if evaluation.short:
        asked = settings.images_per_finding
        job.say(
            warning=f"of {asked} images a finding, half with it, there are fewer",
            **evaluation.short,
        )
    for form, found in evaluation.tables.items():
        write_table(writer.directory, form, found)
    results.write_figures(writer.directory, tree)
    return {"images": len(rows), **contamination, **results.headline_values(tree)}


main = job_main("evaluate", build)

if __name__ == "__main__":
    sys.exit(main())
