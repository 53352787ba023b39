"""score_sentences: every distinct sentence scored once, whatever kills the job."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from medclip_dcl.core.artifact import Artifact, make_fingerprint, open_artifact
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.tables import read_table
from medclip_dcl.likelihood import masked_lm, scoring
from medclip_dcl.likelihood.masked_lm import save_language_model
from medclip_dcl.likelihood.pll import pseudo_log_likelihood
from medclip_dcl.likelihood.scoring import Scorer, read_parts
from medclip_dcl.likelihood.settings import LikelihoodConfig
from medclip_dcl.text import sentences
from medclip_dcl.text.sentences import distinct_sentences, text_key
from pipelines.__main__ import main
from tests.support.bert import tiny_bert, tiny_tokenizer
from tests.support.corpus import write_reports

UNIT_PIECES = 150


def write_model(work: Path, scale: float = 4.0) -> None:
    config_file = make_fingerprint(masked_lm.ARTIFACT, {"scale": scale}, {})
    kind = masked_lm.ARTIFACT
    with write_artifact(kind.at(work), kind, config_file) as writer:
        save_language_model(tiny_bert(scale=scale), tiny_tokenizer(), writer.directory)
        writer.commit({})


@pytest.fixture(scope="module", autouse=True)
def small_units() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_FEW_PIECES", UNIT_PIECES)
        yield


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    write_reports(folder / "work")
    assert main(["split_sentences", "--config", str(config_of(folder))]) == 0
    write_model(folder / "work")
    return folder / "work"


@pytest.fixture(scope="module")
def scored(split: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config_file = copy_of(split, tmp_path_factory.mktemp("scored"))
    run(config_file)
    return config_file.parent / "work"


@pytest.fixture(scope="module")
def cut(split: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Work of a job that was stopped after a few units."""
    config_file = copy_of(split, tmp_path_factory.mktemp("cut"))
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, patch)
        assert main(["score_sentences", "--config", str(config_file)]) == 75
    return config_file.parent / "work"


@pytest.fixture
def config_file(split: Path, tmp_path: Path) -> Path:
    return copy_of(split, tmp_path)


@pytest.fixture
def scored_file(scored: Path, tmp_path: Path) -> Path:
    return copy_of(scored, tmp_path)


@pytest.fixture
def cut_file(cut: Path, tmp_path: Path) -> Path:
    return copy_of(cut, tmp_path)


def copy_of(work: Path, folder: Path) -> Path:
    shutil.copytree(work, folder / "work")
    return config_of(folder)


def config_of(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(f"work: {folder / 'work'}\n", encoding="utf-8")
    return path


def run(config_file: Path, *more: str) -> Artifact:
    assert main(["score_sentences", "--config", str(config_file), *more]) == 0
    return open_artifact(config_file.parent / "work" / "likelihoods", scoring.ARTIFACT)


def run_elsewhere(config_file: Path) -> Artifact:
    """An uninterrupted run on equal inputs in a folder of its own."""
    work = config_file.parent / "elsewhere"
    for name in ("sentences", "language_model"):
        shutil.copytree(config_file.parent / "work" / name, work / name)
    other = config_file.parent / "elsewhere.yaml"
    other.write_text(f"work: {work}\n", encoding="utf-8")
    assert main(["score_sentences", "--config", str(other)]) == 0
    return open_artifact(work / "likelihoods", scoring.ARTIFACT)


def parts_folder(config_file: Path) -> Path:
    return config_file.parent / "work" / ".likelihoods.draft" / "parts"


def acknowledged(config_file: Path) -> dict[str, float]:
    """Scores on disk, each of another sentence."""
    rows = read_parts(parts_folder(config_file))[0].to_pylist()
    assert len({row["text_key"] for row in rows}) == len(rows)
    return {row["text_key"]: row["pll_nats"] for row in rows}


def stop_after(tasks: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the scorer be interrupted after some tasks; returns the keys that it is handed."""
    handed: list[str] = []
    score = Scorer.score

    def scored(self, task):
        if tasks == scored.calls:
            raise KeyboardInterrupt
        scored.calls += 1
        handed.extend(map(text_key, task.texts))
        return score(self, task)

    scored.calls = 0
    monkeypatch.setattr(Scorer, "score", scored)
    return handed


def test_scores_and_counts_are_those_of_the_sentences(config_file):
    table = read_table(run(config_file).path, scoring.LIKELIHOODS)
    corpus = open_artifact(config_file.parent / "work" / "sentences", sentences.ARTIFACT)
    distinct = distinct_sentences(corpus)
    texts = distinct["text"].to_pylist()
    expected = pseudo_log_likelihood(tiny_bert(), tiny_tokenizer(), texts)
    assert table["text_key"].to_pylist() == distinct["text_key"].to_pylist()
    assert table["pll_nats"].to_pylist() == pytest.approx(expected.tolist(), abs=2e-4)
    assert table["count"].to_pylist() == distinct["count"].to_pylist()
    assert max(table["count"].to_pylist()) > 3


def test_whole_scores_are_reused_where_another_engine_is_at_hand(config_file, capsys):
    assert (
        run(config_file, "--set", "likelihood.engine=torch").fingerprint["settings"]["engine"]
        == "torch"
    )
    assert run(config_file).fingerprint["settings"]["engine"] == "torch"
    assert '"state": "reused"' in capsys.readouterr().out.splitlines()[-1]
    run(config_file, "--set", "likelihood.engine=openvino")
    assert "settings.engine: " in capsys.readouterr().out.splitlines()[-1]


VALUES = {"variant": "within_word_l2r", "dtype": "bfloat16", "engine": "torch"}


def change_one(change, config_file, monkeypatch) -> list[str]:
    """Change one thing that scores depend on; gives the words that a command needs for it."""
    if change == "model":
        write_model(config_file.parent / "work", scale=3.0)
    elif change == "normalisation":
        monkeypatch.setattr(sentences, "NORMALISATION", "lower case")
    elif change == "splitter":
        monkeypatch.setattr(sentences, "SPLITTER", "another one")
        assert main(["split_sentences", "--config", str(config_file)]) == 0
    return ["--set", f"likelihood.{change}={VALUES[change]}"] if change in VALUES else []


@pytest.mark.parametrize("change", ["variant", "dtype", "model"])
def test_what_changes_scores_makes_them_anew_and_is_named(scored_file, capsys, monkeypatch, change):
    digest = run(scored_file).digest
    capsys.readouterr()
    more = change_one(change, scored_file, monkeypatch)
    assert run(scored_file, *more).digest != digest
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["state"] == "made"
    assert f"settings.{change}: " in said["replaced"]
    assert main(["build_eta_cache", "--config", str(scored_file), *more]) == 0


@pytest.mark.parametrize("change", ["variant", "dtype", "model", "splitter"])
def test_the_eta_cache_refuses_other_scores_by_name(scored_file, capsys, monkeypatch, change):
    more = change_one(change, scored_file, monkeypatch)
    assert main(["build_eta_cache", "--config", str(scored_file), *more]) == 4
    said = capsys.readouterr().err
    assert f"{change}: " in said
    assert "rerun score_sentences" in said


@pytest.mark.parametrize("change", ["variant", "engine", "model", "normalisation", "splitter"])
def test_an_unfinished_draft_refuses_other_scores_by_name(cut_file, capsys, monkeypatch, change):
    before = acknowledged(cut_file)
    more = change_one(change, cut_file, monkeypatch)
    capsys.readouterr()
    assert main(["score_sentences", "--config", str(cut_file), *more]) == 4
    said = capsys.readouterr().err
    assert f"settings.{change}: " in said
    assert "delete that folder" in said
    assert acknowledged(cut_file) == before


def test_a_damaged_part_is_scored_again_and_said_so(cut_file, capsys):
    part = next(parts_folder(cut_file).glob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-9])
    assert run(cut_file).digest == run_elsewhere(cut_file).digest
    assert '"damaged_parts": 1' in capsys.readouterr().out


def test_acknowledged_scores_outlive_a_change_of_what_is_only_speed(cut_file, monkeypatch):
    before = acknowledged(cut_file)
    assert 2 <= len(before) < 20
    handed = stop_after(-1, monkeypatch)
    monkeypatch.setattr(scoring, "_FEW_PIECES", UNIT_PIECES // 2)
    table = read_table(run(cut_file).path, scoring.LIKELIHOODS).to_pylist()
    assert len(set(handed)) == len(handed) > 0
    assert not set(handed) & before.keys()
    assert before.items() <= {row["text_key"]: row["pll_nats"] for row in table}.items()
    assert not (cut_file.parent / "work" / ".likelihoods.draft").exists()


@pytest.mark.parametrize(("workers", "processes"), [(0, 2), (1, 1), (8, 2)])
def test_every_gpu_has_one_process(scored_file, monkeypatch, workers, processes):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    work = scored_file.parent / "work"
    source, model = (
        open_artifact(kind.at(work), kind) for kind in (sentences.ARTIFACT, masked_lm.ARTIFACT)
    )
    corpus = scoring.CorpusScoring(source, model, LikelihoodConfig(), print, workers)
    assert corpus._processes(1e18) == processes
    assert workers or corpus._processes(1e9) == 1
