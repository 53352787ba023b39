"""Examine a model on held-out images: findings, probes, grounding, retrieval.

Reads the model, manifest, prepared images and sentences, and where the source is a
generated one its exact truth; writes `results`. A question that the data cannot put is
named with the reason. `evaluate.adapter` puts other people's model to the same questions.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl import model_package
from medclip_dcl.artifact import Artifact, ArtifactWriter
from medclip_dcl.config import resolve_path
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.ground_truth import read_truth, truth_files
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import ConfigError
from medclip_dcl.evaluation import inputs, results
from medclip_dcl.evaluation.classification import (
    evaluate_classes,
    evaluate_findings,
    evaluate_reports,
)
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel, evaluated_model
from medclip_dcl.evaluation.grounding import evaluate_boxes, evaluate_gallery, evaluate_grounding
from medclip_dcl.evaluation.inputs import BootstrapOptions, BoxedSentence, EncodedImages, EvalResult
from medclip_dcl.evaluation.probe import evaluate_probe
from medclip_dcl.files import sha256_file
from medclip_dcl.inference.predictor import load
from medclip_dcl.inference.zero_shot import Finding, read_prompts
from medclip_dcl.tables import TableFormat, read_table, write_table
from medclip_dcl.text import sentences
from medclip_dcl.text.sentences import normalise_text, text_key
from pipelines.adapter import adapter_digest, load_adapter
from pipelines.evaluation_films import (
    encode,
    image_rows,
    refuse_contaminated,
    source_root,
    truth_of,
)
from pipelines.evaluation_findings import QUESTIONS, Answered, ask_further, question_files
from pipelines.job import Job, run_job

Rows = list[dict[str, Any]]
Answers = tuple[dict[str, EvalResult], dict[TableFormat, Rows]]

_NO_IMAGES = "the split has no image"
_NO_BOXES = "the source has no boxes on these images"


def build(job: Job) -> None:
    """Make the results and print the headline figures.

    Args:
        job: the job.
    """
    config = job.config
    inputs: dict[str, Artifact | str] = {
        kind.name: job.open(kind)
        for kind in (manifest.ARTIFACT, prepared.ARTIFACT, sentences.ARTIFACT)
    }
    adapted = bool(config.evaluate.adapter.model)
    inputs["model"] = adapter_digest(config) if adapted else job.open(model_package.ARTIFACT)
    files = [_prompts(job), *truth_files(source_root(job))]
    if config.evaluate.gallery:
        files.append(resolve_path(config.evaluate.gallery, config))
    inputs |= {file.name: sha256_file(file) for file in files}
    inputs |= {name: sha256_file(file) for name, file in question_files(config).items()}
    settings = {"evaluate": config.evaluate, "probe": config.probe}
    artifact = job.make(results.ARTIFACT, settings, inputs, lambda draft: _evaluate(job, draft))
    print(results.results_table(results.read_figures(artifact)), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from its command line."""
    return run_job("evaluate", build, argv)


def _evaluate(job: Job, writer: ArtifactWriter) -> dict[str, Any]:
    settings = job.config.evaluate
    images = PreparedImages(job.open(prepared.ARTIFACT, verify=False))
    rows = image_rows(job, images, settings.split)
    contamination: dict[str, int | None] = {"contaminated": None, "repeated_images": None}
    if settings.adapter.model:
        model = load_adapter(job.config)
    else:
        contamination |= refuse_contaminated(job, rows, images)
        model = evaluated_model(load(model_package.ARTIFACT.at(job.work)))
    encoded = encode(model, rows, images, settings.batch, settings.geometry)
    bootstrap = BootstrapOptions(settings.bootstrap, settings.seed)
    questions, tables, source = _image_questions(job, model, encoded, rows, images, bootstrap)
    for put in (
        _box_questions(job, model, encoded, bootstrap),
        _report_question(job, model, encoded, rows, bootstrap),
    ):
        questions |= put[0]
        for form, found in put[1].items():
            tables[form] = tables.get(form, []) + found
    for form, found in tables.items():
        write_table(writer.directory, form, found)
    tree = {
        "model": model.digest,
        "split": settings.split,
        "geometry": settings.geometry,
        "images": len(rows),
        "patients": len(set(encoded.subject_ids)),
        **contamination,
        "truth": source,
        "questions": {name: outcome.as_json() for name, outcome in questions.items()},
    }
    results.write_figures(writer.directory, tree)
    return {"images": len(rows), **contamination, **results.headline_values(tree)}


def _image_questions(
    job: Job,
    model: EvaluatedModel,
    encoded: EncodedImages,
    rows: Rows,
    images: PreparedImages,
    bootstrap: BootstrapOptions,
) -> tuple[dict[str, EvalResult], dict[TableFormat, Rows], str]:
    """Ask for findings, by prompts and by probes; tell where their truth comes from."""
    settings = job.config.evaluate
    findings = read_prompts(_prompts(job))
    truth, source = truth_of(job, rows, findings)
    questions = {
        name: EvalResult(_NO_IMAGES) for name in ("zero_shot", "classes", "probe", *QUESTIONS)
    }
    forms = (results.SCORES, results.PROMPTS, results.CLASSES, results.PROBES)
    tables: dict[TableFormat, Rows] = {form: [] for form in forms}
    if rows:
        drawn = inputs.balance(truth, settings.images_per_finding, bootstrap.generator())
        questions["zero_shot"], tables[results.SCORES] = evaluate_findings(
            model, encoded, findings, drawn, bootstrap
        )
        scores = tables[results.SCORES]
        answered = Answered(model, encoded, rows, findings, truth, drawn, scores)
        further, found = ask_further(job, answered, bootstrap)
        questions, tables = questions | further, tables | found
        questions["classes"], tables[results.CLASSES] = evaluate_classes(
            model, encoded, findings, truth, settings.per_class, bootstrap
        )
        questions["probe"] = EvalResult("evaluate.probe_images is 0")
    if rows and settings.probe_images:
        splits = [
            *_probed(job, model, images, findings, bootstrap),
            (encoded, truth),
        ]
        questions["probe"], tables[results.PROBES] = evaluate_probe(
            splits, findings, job.config.probe, bootstrap
        )
    return questions, tables, source


def _probed(
    job: Job,
    model: EvaluatedModel,
    images: PreparedImages,
    findings: Sequence[Finding],
    bootstrap: BootstrapOptions,
) -> list[tuple[EncodedImages, np.ndarray]]:
    """Encode the images that fit a probe, and those that choose its penalty."""
    settings = job.config.evaluate
    splits = []
    for name in ("train", "validate"):
        rows = image_rows(job, images, name)
        if len(rows) > settings.probe_images:
            chosen = bootstrap.generator().choice(len(rows), settings.probe_images, replace=False)
            rows = [rows[index] for index in sorted(chosen.tolist())]
        encoded = encode(model, rows, images, settings.batch, settings.geometry)
        splits.append((encoded, truth_of(job, rows, findings)[0]))
    return splits


def _box_questions(
    job: Job, model: EvaluatedModel, images: EncodedImages, bootstrap: BootstrapOptions
) -> Answers:
    units = _boxed(job, images)
    gallery = _gallery(job)
    outcomes = dict.fromkeys(("grounding", "boxes", "gallery"), EvalResult(_NO_BOXES))
    tables: dict[TableFormat, Rows] = {
        results.GALLERY: [{"finding": name, "sentence": text} for name, text in gallery],
        results.GROUNDINGS: [],
        results.BOX_ANSWERS: [],
        results.RANKS: [],
    }
    if units:
        outcomes["grounding"], tables[results.GROUNDINGS] = evaluate_grounding(
            model, images, units, job.config.evaluate.heatmap_px, bootstrap
        )
        outcomes["boxes"], answers, tables[results.RANKS], vectors = evaluate_boxes(
            model, images, units, bootstrap
        )
        tables[results.BOX_ANSWERS] = answers
        outcomes["gallery"] = EvalResult("there is no gallery; set evaluate.gallery")
        if gallery:
            index_of = {text_key(text): row for row, (_, text) in enumerate(gallery)}
            truth = [index_of.get(row["phrase_key"]) for row in answers]
            texts = [text for _, text in gallery]
            outcomes["gallery"] = evaluate_gallery(model, vectors, answers, texts, truth, bootstrap)
    return outcomes, tables


def _boxed(job: Job, images: EncodedImages) -> list[BoxedSentence]:
    artifact = job.open(manifest.ARTIFACT, verify=False)
    if manifest.BOXES.file not in artifact.files:
        return []
    rows = read_table(artifact.path, manifest.BOXES).to_pylist()
    return inputs.boxed_sentences(rows, images, [text_key(row["phrase"]) for row in rows])


def _gallery(job: Job) -> list[tuple[str, str]]:
    """Finding and sentence of each line; the finding is the line itself where nobody names it."""
    if not job.config.evaluate.gallery:
        known = read_truth(source_root(job))
        return [] if known is None else list(known.gallery.items())
    file = resolve_path(job.config.evaluate.gallery, job.config)
    lines = [normalise_text(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(line, line) for line in dict.fromkeys(lines) if line]


def _report_question(
    job: Job, model: EvaluatedModel, images: EncodedImages, rows: Rows, bootstrap: BootstrapOptions
) -> Answers:
    pool = job.config.evaluate.retrieval_pool
    said = read_table(sentences.ARTIFACT.at(job.work), sentences.SENTENCES, ["study_id", "text"])
    study_ids = [row["study_id"] for row in rows]
    said = said.filter(pc.is_in(said.column("study_id"), pa.array(study_ids, pa.string())))
    chosen, reports = inputs.reports_of_images(
        study_ids, said.to_pylist(), pool, bootstrap.generator()
    )
    if len(chosen) < 2:
        absent = "fewer than two images have a report" if pool else "evaluate.retrieval_pool is 0"
        return {"reports": EvalResult(absent)}, {}
    outcome, ranks = evaluate_reports(model, images.select(chosen), reports, bootstrap)
    return {"reports": outcome}, {results.RANKS: ranks}


def _prompts(job: Job) -> Path:
    file = resolve_path(job.config.evaluate.prompts, job.config)
    if not file.is_file():
        raise ConfigError(f"evaluate.prompts names {file}, which is no file")
    return file


if __name__ == "__main__":
    sys.exit(main())
