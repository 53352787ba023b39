"""The job: sentences in, claims of sentences and of whole reports out."""

from pathlib import Path

import pytest

from medclip_dcl.core.artifact import Artifact, open_artifact
from medclip_dcl.core.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from pipelines.job import main_of
from tests.support.corpus import commit_tables

main = main_of("read_claims")

REPORTS = {
    "s1": ["Small left effusion.", "No pneumothorax."],
    "s2": ["No acute disease.", "Heart size is normal."],
    "s3": ["No acute disease.", "Scoliosis is noted.", "Two views were obtained."],
}


def write_config(tmp_path: Path, reports: dict[str, list[str]]) -> Path:
    rows = [
        {
            "study_id": study,
            "subject_id": study,
            "split": "train",
            "section": "findings",
            "position": position,
            "text": text,
            "text_key": sentences.text_key(text),
        }
        for study, texts in reports.items()
        for position, text in enumerate(texts)
    ]
    commit_tables(tmp_path, sentences.ARTIFACT, {sentences.SENTENCES: rows})
    config = tmp_path / "config.yaml"
    config.write_text(f"work: {tmp_path}\n")
    return config


def read(tmp_path: Path, reports: dict[str, list[str]]) -> Artifact:
    assert main(["--config", str(write_config(tmp_path, reports))]) == 0
    return open_artifact(labels.ARTIFACT.at(tmp_path), labels.ARTIFACT)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return write_config(tmp_path, REPORTS)


def test_sentences_and_reports_get_their_claims(config_file: Path) -> None:
    assert main(["--config", str(config_file)]) == 0
    artifact = open_artifact(labels.ARTIFACT.at(config_file.parent), labels.ARTIFACT)

    reports = read_table(artifact.path, labels.REPORT_CLAIMS).to_pylist()
    assert [row["study_id"] for row in reports] == ["s1", "s2", "s3"]
    assert reports[0]["asserted"] == ["Pleural Effusion|left"]
    assert reports[0]["negated"] == ["Pneumothorax"]
    # the second report is normal; the third names an abnormality beyond the findings
    assert [row["normal"] for row in reports] == [False, True, False]

    said = {
        row["text_key"]: row
        for row in read_table(artifact.path, labels.SENTENCE_CLAIMS).to_pylist()
    }
    assert list(said) == sorted(said)
    assert len(said) == 6
    assert said[sentences.text_key("No acute disease.")]["normal"]


def test_foreign_reports_have_no_claims_and_are_warned_of(tmp_path, capsys):
    texts = {"s1": ["Kein Erguss links.", "Pneumothorax."], "s2": ["No effusion."]}
    claims = read(tmp_path, texts)
    assert [
        row["negated"] for row in read_table(claims.path, labels.REPORT_CLAIMS).to_pylist()
    ] == [[], ["Pleural Effusion"]]
    # "Pneumothorax." says so by itself, but stands in a German report alone
    assert read_table(claims.path, labels.SENTENCE_CLAIMS)["asserted"].to_pylist() == [[], [], []]
    assert claims.summary["languages"] == {"de": 1, "en": 1}
    assert "1 of 2 reports read like another language" in capsys.readouterr().out


def test_a_table_of_claims_stands_for_our_reading(config_file: Path) -> None:
    table = config_file.parent / "claims.csv"
    table.write_text(
        "text,finding,state,side\nScoliosis is noted.,Scoliosis,present,\n"
        "Small left effusion.,Pleural Effusion,present,left\nNo acute disease.,No Finding,1,\n"
    )
    arguments = ["--config", str(config_file), "--set", f"claims.table={table}"]
    assert main(arguments) == 0
    artifact = open_artifact(labels.ARTIFACT.at(config_file.parent), labels.ARTIFACT)
    assert labels.claimed_findings(artifact) == (*labels.FINDINGS, "Scoliosis")
    reports = read_table(artifact.path, labels.REPORT_CLAIMS).to_pylist()
    assert [row["asserted"] for row in reports] == [["Pleural Effusion|left"], [], ["Scoliosis"]]
    assert [row["negated"] for row in reports] == [[], [], []]  # the table says nothing of it
    assert [row["normal"] for row in reports] == [False, True, False]
    before = artifact.digest
    table.write_text(table.read_text() + "Two views were obtained.,,,\n")
    assert main(arguments) == 0
    after = open_artifact(labels.ARTIFACT.at(config_file.parent), labels.ARTIFACT)
    assert after.digest != before or after.fingerprint != artifact.fingerprint
