"""Figures of an artifact: one JSON object in a file of its own."""

import json
from typing import Any

from medclip_dcl.artifacts.frame import Artifact, Kind
from medclip_dcl.errors import ArtifactCorrupt


def read_object(artifact: Artifact, name: str, kind: Kind) -> dict[str, Any]:
    """Read a JSON object of an artifact.

    Args:
        artifact: the artifact.
        name: the file.
        kind: its kind, which knows the job that makes it anew.

    Returns:
        The object.

    Raises:
        ArtifactCorrupt: it is no JSON object.
    """
    try:
        tree = json.loads(artifact.file(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactCorrupt(f"{name} of {artifact.path} cannot be read") from error
    if not isinstance(tree, dict):
        raise ArtifactCorrupt(f"{name} of {artifact.path} holds no object; rerun {kind.job}")
    return tree
