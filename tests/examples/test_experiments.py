"""The rows of Chuang et al. as examples: memory bank, sentence embeddings."""

import json
from pathlib import Path

import memory_bank
import numpy as np
import pytest
import sentence_embeddings

# ---- Sentence embeddings


def test_tau_is_the_chance_that_two_random_sentences_are_equal() -> None:
    sentences = ["clear", "no effusion", "clear", "clear"]
    assert sentence_embeddings.share_of_twins(sentences).tolist() == pytest.approx(
        [2 / 3, 0, 2 / 3, 2 / 3]
    )
    # Of the 6 pairs 3 are equal.
    assert sentence_embeddings.share_of_twins(sentences).mean().item() == pytest.approx(0.5)


def test_every_arm_is_probed_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    lines = []
    for row in range(80):
        sick = row % 2
        words = ["effusion left.", "effusion right."] if sick else ["clear lungs.", "no effusion."]
        text = " ".join(rng.permutation([*words, "heart normal."]))
        lines.append({"findings": text, "impression": None, "gold": {"effusion": sick}})
    path = tmp_path / "reports.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(sentence_embeddings, "FOLDS", 2)
    monkeypatch.setattr(sentence_embeddings, "RESAMPLES", 20)
    words = ["example", str(path), "--epochs", "1", "--seeds", "2", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    table = {row["arm"]: row for row in sentence_embeddings.main()}
    assert table.keys() == {"TF-IDF", "untrained", *sentence_embeddings.TRAINED}
    assert table["TF-IDF"]["auc"] == [1.0]
    assert table["biased"]["gap"] == [0, 0, 0]
    assert [len(row["auc"]) for row in table.values()] == [1] + 6 * [2]
    assert (tmp_path / "sentence_embeddings.png").read_bytes().startswith(b"\x89PNG")


# ---- Memory bank


def test_most_anchors_are_on_the_floor_and_the_fallback_trains_them(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_bank, "DRAWS", 2)
    words = ["example", "--epochs", "2", "--seeds", "1", "--negatives", "64", "--tau", "0.1"]
    monkeypatch.setattr("sys.argv", [*words, "--out", str(tmp_path)])
    rows = {row["arm"]: row for row in memory_bank.main()}
    assert list(rows) == [
        "untrained",
        "biased",
        "no false negatives",
        "tau+ 0.1, floor",
        "tau+ 0.1, fallback",
    ]
    assert rows["biased"]["on_floor"] == [0, 0]
    assert rows["untrained"]["on_floor"] == []
    for arm in ("tau+ 0.1, floor", "tau+ 0.1, fallback"):
        assert len(rows[arm]["on_floor"]) == 2
        assert rows[arm]["on_floor"][-1] > 0
    assert all(0.5 < row["all"] <= 1 for row in rows.values())
    assert (tmp_path / "memory_bank.png").read_bytes().startswith(b"\x89PNG")
