"""The figures of a model on held-out images."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from medclip_dcl.core.artifact import Artifact, open_artifact
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.plugins import METRICS
from medclip_dcl.core.progress import OF_RUN, writes_json
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.core.tables import write_table
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.evaluated_model import adapter_digest, evaluated_model, load_adapter
from medclip_dcl.evaluation.questions import (
    Evaluation,
    input_digests,
    read_image_rows,
    refuse_contaminated,
)
from medclip_dcl.inference import model_package
from medclip_dcl.inference.predictor import load, published_folder
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.models.settings import settle_inference
from medclip_dcl.text import sentences

from .data import build_manifest, prepare_images, split_sentences
from .job import Job


def evaluate(job: Job) -> None:
    """Evaluate a model on held-out images: findings, probes, grounding, retrieval.

    Reads the model, manifest, prepared images and sentences, and where the source is a
    generated one its exact truth; writes `results`. What the data cannot measure is named
    with the reason, and a finding whose prompt pair does not decide is warned of.
    `evaluate.model` names a model of another run, or a public checkpoint's (`adopt`): a config of
    `source` and it is enough. `evaluate.adapter` evaluates a class of one's own in the same way.
    """
    folder = model_package.ARTIFACT.at(job.work)
    if job.config.evaluate.model:
        folder = published_folder(resolve_path(job.config.evaluate.model, job.config.work))
        job = prepare_for(job, folder)
    config = job.config
    inputs: dict[str, Artifact | str] = {
        kind.name: job.open(kind)
        for kind in (manifest.ARTIFACT, prepared.ARTIFACT, sentences.ARTIFACT)
    }
    adapted = bool(config.evaluate.adapter.model)
    inputs["model"] = (
        adapter_digest(config) if adapted else open_artifact(folder, model_package.ARTIFACT)
    )
    inputs |= input_digests(config)
    inference = settle_inference(config.inference)
    settings: dict[str, Any] = {"evaluate": config.evaluate, "inference": inference}
    if METRICS:
        settings["metrics"] = sorted(METRICS)
    artifact = job.make(
        results.ARTIFACT, settings, inputs, lambda draft: _evaluate(job, folder, draft)
    )
    if OF_RUN not in os.environ and not writes_json():  # at the end of a run they are shown by it
        print(results.results_table(results.read_figures(artifact)), flush=True)


def prepare_for(job: Job, model: Path) -> Job:
    """Make what a model of another run is evaluated on; gives the job with the settings of that."""
    config, trained = job.config, model_package.read_model_package(model).config
    settings = config.evaluate
    if "prompts" not in settings.model_fields_set:
        settings = settings.model_copy(update={"prompts": ""})
    # What an image becomes is the model's; which images are refused, and how, is the user's.
    own = {name: getattr(trained.images, name) for name in ("size_px", "voi", "equalize", "fit")}
    images = config.images.model_copy(update=own)
    config = config.model_copy(update={"images": images, "evaluate": settings})
    for stage in (build_manifest, prepare_images, split_sentences):
        stage(replace(job, name=stage.__name__, config=config))
    return replace(job, config=config)


def _evaluate(job: Job, folder: Path, writer: ArtifactWriter) -> dict[str, Any]:
    settings = job.config.evaluate
    # build has verified every artifact
    source = job.open(manifest.ARTIFACT, verify=False)
    made = job.open(prepared.ARTIFACT, verify=False)
    images = PreparedImages(made)
    rows = read_image_rows(source, images, "test")
    contamination: dict[str, int | None] = {"contaminated": None, "repeated_images": None}
    findings: tuple[Finding, ...] = ()
    if settings.adapter.model:
        model = load_adapter(job.config)
    else:
        contamination |= refuse_contaminated(
            folder, source, rows, images, allowed=settings.allow_contaminated
        )
        inference = settle_inference(job.config.inference)
        predictor = load(folder, engine=inference.engine, precision=inference.precision)
        prepared.require_fit(made, predictor.config.images)
        model = evaluated_model(predictor)
        findings = () if settings.prompts else predictor.findings
    texts = job.open(sentences.ARTIFACT, verify=False)
    evaluation = Evaluation(job.config, model, source, images, texts, findings)
    tree = evaluation.put_questions(rows) | contamination
    for warning in evaluation.warnings if writes_json() else ():  # the table shows them
        job.say(
            warning=warning.message,
            finding=warning.finding,
            correlation=warning.correlation,
            auc=warning.auc,
        )
    for form, table in evaluation.tables.items():
        write_table(writer.directory, form, table)
    results.write_figures(writer.directory, tree)
    return {"images": len(rows), **contamination, **results.headline_values(tree)}
