"""split_sentences: reports in, keyed sentences out, and everything left out is counted."""

from pathlib import Path

import pytest

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.sentences import distinct_sentences, text_key, training_reports
from pipelines.__main__ import main
from tests.support.corpus import write_reports


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(f"work: {tmp_path / 'work'}\n", encoding="utf-8")
    write_reports(tmp_path / "work")
    return path


def run(config_file: Path, *more: str):
    assert main(["split_sentences", "--config", str(config_file), *more]) == 0
    return open_artifact(config_file.parent / "work" / "sentences", sentences.ARTIFACT)


def test_every_sentence_has_its_place_and_key(config_file):
    rows = read_table(run(config_file).path, sentences.SENTENCES).to_pylist()
    first = [row for row in rows if row["study_id"] == "s0001"]
    assert [(row["section"], row["position"], row["text"]) for row in first] == [
        ("findings", 0, "Small left pleural effusion."),
        ("findings", 1, "The heart is enlarged."),
        ("findings", 2, "Line number 1 is in place."),
    ]
    assert all(row["text_key"] == text_key(row["text"]) for row in rows)
    order = [(row["study_id"], row["section"], row["position"]) for row in rows]
    assert order == sorted(order)


def test_summary_counts_everything(config_file):
    summary = run(config_file).summary
    assert summary["reports"] == 62
    assert summary["reports_with_sentences"] == 62  # "Normal." is one
    assert summary["dropped_enumerator"] + summary["dropped_punctuation"] >= 12
    assert summary["dropped_short"] == 0
    dropped = sum(count for name, count in summary.items() if name.startswith("dropped_"))
    assert summary["found_sentences"] - dropped == summary["sentences"]
    assert 0 < summary["masked_share"] < 0.2
    assert summary["unique"] < summary["sentences"] < 62 * 4


def test_no_report_text_is_printed(config_file, capsys):
    run(config_file)
    out, err = capsys.readouterr()
    assert "effusion" not in out + err


def test_distinct_sentences_count_the_training_split_alone(config_file):
    artifact = run(config_file)
    rows = read_table(artifact.path, sentences.SENTENCES).to_pylist()
    training = [row for row in rows if row["split"] == "train"]
    table = distinct_sentences(artifact).to_pylist()
    assert [row["text_key"] for row in table] == sorted({row["text_key"] for row in rows})
    for row in table:
        said = [other for other in training if other["text"] == row["text"]]
        assert row["count"] == len(said)
        assert row["reports"] == len({other["study_id"] for other in said})
    assert training_reports(artifact) == len({row["study_id"] for row in training})
