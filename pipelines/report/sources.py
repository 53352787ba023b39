"""The artifacts that a report can draw on, and the sections about what went in and where from."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medclip_dcl.core.artifact import Artifact, ArtifactType, open_artifact
from medclip_dcl.core.errors import ArtifactMissing
from medclip_dcl.core.tables import SPLITS, read_table
from medclip_dcl.data import manifest, prepared, selection
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.evaluation import results
from medclip_dcl.inference import model_package
from medclip_dcl.likelihood import eta, masked_lm, scoring
from medclip_dcl.retrieval import embeddings
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels

from . import preflight
from .charts import image_uri
from .preflight import ReportConfig

View = dict[str, Any]

EXAMPLES = 6
"""Heatmaps shown."""

KINDS = (
    preflight.ARTIFACT,
    manifest.ARTIFACT,
    prepared.ARTIFACT,
    sentences.ARTIFACT,
    labels.ARTIFACT,
    masked_lm.ARTIFACT,
    scoring.ARTIFACT,
    eta.ARTIFACT,
    model_package.ARTIFACT,
    results.ARTIFACT,
    embeddings.ARTIFACT,
)
"""The artifacts in the order in which data flows through them."""


@dataclass(frozen=True)
class Sources:
    """Artifacts and settings that a report is made from."""

    work: Path
    settings: ReportConfig
    artifacts: Mapping[str, Artifact]  # those that exist, by the name of their kind
    is_generated: bool
    negatives: int  # N, of one anchor in the global batch

    def get(self, *kinds: ArtifactType) -> tuple[Artifact, ...] | None:
        """Return artifacts that are needed together; None where one is missing."""
        opened = [self.artifacts.get(kind.name) for kind in kinds]
        present = tuple(artifact for artifact in opened if artifact is not None)
        return present if len(present) == len(kinds) else None


def find_sources(
    work: Path,
    settings: ReportConfig,
    is_generated: bool,
    negatives: int,
    kinds: Sequence[ArtifactType] = KINDS,
) -> Sources:
    """Open every artifact of a run that exists; the rest is as in `Sources`.

    Of images and their vectors, which may take hundreds of gigabytes, sizes alone are checked.
    """
    artifacts = {}
    for kind in kinds:
        try:
            verify = kind not in {prepared.ARTIFACT, embeddings.ARTIFACT}
            artifacts[kind.name] = open_artifact(kind.at(work), kind, verify=verify)
        except ArtifactMissing:
            continue
    return Sources(work, settings, artifacts, is_generated, negatives)


def describe_provenance(sources: Sources) -> View:
    """List the artifacts with digest, age and cost, and the newest one's origin.

    An artifact is `stale` where an input that it names is no longer the one in the same folder.
    """
    digests = {name: artifact.digest for name, artifact in sources.artifacts.items()}
    rows = []
    for kind in KINDS:
        artifact = sources.artifacts.get(kind.name)
        if artifact is None:
            continue
        inputs = artifact.fingerprint["inputs"]
        rows.append(
            {
                "kind": kind.name,
                "job": kind.job,
                "digest": artifact.digest,
                "committed_at": artifact.origin["committed_at"],
                "seconds": artifact.origin["seconds"],
                "megabytes": sum(file["bytes"] for file in artifact.files.values()) / 1e6,
                "stale": any(digests.get(name, made) != made for name, made in inputs.items()),
            }
        )
    origins = [artifact.origin for artifact in sources.artifacts.values()]
    newest = max(origins, key=lambda origin: str(origin["committed_at"]))
    return {"artifacts": rows, "seconds": sum(row["seconds"] for row in rows), "newest": newest}


VIEWS = frozenset(
    ("AP", "PA", "LL", "RL", "LLD", "RLD", "LLO", "RLO", "FRONTAL", "LATERAL", "L", "LAT",
     "AP AXIAL", "AP LLD", "AP RLD", "SWIMMERS", "XTABLE LATERAL", "AP_HORIZONTAL",
     "AP HORIZONTAL", "COSTAL", "PA LLD", "PA RLD", "OBLIQUE")
)  # fmt: skip
"""Views that are named in counts, in any case: DICOM's terms for a chest, and those of public
collections. A column that was mapped wrongly may hold anything, names of patients too."""


def describe_data(sources: Sources) -> View | None:
    """Count images, reports and patients per split, and what was left out."""
    artifacts = sources.get(manifest.ARTIFACT)
    if artifacts is None:
        return None
    boxes = read_table(artifacts[0].path, manifest.BOXES, ["image_id"])
    claims = sources.artifacts.get(labels.ARTIFACT.name)
    return {
        "splits": count_splits(artifacts[0]),
        "by_patient": artifacts[0].summary.get("splits_by_patient", True),
        "boxes": len(boxes),
        "boxed_images": len(boxes["image_id"].unique()),
        "rejects": _rejects(sources),
        "languages": claims.summary.get("languages", {}) if claims else {},
    }


def count_splits(source: Artifact) -> dict[str, View]:
    """Count images, reports, patients and views of each split; a patient is in one alone."""
    images = read_table(source.path, manifest.IMAGES, ["split", "subject_id", "view"]).to_pylist()
    reports = read_table(source.path, manifest.REPORTS, ["split", "subject_id"]).to_pylist()
    counted = {}
    for split in SPLITS:
        shown = [row for row in images if row["split"] == split]
        reported = [row for row in reports if row["split"] == split]
        views = Counter(_view(row["view"]) for row in shown)
        counted[split] = {
            "images": len(shown),
            "reports": len(reported),
            "patients": len({row["subject_id"] for row in (*shown, *reported)}),
            "views": ", ".join(f"{view} {count:,}" for view, count in sorted(views.items())),
        }
    return counted


def _view(given: str | None) -> str:
    if not given:
        return "not known"
    view = " ".join(given.split()).upper()
    return view if view in VIEWS else "other"


def show_image(images: PreparedImages, image_id: str, boxes: list[View]) -> View:
    """Show one image in its own proportions, with rows of the manifest's box table, in pixels."""
    row = images.row_of[image_id]
    height, width = images.original_size(row)
    placed = [
        {
            "x": box["x"] * width / (box["image_width"] or width),
            "y": box["y"] * height / (box["image_height"] or height),
            "width": box["width"] * width / (box["image_width"] or width),
            "height": box["height"] * height / (box["image_height"] or height),
            "phrase": box["phrase"],
        }
        for box in boxes
    ]
    uri = image_uri(images.pixels(row))
    return {"uri": uri, "width": width, "height": height, "boxes": placed}


def boxes_by_image(source: Artifact) -> dict[str, list[View]]:
    """Group the rows of the manifest's box table by image id."""
    grouped: dict[str, list[View]] = defaultdict(list)
    for row in read_table(source.path, manifest.BOXES).to_pylist():
        grouped[row["image_id"]].append(row)
    return dict(grouped)


def _rejects(sources: Sources) -> list[View]:
    counts: Counter[tuple[str, str]] = Counter()
    for kind in (manifest.ARTIFACT, prepared.ARTIFACT):
        artifact = sources.artifacts.get(kind.name)
        if artifact is not None and manifest.REJECTS.file in artifact.files:
            table = read_table(artifact.path, manifest.REJECTS, ["stage", "reason"])
            counts.update((row["stage"], row["reason"]) for row in table.to_pylist())
    return [
        {
            "stage": stage,
            "reason": reason,
            "meaning": selection.REJECT_REASONS[reason],
            "count": count,
        }
        for (stage, reason), count in counts.most_common()
    ]
