"""The rows of the generated studies are configs that the product accepts."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.fixtures.corpus import write_corpus
from benchmarks.method import studies
from benchmarks.method.rows import BOTH, MAIN, Row
from medclip_dcl.artifact import open_artifact
from medclip_dcl.config import load_config
from medclip_dcl.data import manifest
from medclip_dcl.tables import read_table
from medclip_dcl.text.labeler import labels


@pytest.mark.parametrize("row", [*MAIN, *BOTH], ids=lambda row: row.name)
def test_every_row_is_a_valid_recipe(row: Row, tmp_path: Path) -> None:
    config = load_config(studies.CONFIG, studies._settings_of(row, tmp_path, 100))
    assert config.train.steps == (50 if row.early else 100)
    assert config.objective.kind == row.kind
    assert config.eta.source == (row.eta if isinstance(row.eta, str) else "constant")


def test_shuffled_claims_are_those_of_other_training_studies(tmp_path: Path) -> None:
    work = write_corpus(tmp_path / "corpus")
    studies._shuffle_claims(work, tmp_path, seed=0)

    def rows(folder: Path) -> dict[str, str]:
        artifact = open_artifact(labels.ARTIFACT.at(folder), labels.ARTIFACT)
        table = read_table(artifact.path, labels.REPORT_CLAIMS).to_pylist()
        return {row.pop("study_id"): str(row) for row in table}

    before, after = rows(work), rows(tmp_path)
    reports = read_table(manifest.ARTIFACT.at(work), manifest.REPORTS, ["study_id", "split"])
    training = {row["study_id"] for row in reports.to_pylist() if row["split"] == "train"}
    assert after.keys() == before.keys()
    assert {name: after[name] for name in after if name not in training} == {
        name: before[name] for name in before if name not in training
    }
    assert sorted(after[name] for name in training & after.keys()) == sorted(
        before[name] for name in training & before.keys()
    )
    assert np.mean([after[name] != before[name] for name in training & after.keys()]) > 0.3
