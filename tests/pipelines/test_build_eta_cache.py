"""build_eta_cache: eta by its formula, bit for bit, from every source, rescoring nothing."""

import csv
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from medclip_dcl.core.artifact import Artifact, make_fingerprint, open_artifact
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest
from medclip_dcl.likelihood import eta, eta_sources, masked_lm, scoring
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import distinct_sentences, text_key
from pipelines.__main__ import main
from tests.support.corpus import commit_tables, write_reports


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scored")
    path = config_of(folder)
    write_reports(folder / "work")
    assert main(["split_sentences", "--config", str(path)]) == 0
    distinct = distinct_sentences(corpus_of(path)).to_pylist()
    generator = np.random.default_rng(0)
    rows = [
        {
            "text_key": row["text_key"],
            "pll_nats": 0.0 if index == 0 else -float(generator.gamma(2, 6)),
            "tokens": 5,
            "count": row["count"],
        }
        for index, row in enumerate(distinct)
    ]
    commit_tables(folder / "work", scoring.ARTIFACT, {scoring.LIKELIHOODS: rows})
    return folder / "work"


@pytest.fixture
def config_file(scored: Path, tmp_path: Path) -> Path:
    shutil.copytree(scored, tmp_path / "work")
    return config_of(tmp_path)


def config_of(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(f"work: {folder / 'work'}\n", encoding="utf-8")
    return path


def corpus_of(config_file: Path) -> Artifact:
    return open_artifact(config_file.parent / "work" / "sentences", sentences.ARTIFACT)


def run(config_file: Path, *settings: str, code: int = 0) -> Artifact | None:
    more = [part for setting in settings for part in ("--set", f"eta.{setting}")]
    assert main(["build_eta_cache", "--config", str(config_file), *more]) == code
    if code:
        return None
    return open_artifact(config_file.parent / "work" / "eta_cache", eta.ARTIFACT)


def rows_of(artifact: Artifact) -> list[dict]:
    return read_table(artifact.path, eta.ETA).to_pylist()


@pytest.mark.parametrize(("a", "k", "eta_max"), [(0.2, 0.35, 0.2), (0.5, 0.1, 0.15)])
def test_eta_is_exactly_the_capped_formula(config_file, a, k, eta_max):
    artifact = run(config_file, f"a={a}", f"k={k}", f"eta_max={eta_max}")
    rows = rows_of(artifact)
    pll_nats = torch.tensor([row["pll_nats"] for row in rows], dtype=torch.float64)
    expected = (a * torch.exp(k * pll_nats)).clamp(max=eta_max)
    assert [row["eta"] for row in rows] == expected.tolist()
    capped = sum(float(value) > eta_max for value in a * torch.exp(k * pll_nats)) / len(rows)
    assert artifact.summary["capped_share"] == pytest.approx(capped, abs=1e-6)
    assert (capped > 0) == (a == 0.5)


@pytest.mark.parametrize("k", [40, 0.1], ids=["most are 0", "all differ"])
def test_the_summary_describes_eta_by_sentence_and_by_occurrence(config_file, k):
    artifact = run(config_file, "a=0.5", f"k={k}", "eta_max=0.4")
    values, counts = zip(*((row["eta"], row["count"]) for row in rows_of(artifact)), strict=True)
    assert max(counts) > min(counts)  # else weights would not show
    is_capped = [value == 0.4 for value in values]
    expected = {
        "sentences": len(values),
        "capped_share": np.mean(is_capped),
        "capped_share_weighted": np.average(is_capped, weights=counts),
        "eta_mean": np.mean(values),
        "eta_mean_weighted": np.average(values, weights=counts),
        "eta_zero_share": sum(value == 0 for value in values) / len(values),
        "eta_median": np.median(values),
        "eta_p5": np.percentile(values, 5),
        "eta_p95": np.percentile(values, 95),
    }
    found = {name: artifact.summary[name] for name in expected}
    assert found == {name: round(float(value), 6) for name, value in expected.items()}
    assert artifact.summary["source"] == "pll"
    assert found["eta_zero_share"] > 0 if k == 40 else found["eta_p5"] < found["eta_p95"]


def test_constant_is_the_same_for_all_and_reads_no_likelihoods(config_file):
    for file in (config_file.parent / "work" / "likelihoods").iterdir():
        file.unlink()
    rows = rows_of(run(config_file, "source=constant", "constant=0.1"))
    assert {row["eta"] for row in rows} == {0.1}
    assert {row["pll_nats"] for row in rows} == {None}


def write_given(config_file: Path, skip: int = 0) -> Path:
    path = config_file.parent / "given.csv"
    texts = distinct_sentences(corpus_of(config_file))["text"].to_pylist()
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "rho"])
        writer.writerows([text, number / 40] for number, text in enumerate(texts[skip:]))
    return path


def test_a_table_that_lacks_sentences_ends_with_4_and_counts_them(config_file, capsys):
    path = write_given(config_file, skip=2)
    run(config_file, "source=table", f"table={path}", code=4)
    message = capsys.readouterr().err
    assert "lacks 2 of 25 sentences" in message
    assert "0: no correction" in message
    assert "effusion" not in message


def test_missing_likelihoods_end_with_4_and_name_the_job(config_file, capsys):
    for file in (config_file.parent / "work" / "likelihoods").iterdir():
        file.unlink()
    run(config_file, code=4)
    assert "score_sentences" in capsys.readouterr().err


def test_labels_give_the_share_of_studies_that_a_sentence_fits(config_file):
    work = config_file.parent / "work"
    distinct = distinct_sentences(corpus_of(config_file)).to_pylist()
    clear = next(row for row in distinct if row["text"] == "The lungs are clear.")
    rows = [
        {
            "text_key": row["text_key"],
            "asserted": [],
            "negated": [],
            "uncertain": [],
            "normal": row == clear,
            "zone": "",
            "severity": "",
        }
        for row in distinct
    ]
    commit_tables(work, labels.ARTIFACT, {labels.SENTENCE_CLAIMS: rows})
    run(config_file, "source=labels", code=2)
    assert not eta_sources.has_labels(open_artifact(work / "manifest", manifest.ARTIFACT))
    reports = read_table(work / "manifest", manifest.REPORTS)
    studies = reports["study_id"].to_pylist()
    rows_of_labels = [
        {"study_id": study, **dict.fromkeys(LABELS), "No Finding": int(index % 10 == 0)}
        for index, study in enumerate(studies)
    ]
    others = [
        row
        for row, split in zip(rows_of_labels, reports["split"].to_pylist(), strict=True)
        if split != "train"
    ]
    for known in (others, rows_of_labels):
        tables = {manifest.REPORTS: reports, manifest.STUDY_LABELS: known}
        listed = commit_tables(work, manifest.ARTIFACT, tables, labels=True)
        assert eta_sources.has_labels(listed) == (known is rows_of_labels)
    found = {row["text_key"]: row["eta"] for row in rows_of(run(config_file, "source=labels"))}
    training = [
        index for index, split in enumerate(reports["split"].to_pylist()) if split == "train"
    ]
    share = sum(index % 10 == 0 for index in training) / len(training)
    assert found.pop(clear["text_key"]) == share
    assert set(found.values()) == {0.0}


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
def fitted_config(tmp_path_factory) -> Path:
    """Findings of shares from .3 down, each in four wordings; likelihoods are (share / A)**(1 / K).

    The share is that of the training studies that say anything. A language model that was fitted
    here has scored the sentences.
    """
    work = tmp_path_factory.mktemp("fitted") / "work"
    rng = np.random.default_rng(0)
    rows, said, name_of = [], [], {}
    shares = {name: 0.3 * 0.75**rank for rank, name in enumerate(WORDS)}
    for number in range(240):
        study, split = f"s{number:04d}", "train" if number < 220 else "validate"
        present = [name for name in WORDS if rng.random() < shares[name]]
        found = {name: int(name in present) for name in WORDS}
        said.append({"study_id": study, **dict.fromkeys(LABELS), **found, "No Finding": None})
        for position, name in enumerate(present):
            text = FORMS[rng.integers(len(FORMS))].format(WORDS[name]).capitalize()
            name_of[text_key(text)] = name
            row = {"study_id": study, "subject_id": study, "split": split, "section": "findings"}
            rows.append({**row, "position": position, "text": text, "text_key": text_key(text)})
    commit_tables(work, sentences.ARTIFACT, {sentences.SENTENCES: rows})
    telling = [row for row in said[:220] if any(row[name] for name in WORDS)]
    has = {name: sum(row[name] for row in telling) / len(telling) for name in WORDS}
    scores = [
        {"text_key": key, "pll_nats": math.log(has[name] / A) / K, "tokens": 4, "count": 1}
        for key, name in sorted(name_of.items())
    ]
    commit_tables(work, scoring.ARTIFACT, {scoring.LIKELIHOODS: scores})
    commit_tables(work, manifest.ARTIFACT, {manifest.STUDY_LABELS: said}, labels=True)
    fingerprint = make_fingerprint(masked_lm.ARTIFACT, {}, {})
    with write_artifact(masked_lm.ARTIFACT.at(work), masked_lm.ARTIFACT, fingerprint) as writer:
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (writer.directory / name).write_bytes(b"{}")  # nobody scores with it again
        writer.commit({"fitted": True})
    path = config_of(work.parent)
    assert main(["read_claims", "--config", str(path)]) == 0
    return path


@pytest.mark.parametrize("fit", ["claims", "labels"])
def test_a_and_k_that_made_the_likelihoods_are_fitted(fitted_config, fit, capsys):
    artifact = run(fitted_config, f"fit={fit}", "eta_max=0.25")
    found = artifact.summary
    assert found["a"] == pytest.approx(A, rel=0.1)
    assert found["k"] == pytest.approx(K, rel=0.1)
    assert found["fit"] == fit
    assert found["fit_log_error"] < 0.1 < found["fit_log_error_constant"]
    rows = rows_of(artifact)
    expected = [min(found["a"] * math.exp(found["k"] * row["pll_nats"]), 0.25) for row in rows]
    assert [row["eta"] for row in rows] == pytest.approx(expected, rel=1e-3)
    assert "warning" not in capsys.readouterr().out
    run(fitted_config, f"fit={fit}", "eta_max=0.25", "a=0.3")  # not read
    assert '"state": "reused"' in capsys.readouterr().out


def test_the_papers_line_on_a_model_that_was_fitted_here_is_warned_of(fitted_config, capsys):
    run(fitted_config)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    warning = next(line["note"] for line in lines if "note" in line)
    expected, measured = (float(part) for part in re.findall(r"(?:expects|show) ([\d.]+)", warning))
    assert expected < measured / 2
    assert "eta.fit=claims" in warning
    run(fitted_config, "a=0.5", "k=0.2")  # the user's own
    assert '"note"' not in capsys.readouterr().out


def test_too_few_measured_sentences_are_said_and_the_papers_a_and_k_are_taken(
    fitted_config, tmp_path, capsys
):
    shutil.copytree(fitted_config.parent / "work", tmp_path / "work")
    artifact = run(config_of(tmp_path), "fit=claims", "eta_max=0.01", "a=0.5")
    assert (artifact.summary["a"], artifact.summary["k"]) == (0.2, 0.35)
    pll_nats = np.array([row["pll_nats"] for row in rows_of(artifact)])
    expected = np.minimum(0.2 * np.exp(0.35 * pll_nats), 0.01)
    assert [row["eta"] for row in rows_of(artifact)] == pytest.approx(expected.tolist())
    said = capsys.readouterr().out
    assert "a and k are not fitted but 0.2 and 0.35: the smallest share" in said
    assert "eta.fit to none" in said


def test_a_fit_without_its_labels_or_studies_is_refused(fitted_config, tmp_path, capsys):
    work = tmp_path / "work"
    shutil.copytree(fitted_config.parent / "work", work)
    commit_tables(work, manifest.ARTIFACT, {}, labels=False)
    path = config_of(tmp_path)
    run(path, "fit=labels", code=2)
    assert "eta.fit is 'labels'" in capsys.readouterr().err
    none = {labels.SENTENCE_CLAIMS: [], labels.REPORT_CLAIMS: []}
    commit_tables(work, labels.ARTIFACT, none)
    run(path, "fit=claims", code=4)
    assert "read_claims" in capsys.readouterr().err
