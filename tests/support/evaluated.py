"""A work folder that can be evaluated: a tiny corpus with labels and boxes, and a tiny model."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from medclip_dcl.core.artifact import make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.likelihood import eta
from medclip_dcl.text.labeler.lexicon import LABELS
from tests.support import published
from tests.support.corpus import KINDS, commit_tables, made, write_config, write_corpus
from tests.support.jobs import run
from tests.support.published import publish
from tests.support.tiny_models import random_images

PROMPTS = f"format_version: 1\nfindings: {published.PROMPTS}\n"
"""Two findings; no test image has an effusion."""

BOXED = {"Pneumonia": KINDS[0][1], "Pneumothorax": KINDS[2][1]}
"""Label -> sentence of the box that its test images get."""


def write_evaluated(
    work: Path,
    subjects: Iterable[str] = ("elsewhere",),
    *,
    with_truth: bool = True,
    repeated: tuple[str, str] | None = None,
) -> Path:
    """Write a corpus of 40 studies, 8 of them for testing, and a model with offsets.

    The model says that it was trained on `subjects`. Without truth images have no labels and boxes.
    `repeated` names two patients: the first image of the second shows that of the first.
    """
    write_texts(work)
    if repeated:
        _repeat(work, *repeated)
    if with_truth:
        _annotate(work)
    publish(work / "model", subjects, bank=random_images(8, 64))
    return work


def write_untrained(work: Path) -> Path:
    """Write the same without what a run of its own makes: for sweeps and tables."""
    write_evaluated(work)
    for name in ("model", "eta_cache"):
        shutil.rmtree(work / name)
    (work / "prompts.yaml").write_text(PROMPTS)
    return work


def _repeat(work: Path, one: str, other: str) -> None:
    artifact = made(work, prepared.ARTIFACT)
    images = PreparedImages(artifact)
    pixels = np.stack([images.pixels(row) for row in range(len(images))])
    sizes = np.array([images.original_size(row) for row in range(len(images))], dtype=np.int32)
    source, target = (images.row_of[f"image{name[1:]}a"] for name in (one, other))
    pixels[target] = pixels[source]
    fingerprint = make_fingerprint(prepared.ARTIFACT, {"repeated": [one, other]}, {})
    with write_artifact(artifact.path, prepared.ARTIFACT, fingerprint) as writer:
        prepared.write_shard(writer.directory, 0, images.image_ids, pixels, sizes, [])
        writer.commit(artifact.summary)


def write_texts(work: Path) -> Path:
    """Write a corpus whose eta cache says how it was made, as the job's does."""
    write_corpus(work)
    settings = {"source": "pll", "a": 0.2, "k": 0.35, "eta_max": 0.2}
    table = read_table(eta.ARTIFACT.at(work), eta.ETA)
    commit_tables(work, eta.ARTIFACT, {eta.ETA: table}, eta=settings)
    return work


def _annotate(work: Path) -> None:
    """Put labels 1 and 0, and a box over the bright patch, into the manifest."""
    folder = manifest.ARTIFACT.at(work)
    images = read_table(folder, manifest.IMAGES).to_pylist()
    labels = read_table(folder, manifest.STUDY_LABELS).to_pylist()
    kind_of = {row["study_id"]: next(name for name in LABELS if row[name] == 1) for row in labels}
    for row in labels:
        for name in ("Pneumonia", "Pleural Effusion"):
            row[name] = int(kind_of[row["study_id"]] == name)
    boxes = [
        _box(image, kind_of[image["study_id"]])
        for image in images
        if image["split"] == "test" and kind_of[image["study_id"]] in BOXED
    ]
    tables = {
        manifest.IMAGES: images,
        manifest.REPORTS: read_table(folder, manifest.REPORTS),
        manifest.STUDY_LABELS: labels,
        manifest.BOXES: boxes,
        manifest.REJECTS: [{"id": "lost", "stage": "build_manifest", "reason": "missing_image"}],
    }
    commit_tables(work, manifest.ARTIFACT, tables, annotated=True)


def _box(image: dict[str, Any], label: str) -> dict[str, Any]:
    ids = {name: image[name] for name in ("image_id", "subject_id")}
    box = {"x": 0.0, "y": 0.0 if label == "Pneumonia" else 20.0, "width": 20.0, "height": 20.0}
    size = {"image_width": 40, "image_height": 40}
    return {**ids, "category": label, "phrase": BOXED[label], **box, **size}


def run_here(stage: str, work: Path, *settings: str, code: int = 0, **sections: Any) -> Path:
    """Run a stage on a folder of `write_evaluated`; every setting is `key=value`."""
    (work / "prompts.yaml").write_text(PROMPTS)
    tree: dict[str, Any] = {
        "evaluate": {"bootstrap": 20, "prompts": str(work / "prompts.yaml")},
        "probabilities": {"least_per_class": 2},
        "source": {"root": str(work)},
    }
    for name, section in sections.items():
        tree[name] = tree.get(name, {}) | section
    write_config(work.with_name(f"{work.name}.yaml"), work, **tree)
    run(stage, work, *settings, code=code)
    return work
