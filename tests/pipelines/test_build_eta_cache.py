"""build_eta_cache: eta by its formula, bit for bit, from every source, rescoring nothing."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from medclip_dcl.core.artifact import Artifact, open_artifact
from medclip_dcl.core.tables import read_table
from medclip_dcl.likelihood import eta, scoring
from medclip_dcl.text import sentences
from medclip_dcl.text.sentences import distinct_sentences
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
