"""What a model is evaluated on: images, their truth, their boxes and reports; and EvalResult."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Float, Int8
from torch import Tensor

from medclip_dcl import model_package
from medclip_dcl.artifact import Artifact
from medclip_dcl.data import manifest
from medclip_dcl.data.ground_truth import read_truth
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import ArtifactStale
from medclip_dcl.evaluation.bootstrap import Figure
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.geometry import Geometry, Window, cut, window_of
from medclip_dcl.inference import Finding
from medclip_dcl.progress import Progress
from medclip_dcl.tables import read_table

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]
Truth = Int8[np.ndarray, "findings images"]
Matrix = Float[np.ndarray, "findings images"]

UNKNOWN = -1
"""Truth of a finding that nobody stated."""

BATCH = 64
"""Images in one forward pass: without gradients it fits wherever the model was trained."""


@dataclass(frozen=True)
class EncodedImages:
    """Images under evaluation, encoded."""

    image_ids: tuple[str, ...]
    subject_ids: tuple[str, ...]
    sizes_px: tuple[tuple[int, int], ...]
    """Height and width of each original image."""
    regions: Float[Tensor, "images rows columns dim"]
    geometry: Geometry = "paper"
    """Which part of each image the model sees, and how heatmaps are spread over it."""

    def window(self, image: int) -> Window:
        """Give the part of image number `image` that its grid covers, in its own pixels."""
        return window_of(self.geometry, *self.sizes_px[image])

    def select(self, chosen: Sequence[int]) -> "EncodedImages":
        """Give the images of these numbers, in that order."""
        return EncodedImages(
            tuple(self.image_ids[image] for image in chosen),
            tuple(self.subject_ids[image] for image in chosen),
            tuple(self.sizes_px[image] for image in chosen),
            self.regions[torch.tensor(chosen, dtype=torch.long, device=self.regions.device)],
            self.geometry,
        )


@dataclass(frozen=True)
class BoxedSentence:
    """A sentence with the boxes that it has on one image; `image` is the image's number."""

    image: int
    category: str
    text: str
    key: str
    boxes: Float[np.ndarray, "boxes 4"]
    """x, y, width, height, pixels of the original image."""


@dataclass(frozen=True)
class EvalResult:
    """What came of one question.

    Attributes:
        absent: why it could not be put, else empty.
        pool: how many things it was put to, or chosen from.
        chance: figure -> its value by chance; `group.figure` where groups differ.
        figures: the question's own figures.
        groups: figures by finding, category or direction.
    """

    absent: str = ""
    pool: Mapping[str, int] = field(default_factory=dict)
    chance: Mapping[str, float | None] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Give the fields as plain values."""
        return {
            "absent": self.absent,
            "pool": dict(self.pool),
            "chance": dict(self.chance),
            "figures": _plain(self.figures),
            "groups": {name: _plain(figures) for name, figures in self.groups.items()},
        }


def _plain(figures: Mapping[str, Figure]) -> dict[str, Any]:
    return {name: figure.as_json() for name, figure in figures.items()}


def read_image_rows(source: Artifact, images: PreparedImages, split: str) -> Rows:
    """List the manifest's rows of the prepared images of a split."""
    table = read_table(source.path, manifest.IMAGES)
    table = table.filter(pc.equal(table.column("split"), split))
    return [row for row in table.to_pylist() if row["image_id"] in images.row_of]


def refuse_contaminated(
    model: Path, source: Artifact, rows: Rows, images: PreparedImages, *, allowed: bool
) -> dict[str, int]:
    """Count evaluated patients, and pictures of evaluated images, that the model was trained on.

    Args:
        model: folder of the model.
        source: the manifest.
        rows: the evaluated images.
        images: the prepared images.
        allowed: whether there may be some (`evaluate.allow_contaminated`).

    Returns:
        `contaminated` patients and `repeated_images`.

    Raises:
        ArtifactStale: there are some, or nobody knows, and that is not allowed.
    """
    trained = model_package.read_model_package(model).subject_hashes
    if trained is None:
        if not allowed:
            raise ArtifactStale(
                "the model is a copy that does not say whom it was trained on; set "
                "evaluate.allow_contaminated where none of these patients can be among them"
            )
        trained = frozenset()
    table = read_table(source.path, manifest.IMAGES, ["image_id", "subject_id"])
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
    if (count or repeated) and not allowed:
        raise ArtifactStale(
            f"the model was trained on {count} of {len(subjects)} evaluated patients, and on the "
            f"picture of {repeated} of {len(rows)} evaluated images; retrain it on this manifest, "
            "take out the images that check_data calls repeated, or set "
            "evaluate.allow_contaminated to measure the model's memory"
        )
    return {"contaminated": count, "repeated_images": repeated}


def encode(
    model: EvaluatedModel, rows: Rows, images: PreparedImages, geometry: Geometry
) -> EncodedImages:
    """Show images to a model.

    Args:
        model: the model.
        rows: the manifest's rows of the images.
        images: the prepared images.
        geometry: what of each image it is shown.
    """
    indices = [images.row_of[row["image_id"]] for row in rows]
    sizes = [images.original_size(index) for index in indices]
    parts: list[Tensor] = []
    with Progress("images encoded", len(indices), "image") as progress:
        for start in range(0, len(indices), BATCH):
            chosen = slice(start, start + BATCH)
            pixels = [
                cut(images.pixels(index), window_of(geometry, *size), *size)
                for index, size in zip(indices[chosen], sizes[chosen], strict=True)
            ]
            parts.append(model.embed_images(np.stack(pixels)))
            progress.advance(len(pixels))
    return EncodedImages(
        image_ids=tuple(row["image_id"] for row in rows),
        subject_ids=tuple(row["subject_id"] for row in rows),
        sizes_px=tuple(sizes),
        regions=torch.cat(parts) if parts else torch.zeros(0, 1, 1, 1),
        geometry=geometry,
    )


def truth_of(
    source: Artifact, root: Path, rows: Rows, findings: Sequence[Finding]
) -> tuple[Truth, str]:
    """Look up which findings images show.

    Args:
        source: the manifest.
        root: folder of the source.
        rows: the images.
        findings: the findings.

    Returns:
        1, 0 or `UNKNOWN` per finding and image, and where it comes from: `exact`, `labels`
        or `none`.
    """
    known = read_truth(root)
    if known is not None:
        image_ids = [row["image_id"] for row in rows]
        return exact_truth(findings, image_ids, known.types_of, known.types), "exact"
    labels: Rows = []
    if manifest.STUDY_LABELS.file in source.files:
        labels = read_table(source.path, manifest.STUDY_LABELS).to_pylist()
    truth = labelled_truth(findings, [row["study_id"] for row in rows], labels)
    return truth, "labels" if (truth != UNKNOWN).any() else "none"


def exact_truth(
    findings: Sequence[Finding],
    image_ids: Sequence[str],
    types_of: Mapping[str, Collection[str]],
    types: Collection[str],
) -> Truth:
    """Read off which findings images show, where a generator knows it.

    Args:
        findings: the prompt pairs; a finding whose name is not a type stays unknown.
        image_ids: the images.
        types_of: image -> types of finding that it shows.
        types: every type there is.

    Returns:
        1 shown, 0 not shown, `UNKNOWN` where the generator knows nothing.
    """
    truth = np.full((len(findings), len(image_ids)), UNKNOWN, dtype=np.int8)
    for index, finding in enumerate(findings):
        for image, image_id in enumerate(image_ids):
            if finding.name in types and image_id in types_of:
                truth[index, image] = finding.name in types_of[image_id]
    return truth


def labelled_truth(
    findings: Sequence[Finding], study_ids: Sequence[str], labels: Sequence[Row]
) -> Truth:
    """Read off which findings images show from the labels of their studies.

    Args:
        findings: the prompt pairs; one without a label column stays unknown.
        study_ids: study of each image.
        labels: rows of the manifest's label table.

    Returns:
        1 where the label is 1, 0 where it is 0; uncertain and blank are `UNKNOWN`.

    Source: Wang et al. 2023 leave open what becomes of uncertain and blank; ours: dropped.
    """
    of_study = {row["study_id"]: row for row in labels}
    truth = np.full((len(findings), len(study_ids)), UNKNOWN, dtype=np.int8)
    for index, finding in enumerate(findings):
        for image, study_id in enumerate(study_ids):
            row = of_study.get(study_id)
            if row is not None and finding.label in row and row[finding.label] in {0, 1}:
                truth[index, image] = row[finding.label]
    return truth


def balance(truth: Truth, most: int, generator: np.random.Generator) -> Truth:
    """Draw as many images with each finding as without it.

    Args:
        truth: 1 present, 0 absent, `UNKNOWN` not known.
        most: most images of a finding, half of them with it; 0: all images stay.
        generator: draws them.

    Returns:
        The truth of the drawn images; that of the others is `UNKNOWN`.

    Source: Wang et al. 2023 evaluate on about 1000 images per finding; ours: half and half.
    """
    if not most:
        return truth
    kept = np.full_like(truth, UNKNOWN)
    for state, drawn in zip(truth, kept, strict=True):
        sides = [np.flatnonzero(state == value) for value in (0, 1)]
        count = min(most // 2, *(len(side) for side in sides))
        for side in sides:
            images = generator.choice(side, count, replace=False)
            drawn[images] = state[images]
    return kept


def boxed_sentences(
    boxes: Sequence[Row], images: EncodedImages, keys: Sequence[str]
) -> list[BoxedSentence]:
    """Gather the boxes of each sentence on each image.

    Args:
        boxes: rows of the manifest's box table; those of other images are left out.
        images: the images.
        keys: `text_key` of each row's phrase.

    Returns:
        One entry per image and sentence, in order of first appearance; boxes are scaled
        from the size that the table states to the image's own.
    """
    number = {image_id: index for index, image_id in enumerate(images.image_ids)}
    found: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row, key in zip(boxes, keys, strict=True):
        if row["image_id"] in number and row["phrase"].strip():
            found[number[row["image_id"]], key].append(row)
    return [
        BoxedSentence(
            image=image,
            category=rows[0]["category"],
            text=rows[0]["phrase"],
            key=key,
            boxes=np.array([_scaled(row, images.sizes_px[image]) for row in rows]),
        )
        for (image, key), rows in found.items()
    ]


def reports_of_images(
    study_ids: Sequence[str], sentences: Sequence[Row], pool: int, generator: np.random.Generator
) -> tuple[list[int], list[list[str]]]:
    """Draw the images of the image-report pool, one per study, with their reports.

    Args:
        study_ids: study of each image.
        sentences: rows of the sentences table, in the report's order.
        pool: most images.
        generator: draws them where there are more.

    Returns:
        Numbers of the images, ascending, and the sentences of each one's report.
    """
    said: dict[str, list[str]] = defaultdict(list)
    for row in sentences:
        said[row["study_id"]].append(row["text"])
    first = {study_id: image for image, study_id in reversed(list(enumerate(study_ids)))}
    images = sorted(image for study_id, image in first.items() if study_id in said)
    if len(images) > pool:
        images = sorted(generator.choice(images, pool, replace=False).tolist())
    return images, [said[study_ids[image]] for image in images]


def _scaled(row: Row, size_px: tuple[int, int]) -> list[float]:
    height, width = size_px
    across, down = width / row["image_width"], height / row["image_height"]
    return [row["x"] * across, row["y"] * down, row["width"] * across, row["height"] * down]
