"""Examine the trained model on held-out films: findings, grounding, retrieval.

Reads the model, manifest, prepared films and sentences, and where the source is a
generated one its exact truth; writes `results`. A question that the data cannot put is
named with the reason.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from medclip_dcl.artifacts import manifest, prepared, published, results, sentences
from medclip_dcl.artifacts.files import sha256_file
from medclip_dcl.artifacts.frame import Artifact, Draft
from medclip_dcl.artifacts.prepared import PreparedImages
from medclip_dcl.artifacts.sentences import normalise_text, text_key
from medclip_dcl.artifacts.tables import read_table, write_table
from medclip_dcl.config import resolve_path
from medclip_dcl.errors import ArtifactStale, ConfigError
from medclip_dcl.metrics.summary import UNKNOWN
from medclip_dcl.progress import Progress
from medclip_dcl.studies.truth import read_truth, truth_files
from medclip_dcl.tasks import held_out
from medclip_dcl.tasks.box_examination import examine_boxes, examine_gallery, examine_grounding
from medclip_dcl.tasks.examination import examine_findings, examine_reports
from medclip_dcl.tasks.outcome import BoxedSentence, Films, Outcome, Sampling
from medclip_dcl.tasks.predictor import Predictor, load
from medclip_dcl.tasks.prompts import Finding, read_prompts
from pipelines.job import Job, run_job

Rows = list[dict[str, Any]]

_NO_FILMS = "the split has no film"
_NO_BOXES = "the source has no boxes on these films"


def build(job: Job) -> None:
    """Make the results and print the headline figures.

    Args:
        job: the job.
    """
    config = job.config
    inputs: dict[str, Artifact | str] = {
        kind.name: job.open(kind)
        for kind in (published.KIND, manifest.KIND, prepared.KIND, sentences.KIND)
    }
    files = [_prompts(job), *truth_files(_root(job))]
    if config.evaluate.gallery:
        files.append(resolve_path(config.evaluate.gallery, config))
    inputs |= {file.name: sha256_file(file) for file in files}
    settings = {"evaluate": config.evaluate, "seed": config.seed}
    artifact = job.make(results.KIND, settings, inputs, lambda draft: _examine(job, draft))
    print(results.results_table(results.read_figures(artifact)), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from its command line.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        The exit code.
    """
    return run_job("evaluate", build, argv)


def _examine(job: Job, draft: Draft) -> dict[str, Any]:
    settings = job.config.evaluate
    images = PreparedImages(job.open(prepared.KIND, verify=False))
    rows = _film_rows(job, images)
    contamination = _refuse_contaminated(job, rows, images)
    predictor = load(published.KIND.at(job.work))
    films = _encode(predictor, rows, images, settings.batch)
    findings = read_prompts(_prompts(job))
    truth, source = _truth(job, rows, findings)
    sampling = Sampling(settings.bootstrap, job.config.seed)
    questions = {"zero_shot": Outcome(_NO_FILMS)}
    scores: Rows = []
    if rows:
        questions["zero_shot"], scores = examine_findings(
            predictor, films, findings, truth, sampling
        )
    write_table(draft.directory, results.SCORES, scores)
    questions |= _box_questions(job, predictor, films, sampling, draft.directory)
    questions["reports"] = _report_question(job, predictor, films, rows, sampling)
    tree = {
        "model": predictor.digest,
        "split": settings.split,
        "films": len(rows),
        "patients": len(set(films.subject_ids)),
        **contamination,
        "truth": source,
        "questions": {name: outcome.as_json() for name, outcome in questions.items()},
    }
    results.write_figures(draft.directory, tree)
    return {"films": len(rows), **contamination, **results.headline_values(tree)}


def _film_rows(job: Job, images: PreparedImages) -> Rows:
    table = read_table(manifest.KIND.at(job.work), manifest.IMAGES)
    table = table.filter(pc.equal(table.column("split"), job.config.evaluate.split))
    return [row for row in table.to_pylist() if row["image_id"] in images.row_of]


def _refuse_contaminated(job: Job, rows: Rows, images: PreparedImages) -> dict[str, int]:
    """Count evaluated patients, and pictures of evaluated films, that the model was trained on."""
    trained = published.read_published(published.KIND.at(job.work)).subject_hashes
    table = read_table(manifest.KIND.at(job.work), manifest.IMAGES, ["image_id", "subject_id"])
    known = {
        subject
        for subject in table.column("subject_id").unique().to_pylist()
        if published.subject_hash(subject) in trained
    }
    learned = table.filter(pc.is_in(table.column("subject_id"), pa.array(known, pa.string())))
    among = [images.row_of[i] for i in learned["image_id"].to_pylist() if i in images.row_of]
    subjects = {row["subject_id"] for row in rows}
    count = len(subjects & known)
    repeated = len(images.find_repeats([images.row_of[row["image_id"]] for row in rows], among))
    if (count or repeated) and not job.config.evaluate.allow_contaminated:
        raise ArtifactStale(
            f"the model was trained on {count} of {len(subjects)} evaluated patients, and on the "
            f"picture of {repeated} of {len(rows)} evaluated films; retrain it on this manifest, "
            "take out the films that check_data calls repeated, or set "
            "evaluate.allow_contaminated to measure the model's memory"
        )
    return {"contaminated": count, "repeated_films": repeated}


def _encode(predictor: Predictor, rows: Rows, images: PreparedImages, batch: int) -> Films:
    places = [images.row_of[row["image_id"]] for row in rows]
    parts: list[Tensor] = []
    with Progress("films encoded", len(places), "film") as progress:
        for start in range(0, len(places), batch):
            chosen = places[start : start + batch]
            pixels = np.stack([images.pixels(place) for place in chosen])
            parts.append(predictor.embed_images(pixels))
            progress.advance(len(chosen))
    return Films(
        image_ids=tuple(row["image_id"] for row in rows),
        subject_ids=tuple(row["subject_id"] for row in rows),
        sizes_px=tuple(images.original_size(place) for place in places),
        regions=torch.cat(parts) if parts else torch.zeros(0, 1, 1, 1),
    )


def _truth(job: Job, rows: Rows, findings: Sequence[Finding]) -> tuple[np.ndarray, str]:
    """Truth per finding and film, and where it comes from."""
    known = read_truth(_root(job))
    if known is not None:
        image_ids = [row["image_id"] for row in rows]
        return held_out.exact_truth(findings, image_ids, known.types_of, known.types), "exact"
    artifact = job.open(manifest.KIND, verify=False)
    labels: Rows = []
    if manifest.STUDY_LABELS.file in artifact.files:
        labels = read_table(artifact.path, manifest.STUDY_LABELS).to_pylist()
    truth = held_out.labelled_truth(findings, [row["study_id"] for row in rows], labels)
    return truth, "labels" if (truth != UNKNOWN).any() else "none"


def _box_questions(
    job: Job, predictor: Predictor, films: Films, sampling: Sampling, folder: Path
) -> dict[str, Outcome]:
    units = _boxed(job, films)
    gallery = _gallery(job)
    shown = [{"finding": name, "sentence": text} for name, text in gallery]
    write_table(folder, results.GALLERY, shown)
    outcomes = dict.fromkeys(("grounding", "boxes", "gallery"), Outcome(_NO_BOXES))
    groundings: Rows = []
    answers: Rows = []
    if units:
        longest_px = job.config.evaluate.heatmap_px
        outcomes["grounding"], groundings = examine_grounding(
            predictor, films, units, longest_px, sampling
        )
        outcomes["boxes"], answers, vectors = examine_boxes(predictor, films, units, sampling)
        outcomes["gallery"] = Outcome("there is no gallery; set evaluate.gallery")
        if gallery:
            place = {text_key(text): row for row, (_, text) in enumerate(gallery)}
            truth = [place.get(row["phrase_key"]) for row in answers]
            texts = [text for _, text in gallery]
            outcomes["gallery"] = examine_gallery(
                predictor, vectors, answers, texts, truth, sampling
            )
    write_table(folder, results.GROUNDINGS, groundings)
    write_table(folder, results.BOX_ANSWERS, answers)
    return outcomes


def _boxed(job: Job, films: Films) -> list[BoxedSentence]:
    artifact = job.open(manifest.KIND, verify=False)
    if manifest.BOXES.file not in artifact.files:
        return []
    rows = read_table(artifact.path, manifest.BOXES).to_pylist()
    return held_out.boxed_sentences(rows, films, [text_key(row["phrase"]) for row in rows])


def _gallery(job: Job) -> list[tuple[str, str]]:
    """Finding and sentence of each line; the finding is the line itself where nobody names it."""
    if not job.config.evaluate.gallery:
        known = read_truth(_root(job))
        return [] if known is None else list(known.gallery.items())
    file = resolve_path(job.config.evaluate.gallery, job.config)
    lines = [normalise_text(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(line, line) for line in dict.fromkeys(lines) if line]


def _report_question(
    job: Job, predictor: Predictor, films: Films, rows: Rows, sampling: Sampling
) -> Outcome:
    pool = job.config.evaluate.pairs
    said = read_table(sentences.KIND.at(job.work), sentences.SENTENCES, ["study_id", "text"])
    study_ids = [row["study_id"] for row in rows]
    said = said.filter(pc.is_in(said.column("study_id"), pa.array(study_ids, pa.string())))
    chosen, reports = held_out.reports_of_films(
        study_ids, said.to_pylist(), pool, sampling.generator()
    )
    if len(chosen) < 2:
        return Outcome("evaluate.pairs is 0" if not pool else "fewer than two films have a report")
    return examine_reports(predictor, films.select(chosen), reports, sampling)


def _root(job: Job) -> Path:
    return resolve_path(job.config.source.root, job.config)


def _prompts(job: Job) -> Path:
    file = resolve_path(job.config.evaluate.prompts, job.config)
    if not file.is_file():
        raise ConfigError(f"evaluate.prompts names {file}, which is no file")
    return file


if __name__ == "__main__":
    sys.exit(main())
