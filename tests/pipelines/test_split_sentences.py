"""split_sentences: reports in, keyed sentences out, and everything left out is counted."""

from pathlib import Path

import pytest

from medclip_dcl.artifact import open_artifact
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.sentences import distinct_sentences, text_key, training_reports
from pipelines import split_sentences
from tests.synthetic.reports import write_reports


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"work: {tmp_path / 'work'}\nsentences: {{min_words: 3}}\n", encoding="utf-8")
    write_reports(tmp_path / "work")
    return path


def run(recipe: Path, *more: str):
    assert split_sentences.main(["--config", str(recipe), *more]) == 0
    return open_artifact(recipe.parent / "work" / "sentences", sentences.KIND)


def test_every_sentence_has_its_place_and_key(recipe):
    rows = read_table(run(recipe).path, sentences.SENTENCES).to_pylist()
    first = [row for row in rows if row["study_id"] == "s0001"]
    assert [(row["section"], row["position"], row["text"]) for row in first] == [
        ("findings", 0, "Small left pleural effusion."),
        ("findings", 1, "The heart is enlarged."),
        ("findings", 2, "Line number 1 is in place."),
    ]
    assert all(row["text_key"] == text_key(row["text"]) for row in rows)
    order = [(row["study_id"], row["section"], row["position"]) for row in rows]
    assert order == sorted(order)


def test_last_paragraph_stands_in_for_missing_sections_alone(recipe):
    rows = read_table(run(recipe).path, sentences.SENTENCES).to_pylist()
    assert [row["study_id"] for row in rows if row["section"] == "last_paragraph"] == ["s9998"]


def test_summary_counts_everything(recipe):
    summary = run(recipe).summary
    assert summary["reports"] == 62
    assert summary["reports_with_sentences"] == 61
    assert summary["dropped_enumerator"] + summary["dropped_punctuation"] >= 12
    assert summary["dropped_short"] == 12 + 15 + 1
    assert 0 < summary["masked_share"] < 0.2
    assert summary["unique"] < summary["sentences"] < 62 * 4


def test_summary_adds_up(recipe):
    summary = run(recipe).summary
    dropped = sum(count for name, count in summary.items() if name.startswith("dropped_"))
    assert summary["plain_sentences"] + summary["separated"] - dropped == summary["sentences"]


def test_sections_and_rules_are_settings(recipe):
    summary = run(recipe, "--set", 'sentences.sections=["impression"]').summary
    assert summary["sections"] == 45 + 2
    assert run(recipe, "--set", "sentences.min_words=1").summary["dropped_short"] == 0


def test_valid_sentences_are_reused(recipe, capsys):
    digest = run(recipe).digest
    assert run(recipe).digest == digest
    assert '"state": "reused"' in capsys.readouterr().out


def test_no_report_text_is_printed(recipe, capsys):
    run(recipe)
    out, err = capsys.readouterr()
    assert "effusion" not in out + err


def test_distinct_sentences_count_the_training_split_alone(recipe):
    artifact = run(recipe)
    rows = read_table(artifact.path, sentences.SENTENCES).to_pylist()
    training = [row for row in rows if row["split"] == "train"]
    table = distinct_sentences(artifact).to_pylist()
    assert [row["text_key"] for row in table] == sorted({row["text_key"] for row in rows})
    for row in table:
        said = [other for other in training if other["text"] == row["text"]]
        assert row["count"] == len(said)
        assert row["reports"] == len({other["study_id"] for other in said})
    assert training_reports(artifact) == len({row["study_id"] for row in training})
