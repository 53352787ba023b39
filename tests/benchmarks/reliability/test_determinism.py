"""What differs between two artifacts is counted and measured."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from benchmarks.reliability.determinism import difference
from medclip_dcl.artifact import ArtifactType, make_fingerprint
from medclip_dcl.artifact_writer import write_artifact

KIND = ArtifactType("made", 1, "nobody")


def make(path: Path, weight: float, word: str) -> Path:
    with write_artifact(path, KIND, make_fingerprint(KIND, {}, {})) as writer:
        save_file({"a": np.array([8.0, weight])}, writer.directory / "w.safetensors")
        pq.write_table(pa.table({"n": [[1.0], [weight]]}), writer.directory / "t.parquet")
        tree = {"word": word, "digest": "ab" * 32 if word == "x" else "cd" * 32, "n": [2, weight]}
        (writer.directory / "j.json").write_text(json.dumps(tree))
        writer.commit({})
    return path


def test_equal_artifacts_differ_in_nothing(tmp_path: Path) -> None:
    first, second = (make(tmp_path / name, 1.0, "x") for name in "ab")
    assert set(difference(first, second).values()) == {0}


def test_largest_difference_is_that_of_any_number_and_digests_do_not_count(tmp_path: Path) -> None:
    found = difference(make(tmp_path / "a", 1.0, "x"), make(tmp_path / "b", 1.5, "y"))
    assert found["files"] == 3
    assert found["others"] == 1  # the word
    assert found["largest"] == pytest.approx(0.5)
    assert found["relative"] == pytest.approx(0.5)  # of the table, whose largest number is 1
