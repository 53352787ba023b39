"""The artifacts of a recipe that a report can draw on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medclip_dcl.artifacts import (
    claims,
    embeddings,
    eta_cache,
    image_model,
    image_set,
    language_model,
    likelihoods,
    manifest,
    preflight,
    prepared,
    probe,
    published,
    results,
    sentences,
)
from medclip_dcl.artifacts.frame import Artifact, Kind, open_artifact
from medclip_dcl.config.evaluation import ReportConfig
from medclip_dcl.errors import ArtifactMissing

KINDS = (
    preflight.KIND,
    manifest.KIND,
    prepared.KIND,
    sentences.KIND,
    claims.KIND,
    language_model.KIND,
    likelihoods.KIND,
    eta_cache.KIND,
    published.KIND,
    results.KIND,
    embeddings.KIND,
    image_set.KIND,
    image_model.KIND,
    probe.KIND,
)
"""The artifacts in the order in which data flows through them."""


@dataclass(frozen=True)
class Sources:
    """What a report is made from.

    Attributes:
        work: folder of the recipe.
        settings: the report's section of the configuration.
        artifacts: the artifacts that exist, by the name of their kind.
        is_generated: whether films and reports are generated ones.
        rho: text key -> true class probability; empty where nobody knows it.
        negatives: N, negatives of one anchor in the recipe's global batch.
    """

    work: Path
    settings: ReportConfig
    artifacts: Mapping[str, Artifact]
    is_generated: bool
    rho: Mapping[str, float]
    negatives: int

    def get(self, *kinds: Kind) -> tuple[Artifact, ...] | None:
        """Give artifacts that are needed together.

        Args:
            kinds: their kinds.

        Returns:
            The artifacts in that order; None where one is missing.
        """
        found = [self.artifacts.get(kind.name) for kind in kinds]
        present = tuple(artifact for artifact in found if artifact is not None)
        return present if len(present) == len(kinds) else None


def find_sources(
    work: Path,
    settings: ReportConfig,
    is_generated: bool,
    rho: Mapping[str, float],
    negatives: int,
    kinds: Sequence[Kind] = KINDS,
) -> Sources:
    """Open every artifact of a recipe that exists.

    Args:
        work: folder of the recipe.
        settings: the report's section of the configuration.
        is_generated: whether films and reports are generated ones.
        rho: text key -> true class probability; empty where nobody knows it.
        negatives: N, negatives of one anchor.
        kinds: the artifacts that are looked for.

    Returns:
        The sources. Sizes are checked, not every byte: the jobs that used an artifact did that.

    Raises:
        ArtifactError: one is damaged or of another version.
    """
    artifacts = {}
    for kind in kinds:
        try:
            artifacts[kind.name] = open_artifact(kind.at(work), kind, verify=False)
        except ArtifactMissing:
            continue
    return Sources(work, settings, artifacts, is_generated, rho, negatives)


def spread(count: int, wanted: int) -> list[int]:
    """Choose evenly spaced places in a list, first and last included.

    Args:
        count: length of the list.
        wanted: how many places at most.

    Returns:
        Ascending places.
    """
    if wanted <= 0 or count <= 0:
        return []
    if wanted == 1 or count == 1:
        return [0]
    steps = min(wanted, count)
    return [round(step * (count - 1) / (steps - 1)) for step in range(steps)]
