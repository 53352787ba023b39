"""The artifacts that a report can draw on, and the section about where they came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medclip_dcl.core.artifact import Artifact, ArtifactType, open_artifact
from medclip_dcl.core.errors import ArtifactMissing
from medclip_dcl.data import manifest, prepared
from medclip_dcl.evaluation import results
from medclip_dcl.inference import model_package
from medclip_dcl.likelihood import eta, masked_lm, scoring
from medclip_dcl.retrieval import embeddings
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels

from . import preflight
from .preflight import ReportConfig

EXAMPLES = 6
"""Images, heatmaps and retrieved cases shown."""

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
    artifacts: Mapping[str, Artifact]
    """Those that exist, by the name of their kind."""
    is_generated: bool
    rho: Mapping[str, float]
    """Text key -> true class probability; empty where it is not known."""
    negatives: int
    """N, of one anchor in the global batch."""

    def get(self, *kinds: ArtifactType) -> tuple[Artifact, ...] | None:
        """Return artifacts that are needed together; None where one is missing."""
        found = [self.artifacts.get(kind.name) for kind in kinds]
        present = tuple(artifact for artifact in found if artifact is not None)
        return present if len(present) == len(kinds) else None


def find_sources(
    work: Path,
    settings: ReportConfig,
    is_generated: bool,
    rho: Mapping[str, float],
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
    return Sources(work, settings, artifacts, is_generated, rho, negatives)


View = dict[str, Any]


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
