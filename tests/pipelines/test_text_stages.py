"""Reports become sentences, claims, a language model, likelihoods and eta: keyed and counted."""

import csv
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from medclip_dcl.core.artifact import Artifact, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.data import manifest
from medclip_dcl.likelihood import LikelihoodConfig, eta, masked_lm, scoring
from medclip_dcl.likelihood.masked_lm import load_language_model, save_language_model
from medclip_dcl.likelihood.pll import pseudo_log_likelihood
from medclip_dcl.likelihood.scoring import Scorer, read_parts
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.sentences import distinct_sentences, text_key
from tests.support.bert import tiny_bert, tiny_tokenizer, write_cxr_bert
from tests.support.corpus import commit_tables, sentence_rows
from tests.support.jobs import config_for, made, rows, run

UNIT_PIECES = 150
PARTS = ".likelihoods.draft/parts"
FINDINGS = (
    "The lungs are clear. No pleural effusion or pneumothorax.",
    "Small left pleural\n effusion. The heart is enlarged.",
    "Stable cardiomegaly with mild vascular congestion. 1. . Normal chest.",
    "No focal consolidation, effusion,\n or pneumothorax. The lungs are clear.",
    "Right lower lobe opacity may be pneumonia. Dr. ___ was told at 3:15 p.m. today.",
)
IMPRESSIONS = ("No acute process is seen.", "", "Clear lungs.", "Findings suggest mild edema.")


def write_reports(work: Path) -> None:
    """Write the manifest's reports; the rest of a manifest is left out."""
    written = [
        {
            "study_id": f"s{number:04d}",
            "subject_id": f"p{number:04d}",
            "split": ("train", "train", "train", "validate", "test")[number % 7 % 5],
            "findings": FINDINGS[number % 5] + f" Line number {number % 11} is in place.",
            "impression": IMPRESSIONS[number % 4],
            "last_paragraph": "",
        }
        for number in range(60)
    ]
    other = written[0] | {"study_id": "s9998", "findings": "", "impression": ""}
    written.append(other | {"last_paragraph": "There is no change since yesterday."})
    written.append(other | {"study_id": "s9999", "impression": "Normal."})
    commit_tables(work, manifest.ARTIFACT, {manifest.REPORTS: written})


def write_model(work: Path, scale: float = 4.0) -> None:
    kind = masked_lm.ARTIFACT
    fingerprint = make_fingerprint(kind, {"scale": scale}, {})
    with write_artifact(kind.at(work), kind, fingerprint) as writer:
        save_language_model(tiny_bert(scale=scale), tiny_tokenizer(), writer.directory)
        writer.commit({})


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose reports are split, and a language model."""
    work = tmp_path_factory.mktemp("split") / "work"
    write_reports(work)
    config_for(work)
    run("split_sentences", work)
    write_model(work)
    return work


def copy_of(work: Path, folder: Path) -> Path:
    copy = shutil.copytree(work, folder / "work")
    config_for(copy)
    return copy


# ---- Sentences


def test_every_sentence_has_its_place_and_key_and_what_is_left_out_is_counted(split):
    found = rows(split, sentences.ARTIFACT, sentences.SENTENCES)
    first = [row for row in found if row["study_id"] == "s0001"]
    assert [(row["section"], row["position"], row["text"]) for row in first] == [
        ("findings", 0, "Small left pleural effusion."),
        ("findings", 1, "The heart is enlarged."),
        ("findings", 2, "Line number 1 is in place."),
    ]
    assert all(row["text_key"] == text_key(row["text"]) for row in found)
    order = [(row["study_id"], row["section"], row["position"]) for row in found]
    assert order == sorted(order)
    summary = made(split, sentences.ARTIFACT).summary
    assert summary["reports"] == summary["reports_with_sentences"] == 62  # "Normal." is one
    assert summary["dropped_enumerator"] + summary["dropped_punctuation"] >= 12
    assert summary["dropped_short"] == 0
    dropped = sum(count for name, count in summary.items() if name.startswith("dropped_"))
    assert summary["found_sentences"] - dropped == summary["sentences"]
    assert 0 < summary["masked_share"] < 0.2
    assert summary["unique"] < summary["sentences"] < 62 * 4


def test_distinct_sentences_count_the_training_split_alone(split):
    artifact = made(split, sentences.ARTIFACT)
    found = rows(split, sentences.ARTIFACT, sentences.SENTENCES)
    training = [row for row in found if row["split"] == "train"]
    table = distinct_sentences(artifact).to_pylist()
    assert [row["text_key"] for row in table] == sorted({row["text_key"] for row in found})
    for row in table:
        said = [other for other in training if other["text"] == row["text"]]
        assert row["count"] == len(said)
        assert row["reports"] == len({other["study_id"] for other in said})


# ---- Claims


REPORTS = {
    "s1": ["Small left effusion.", "No pneumothorax."],
    "s2": ["No acute disease.", "Heart size is normal."],
    "s3": ["No acute disease.", "Scoliosis is noted.", "Two views were obtained."],
}


def say(work: Path, reports: dict[str, list[str]]) -> Path:
    """Write the sentences of reports."""
    table = [
        row
        for study, texts in reports.items()
        for row in sentence_rows({"study_id": study, "subject_id": study, "split": "train"}, texts)
    ]
    work.mkdir()
    commit_tables(work, sentences.ARTIFACT, {sentences.SENTENCES: table})
    config_for(work)
    return work


def test_sentences_and_reports_get_their_claims_and_foreign_ones_none_and_are_warned_of(
    tmp_path, capsys
):
    foreign = {"s4": ["Kein Erguss links.", "Pneumothorax."]}
    work = say(tmp_path / "work", REPORTS | foreign)
    run("read_claims", work)
    reports = rows(work, labels.ARTIFACT, labels.REPORT_CLAIMS)
    assert [row["study_id"] for row in reports] == ["s1", "s2", "s3", "s4"]
    assert (reports[0]["asserted"], reports[3]["asserted"]) == (["Pleural Effusion|left"], [])
    assert (reports[0]["negated"], reports[3]["negated"]) == (["Pneumothorax"], [])
    # the second report is normal; the third names an abnormality beyond the findings
    assert [row["normal"] for row in reports] == [False, True, False, False]
    said = {row["text_key"]: row for row in rows(work, labels.ARTIFACT, labels.SENTENCE_CLAIMS)}
    assert list(said) == sorted(said)
    assert len(said) == 8
    assert said[text_key("No acute disease.")]["normal"]
    # it says so by itself, but stands in a German report alone
    assert said[text_key("Pneumothorax.")]["asserted"] == []
    assert made(work, labels.ARTIFACT).summary["languages"] == {"de": 1, "en": 3}
    assert "1 of 4 reports read like another language" in capsys.readouterr().out


def test_a_table_of_claims_stands_for_our_reading(tmp_path):
    work, table = say(tmp_path / "work", REPORTS), tmp_path / "claims.csv"
    table.write_text(
        "text,finding,state,side\nScoliosis is noted.,Scoliosis,present,\n"
        "Small left effusion.,Pleural Effusion,present,left\nNo acute disease.,No Finding,1,\n"
    )
    run("read_claims", work, f"claims.table={table}")
    before = made(work, labels.ARTIFACT)
    assert labels.claimed_findings(before) == (*labels.FINDINGS, "Scoliosis")
    reports = rows(work, labels.ARTIFACT, labels.REPORT_CLAIMS)
    assert [row["asserted"] for row in reports] == [["Pleural Effusion|left"], [], ["Scoliosis"]]
    assert [row["negated"] for row in reports] == [[], [], []]  # the table says nothing of it
    assert [row["normal"] for row in reports] == [False, True, False]
    table.write_text(table.read_text() + "Two views were obtained.,,,\n")
    run("read_claims", work, f"claims.table={table}")
    after = made(work, labels.ARTIFACT)
    assert after.digest != before.digest or after.fingerprint != before.fingerprint


# ---- The language model


SMALL = ("vocabulary=150", "hidden_size=16", "layers=1", "steps=8", "batch=8", "threads=1")
FILES = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
"""The card, and what transformers' own classes read offline."""


def fit(work: Path, *settings: str) -> Artifact:
    run("fit_language_model", work, *(f"language_model.{item}" for item in (*SMALL, *settings)))
    return made(work, masked_lm.ARTIFACT)


def test_a_fitted_model_is_whole_and_measured(split, tmp_path):
    artifact = fit(copy_of(split, tmp_path))
    assert set(artifact.files) == FILES
    assert artifact.summary["fitted"] is True
    assert 0 <= artifact.summary["held_out_accuracy"] <= 1
    assert artifact.summary["held_out_sentences"] > 0
    card = artifact.file(masked_lm.CARD).read_text()
    assert yaml.safe_load(card.split("---")[1])["license"] == "other"
    assert f"{artifact.summary['held_out_accuracy']:.1%} of the" in card
    assert "Not a medical device" in card
    assert artifact.fingerprint["inputs"]["sentences"] in card
    assert "effusion" not in card
    loaded = load_language_model(artifact.path)
    assert loaded.model.config.hidden_size == 16
    assert len(loaded.tokenizer) == artifact.summary["vocabulary"] <= 150
    assert masked_lm.tokenizer_digest(artifact) == artifact.files["tokenizer.json"]["sha256"]


def test_given_model_is_copied_without_its_head_or_fine_tuned_and_a_changed_one_is_seen(
    split, tmp_path
):
    work, model, given = copy_of(split, tmp_path), tiny_bert(), f"pretrained={tmp_path / 'cxr'}"
    write_cxr_bert(tmp_path / "cxr", model, pickled=True)
    artifact = fit(work, "steps=0", given)
    assert artifact.summary["fitted"] is False
    assert artifact.summary["ignored_keys"] == 6
    assert "model.safetensors" in artifact.files
    ids = torch.tensor([[2, 8, 13, 3]])
    with torch.no_grad():
        copied = load_language_model(artifact.path).model(ids).logits
        assert torch.equal(copied, model(ids).logits)
    artifact = fit(work, given)
    assert 0 <= artifact.summary["held_out_accuracy_before"] <= 1
    assert "random weights" not in artifact.file(masked_lm.CARD).read_text()
    tuned = load_language_model(artifact.path).model
    pairs = zip(tuned.parameters(), model.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs)
    write_cxr_bert(tmp_path / "other", tiny_bert(scale=2.0))
    assert fit(work, f"pretrained={tmp_path / 'other'}").digest != artifact.digest


# ---- Likelihoods


@pytest.fixture(scope="module", autouse=True)
def small_units():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_FEW_PIECES", UNIT_PIECES)
        yield


@pytest.fixture(scope="module")
def scored(split, tmp_path_factory):
    work = copy_of(split, tmp_path_factory.mktemp("scored"))
    run("score_sentences", work)
    return work


@pytest.fixture(scope="module")
def cut(split, tmp_path_factory):
    """Work of a job that was stopped after a few units."""
    work = copy_of(split, tmp_path_factory.mktemp("cut"))
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, patch)
        run("score_sentences", work, code=75)
    return work


def acknowledged(work: Path) -> dict[str, float]:
    """Scores on disk, each of another sentence."""
    found = read_parts(work / PARTS)[0].to_pylist()
    assert len({row["text_key"] for row in found}) == len(found)
    return {row["text_key"]: row["pll_nats"] for row in found}


def stop_after(tasks: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the scorer be interrupted after some tasks; returns the keys that it is handed."""
    handed: list[str] = []
    score, numbers = Scorer.score, itertools.count()

    def scored(self, texts):
        if next(numbers) == tasks:
            raise KeyboardInterrupt
        handed.extend(map(text_key, texts))
        return score(self, texts)

    monkeypatch.setattr(Scorer, "score", scored)
    return handed


def test_scores_and_counts_are_those_of_the_sentences(scored):
    table = rows(scored, scoring.ARTIFACT, scoring.LIKELIHOODS)
    distinct = distinct_sentences(made(scored, sentences.ARTIFACT)).to_pylist()
    texts = [row["text"] for row in distinct]
    expected = pseudo_log_likelihood(tiny_bert(), tiny_tokenizer(), texts)
    assert [row["pll_nats"] for row in table] == pytest.approx(expected.tolist(), abs=2e-4)
    for name in ("text_key", "count"):
        assert [row[name] for row in table] == [row[name] for row in distinct]
    assert max(row["count"] for row in table) > 3


def test_whole_scores_are_reused_where_another_engine_is_at_hand(split, tmp_path, capsys):
    work = copy_of(split, tmp_path)
    for settings in (["likelihood.engine=torch"], []):
        run("score_sentences", work, *settings)
        assert made(work, scoring.ARTIFACT).fingerprint["settings"]["engine"] == "torch"
    assert '"state": "reused"' in capsys.readouterr().out.splitlines()[-1]
    run("score_sentences", work, "likelihood.engine=openvino")
    assert "settings.engine: " in capsys.readouterr().out.splitlines()[-1]


VALUES = {"variant": "within_word_l2r", "dtype": "bfloat16", "engine": "torch"}


def change_one(change: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Change one thing that scores depend on; gives the settings that a command needs for it."""
    if change == "model":
        write_model(work, scale=3.0)
    elif change == "normalisation":
        monkeypatch.setattr(sentences, "NORMALISATION", "lower case")
    elif change == "splitter":
        monkeypatch.setattr(sentences, "SPLITTER", "another one")
        run("split_sentences", work)
    return [f"likelihood.{change}={VALUES[change]}"] if change in VALUES else []


@pytest.mark.parametrize("change", ["variant", "dtype", "model", "splitter"])
def test_what_changes_scores_makes_them_anew_and_is_named(
    scored, tmp_path, capsys, monkeypatch, change
):
    work = copy_of(scored, tmp_path)
    before = made(work, scoring.ARTIFACT)
    more = change_one(change, work, monkeypatch)
    capsys.readouterr()
    run("build_eta_cache", work, *more, code=4)
    said = capsys.readouterr().err
    assert f"{change}: " in said
    assert "rerun score_sentences" in said
    run("score_sentences", work, *more)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["state"] == "made"
    assert f"settings.{change}: " in said["replaced"]
    after = made(work, scoring.ARTIFACT)
    assert (after.digest, after.fingerprint) != (before.digest, before.fingerprint)
    run("build_eta_cache", work, *more)


@pytest.mark.parametrize("change", ["variant", "engine", "model", "normalisation", "splitter"])
def test_an_unfinished_draft_refuses_other_scores_by_name(
    cut, tmp_path, capsys, monkeypatch, change
):
    work = copy_of(cut, tmp_path)
    before = acknowledged(work)
    more = change_one(change, work, monkeypatch)
    capsys.readouterr()
    run("score_sentences", work, *more, code=4)
    said = capsys.readouterr().err
    assert f"settings.{change}: " in said
    assert "delete that folder" in said
    assert acknowledged(work) == before


def test_a_damaged_part_is_scored_again_and_said_so(cut, scored, tmp_path, capsys):
    work = copy_of(cut, tmp_path)
    part = next((work / PARTS).glob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-9])
    run("score_sentences", work)
    assert made(work, scoring.ARTIFACT).digest == made(scored, scoring.ARTIFACT).digest
    assert '"damaged_parts": 1' in capsys.readouterr().out


def test_acknowledged_scores_outlive_a_change_of_what_is_only_speed(cut, tmp_path, monkeypatch):
    work = copy_of(cut, tmp_path)
    before = acknowledged(work)
    assert 2 <= len(before) < 20
    handed = stop_after(-1, monkeypatch)
    monkeypatch.setattr(scoring, "_FEW_PIECES", UNIT_PIECES // 2)
    run("score_sentences", work)
    table = rows(work, scoring.ARTIFACT, scoring.LIKELIHOODS)
    assert len(set(handed)) == len(handed) > 0
    assert not set(handed) & before.keys()
    assert before.items() <= {row["text_key"]: row["pll_nats"] for row in table}.items()
    assert not (work / ".likelihoods.draft").exists()


@pytest.mark.parametrize(("workers", "processes"), [(0, 2), (1, 1), (8, 2)])
def test_every_gpu_has_one_process(split, monkeypatch, workers, processes):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    source, model = made(split, sentences.ARTIFACT), made(split, masked_lm.ARTIFACT)
    corpus = scoring.CorpusScoring(source, model, LikelihoodConfig(), print, workers)
    assert corpus._processes(1e18) == processes
    assert workers or corpus._processes(1e9) == 1


# ---- Eta


def eta_of(work: Path, *settings: str) -> tuple[Artifact, list[dict]]:
    run("build_eta_cache", work, *(f"eta.{setting}" for setting in settings))
    return made(work, eta.ARTIFACT), rows(work, eta.ARTIFACT, eta.ETA)


@pytest.mark.parametrize(("a", "k", "eta_max"), [(0.2, 0.35, 0.2), (0.5, 40, 0.4), (0.5, 0.1, 0.1)])
def test_eta_is_exactly_the_capped_formula_and_the_summary_describes_it(
    scored, tmp_path, a, k, eta_max
):
    """With k = 40 most are 0."""
    work = copy_of(scored, tmp_path)
    artifact, found = eta_of(work, f"a={a}", f"k={k}", f"eta_max={eta_max}")
    pll_nats = torch.tensor([row["pll_nats"] for row in found], dtype=torch.float64)
    values = [row["eta"] for row in found]
    assert values == (a * torch.exp(k * pll_nats)).clamp(max=eta_max).tolist()
    counts = [row["count"] for row in found]
    assert max(counts) > min(counts)  # else weights would not show
    is_capped = [float(value) > eta_max for value in a * torch.exp(k * pll_nats)]
    assert (any(is_capped), all(is_capped)) == (k == 0.1, False)
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
    reported = {name: artifact.summary[name] for name in expected}
    assert reported == {name: round(float(value), 6) for name, value in expected.items()}
    assert artifact.summary["source"] == "pll"
    assert (reported["eta_zero_share"] > 0) == (k == 40)


def test_where_there_are_no_likelihoods_a_constant_needs_none_and_else_the_job_is_named(
    split, tmp_path, capsys
):
    work = copy_of(split, tmp_path)
    _, found = eta_of(work, "source=constant", "constant=0.1")
    assert {(row["eta"], row["pll_nats"]) for row in found} == {(0.1, None)}
    run("build_eta_cache", work, code=4)
    assert "score_sentences" in capsys.readouterr().err


def test_a_table_that_lacks_sentences_ends_with_4_and_counts_them(split, tmp_path, capsys):
    table = tmp_path / "given.csv"
    texts = distinct_sentences(made(split, sentences.ARTIFACT))["text"].to_pylist()
    with table.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "rho"])
        writer.writerows([text, number / 40] for number, text in enumerate(texts[2:]))
    run("build_eta_cache", split, "eta.source=table", f"eta.table={table}", code=4)
    message = capsys.readouterr().err
    assert "lacks 2 of 25 sentences" in message
    assert "0: no correction" in message
    assert "effusion" not in message
