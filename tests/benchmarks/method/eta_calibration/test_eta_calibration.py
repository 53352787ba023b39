"""a and k from a corpus whose likelihoods follow its own claims."""

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.fixtures.corpus import commit_tables
from benchmarks.method.eta_calibration.__main__ import main
from medclip_dcl.config import load_config
from medclip_dcl.data import manifest
from medclip_dcl.likelihood import scoring
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.labels import FINDINGS
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import text_key
from pipelines import read_claims

STUDIES = 240
A, K = 0.5, 0.2
WORDS = {
    "Cardiomegaly": "cardiomegaly",
    "Pleural Effusion": "pleural effusion",
    "Edema": "pulmonary edema",
    "Pneumothorax": "pneumothorax",
    "Atelectasis": "atelectasis",
    "Pneumonia": "pneumonia",
    "Fracture": "rib fracture",
    "Consolidation": "consolidation",
}
FORMS = ("There is {}.", "{} is present.", "Again seen is {}.", "{} is noted.")


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    """Findings of shares from 0.3 down; each said in any of four wordings."""
    work = tmp_path_factory.mktemp("calibrated") / "work"
    rng = np.random.default_rng(0)
    rows, labels, share_of = [], [], {}
    shares = {name: 0.3 * 0.75**folder for folder, name in enumerate(WORDS)}
    for number in range(STUDIES):
        study = f"s{number:04d}"
        present = [name for name in WORDS if rng.random() < shares[name]]
        labels.append(
            {
                "study_id": study,
                **dict.fromkeys(LABELS),
                **{name: int(name in present) for name in WORDS},
                "No Finding": int(not present),
            }
        )
        for position, name in enumerate(present):
            text = FORMS[rng.integers(len(FORMS))].format(WORDS[name]).capitalize()
            share_of[text_key(text)] = (text, name)
            rows.append(
                {
                    "study_id": study,
                    "subject_id": f"p{number // 2:04d}",
                    "split": "train",
                    "section": "findings",
                    "position": position,
                    "text": text,
                    "text_key": text_key(text),
                }
            )
    commit_tables(work, sentences.ARTIFACT, {sentences.SENTENCES: rows})
    reported = {row["study_id"] for row in rows}
    has = {
        name: sum(row[name] or 0 for row in labels if row["study_id"] in reported) / len(reported)
        for name in WORDS
    }
    scores = [
        {
            "text_key": key,
            "pll_nats": min(0.0, (math.log(has[name] / A) + 0.1 * rng.normal()) / K),
            "tokens": 4,
            "count": 1,
        }
        for key, (_, name) in sorted(share_of.items())
    ]
    commit_tables(work, scoring.ARTIFACT, {scoring.LIKELIHOODS: scores})
    commit_tables(work, manifest.ARTIFACT, {manifest.STUDY_LABELS: labels}, labels=True)
    path = work.parent / "config.yaml"
    path.write_text(f"work: {work}\neta: {{eta_max: 0.25}}\n")
    given = work.parent / "given.csv"
    with given.open("w", newline="") as stream:
        rows = [[f"1. {text}", has[name]] for text, name in share_of.values()]
        csv.writer(stream).writerows([["text", "rho"], *rows])
    assert read_claims.main(["--config", str(path)]) == 0
    return path


def run(config_file: Path, *settings: str, code: int = 0, **options: object) -> dict:
    words = [part for setting in settings for part in ("--set", setting)]
    for name, value in ({"resamples": 0} | options).items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    assert main(["--config", str(config_file), *words]) == code
    return {} if code else json.loads((folder(config_file) / "calibration.json").read_text())


def folder(config_file: Path) -> Path:
    return config_file.parent / "work" / "calibration"


@pytest.mark.parametrize("evidence", ["claims", "labels", "table"])
def test_a_and_k_that_made_the_likelihoods_are_found(config_file, evidence):
    given = f"eta.table={config_file.parent / 'given.csv'}"
    record = run(config_file, given, evidence=evidence)
    assert record["fitted"]["a"] == pytest.approx(A, rel=0.2)
    assert record["fitted"]["k"] == pytest.approx(K, rel=0.2)
    assert record["correlation"] > 0.95
    assert record["log_errors"]["fitted"] < 0.2 < record["log_errors"]["constant"]
    assert record["measured"] + record["above_cap"] + record["below_floor"] == pytest.approx(1)


def test_wordings_are_rarer_than_meanings(config_file):
    by_claims = run(config_file)["constant"]
    assert run(config_file, evidence="frequency")["constant"] < by_claims / 2


def test_the_interval_holds_the_fit(config_file):
    record = run(config_file, resamples=8)
    assert record["resamples"] == 8
    for name, (low, high) in record["interval"].items():
        assert 0.8 * low < record["fitted"][name] < 1.2 * high
    assert run(config_file)["interval"] is None


def test_the_fragment_is_a_recipe_s_section(config_file, tmp_path):
    record = run(config_file)
    text = (folder(config_file) / "eta.yaml").read_text()
    section = yaml.safe_load(text)["eta"]
    assert section["eta_max"] == 0.25
    assert section["k"] == pytest.approx(record["fitted"]["k"], rel=1e-3)
    (tmp_path / "whole.yaml").write_text(f"work: here\n{text}")
    assert load_config(tmp_path / "whole.yaml").eta.a == section["a"]


def test_record_and_fragment_hold_no_text(config_file):
    run(config_file)
    for name in ("calibration.json", "eta.yaml"):
        content = (folder(config_file) / name).read_text()
        assert not any(word in content for word in WORDS.values())


def test_a_corpus_of_findings_that_nobody_reads_is_refused(config_file, capsys):
    run(config_file, min_studies=80, code=4)
    assert "min-studies" in capsys.readouterr().err


def test_missing_likelihoods_end_with_4_and_name_the_job(config_file, tmp_path, capsys):
    run(config_file, f"work={tmp_path / 'nothing'}", code=4)
    assert "score_sentences" in capsys.readouterr().err


def test_evidence_that_is_not_there_is_named(config_file, tmp_path, capsys):
    work = tmp_path / "work"
    shutil.copytree(config_file.parent / "work", work)
    none = {labels.SENTENCE_CLAIMS: [], labels.REPORT_CLAIMS: []}
    commit_tables(work, labels.ARTIFACT, none, claims=False)
    run(config_file, f"work={work}", code=4)
    assert "read_claims" in capsys.readouterr().err
    commit_tables(work, manifest.ARTIFACT, {}, labels=False)
    run(config_file, f"work={work}", evidence="labels", code=2)
    assert "'labels'" in capsys.readouterr().err
    commit_tables(work, scoring.ARTIFACT, {scoring.LIKELIHOODS: []})
    run(config_file, f"work={work}", code=4)
    assert "score_sentences" in capsys.readouterr().err


def test_the_findings_used_here_are_those_of_the_lexicon():
    assert set(WORDS) <= set(FINDINGS)
