"""The preflight as text, and its file as it is read back."""

import json
from pathlib import Path
from typing import Any

import pytest

from medclip_dcl.core.artifact import Artifact, open_artifact
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import ArtifactCorrupt
from pipelines.report.preflight import ARTIFACT, preflight_table, read_preflight

TREE: dict[str, Any] = {
    "source": {},
    "steps": [{"name": "in the source", "images": None, "studies": 12, "patients": 7}],
    "lines": [{"code": "constant", "kind": "unusable", "count": 2, "of": 9, "meaning": "flat"}],
    "verdict": {
        "unusable_share": 0.25,
        "duplicate_share": 0.0,
        "leaks": 3,
        "max_share": 0.01,
        "clean": False,
    },
}


def test_the_table_has_a_row_per_step_and_code_and_ends_with_the_verdict() -> None:
    head, step, empty, line, *rest = preflight_table(TREE).splitlines()
    assert head.split() == ["step", "images", "studies", "patients"]
    assert step.split() == ["in", "the", "source", "-", "12", "7"]  # a source without images
    assert line.split() == ["unusable", "constant", "2", "of", "9", "flat"]
    verdict = "unusable 0.2500 (at most 0.01), duplicates 0.0000 (at most 0.01), leaks 3: "
    assert (empty, rest) == ("", ["", f"{verdict}FAULTS"])
    clean = TREE | {"verdict": TREE["verdict"] | {"clean": True}}
    assert preflight_table(clean).endswith(f"{verdict}clean")


def written(folder: Path, tree: object) -> Artifact:
    with write_artifact(folder / "preflight", ARTIFACT, {}) as writer:
        (writer.directory / "preflight.json").write_text(json.dumps(tree))
        writer.commit({})
    return open_artifact(folder / "preflight", ARTIFACT)


def test_the_file_is_read_back_and_must_be_an_object(tmp_path: Path) -> None:
    assert read_preflight(written(tmp_path / "a", TREE)) == TREE
    with pytest.raises(ArtifactCorrupt, match="holds no object; rerun check_data"):
        read_preflight(written(tmp_path / "b", [TREE]))
