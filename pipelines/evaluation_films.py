"""Images that are evaluated: their rows, vectors and truth, and whether a model knows them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from medclip_dcl import model_package
from medclip_dcl.config import resolve_path
from medclip_dcl.data import manifest
from medclip_dcl.data.ground_truth import read_truth
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import ArtifactStale
from medclip_dcl.evaluation import inputs
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.inputs import EncodedImages
from medclip_dcl.evaluation.summary import UNKNOWN
from medclip_dcl.inference.heatmap import Geometry, cut, window_of
from medclip_dcl.inference.zero_shot import Finding
from medclip_dcl.progress import Progress
from medclip_dcl.tables import read_table
from pipelines.job import Job

Rows = list[dict[str, Any]]


def image_rows(job: Job, images: PreparedImages, split: str) -> Rows:
    """List the prepared images of a split.

    Args:
        job: the job.
        images: the prepared images.
        split: the split.

    Returns:
        Rows of the manifest.
    """
    table = read_table(manifest.ARTIFACT.at(job.work), manifest.IMAGES)
    table = table.filter(pc.equal(table.column("split"), split))
    return [row for row in table.to_pylist() if row["image_id"] in images.row_of]


def refuse_contaminated(job: Job, rows: Rows, images: PreparedImages) -> dict[str, int]:
    """Count evaluated patients, and pictures of evaluated images, that the model was trained on.

    Args:
        job: the job.
        rows: the evaluated images.
        images: the prepared images.

    Returns:
        `contaminated` patients and `repeated_images`.

    Raises:
        ArtifactStale: there are some, and `evaluate.allow_contaminated` is not set.
    """
    trained = model_package.read_model_package(model_package.ARTIFACT.at(job.work)).subject_hashes
    if trained is None:
        if not job.config.evaluate.allow_contaminated:
            raise ArtifactStale(
                "the model is a copy that does not say whom it was trained on; set "
                "evaluate.allow_contaminated where none of these patients can be among them"
            )
        trained = frozenset()
    table = read_table(manifest.ARTIFACT.at(job.work), manifest.IMAGES, ["image_id", "subject_id"])
    known = {
        subject
        for subject in table.column("subject_id").unique().to_pylist()
        if model_package.subject_hash(subject) in trained
    }
    learned = table.filter(pc.is_in(table.column("subject_id"), pa.array(known, pa.string())))
    among = [images.row_of[i] for i in learned["image_id"].to_pylist() if i in images.row_of]
    subjects = {row["subject_id"] for row in rows}
    count = len(subjects & known)
    repeated = len(images.find_repeats([images.row_of[row["image_id"]] for row in rows], among))
    if (count or repeated) and not job.config.evaluate.allow_contaminated:
        raise ArtifactStale(
            f"the model was trained on {count} of {len(subjects)} evaluated patients, and on the "
            f"picture of {repeated} of {len(rows)} evaluated images; retrain it on this manifest, "
            "take out the images that check_data calls repeated, or set "
            "evaluate.allow_contaminated to measure the model's memory"
        )
    return {"contaminated": count, "repeated_images": repeated}


def encode(
    model: EvaluatedModel, rows: Rows, images: PreparedImages, batch: int, geometry: Geometry
) -> EncodedImages:
    """Show images to a model.

    Args:
        model: the model.
        rows: the images.
        images: the prepared images.
        batch: images in one forward pass.
        geometry: what of each image it is shown.

    Returns:
        The images with their region vectors.
    """
    indices = [images.row_of[row["image_id"]] for row in rows]
    parts: list[Tensor] = []
    with Progress("images encoded", len(indices), "image") as progress:
        for start in range(0, len(indices), batch):
            chosen = indices[start : start + batch]
            pixels = np.stack([_shown(images, index, geometry) for index in chosen])
            parts.append(model.embed_images(pixels))
            progress.advance(len(chosen))
    return EncodedImages(
        image_ids=tuple(row["image_id"] for row in rows),
        subject_ids=tuple(row["subject_id"] for row in rows),
        sizes_px=tuple(images.original_size(index) for index in indices),
        regions=torch.cat(parts) if parts else torch.zeros(0, 1, 1, 1),
        geometry=geometry,
    )


def truth_of(job: Job, rows: Rows, findings: Sequence[Finding]) -> tuple[np.ndarray, str]:
    """Tell which findings images show.

    Args:
        job: the job.
        rows: the images.
        findings: the findings.

    Returns:
        1, 0 or `UNKNOWN` per finding and image, and where it comes from: `exact`, `labels`
        or `none`.
    """
    known = read_truth(source_root(job))
    if known is not None:
        image_ids = [row["image_id"] for row in rows]
        return inputs.exact_truth(findings, image_ids, known.types_of, known.types), "exact"
    artifact = job.open(manifest.ARTIFACT, verify=False)
    labels: Rows = []
    if manifest.STUDY_LABELS.file in artifact.files:
        labels = read_table(artifact.path, manifest.STUDY_LABELS).to_pylist()
    truth = inputs.labelled_truth(findings, [row["study_id"] for row in rows], labels)
    return truth, "labels" if (truth != UNKNOWN).any() else "none"


def source_root(job: Job) -> Path:
    """Give the folder of the recipe's source.

    Args:
        job: the job.

    Returns:
        The folder.
    """
    return resolve_path(job.config.source.root, job.config)


def _shown(images: PreparedImages, index: int, geometry: Geometry) -> np.ndarray:
    size = images.original_size(index)
    return cut(images.pixels(index), window_of(geometry, *size), *size)
