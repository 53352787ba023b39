import json
from pathlib import Path

import pytest

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.inference.predictor import load
from medclip_dcl.retrieval import RetrievalConfig
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.search import Query, RetrievalIndex
from pipelines.job import main_of
from tests.support.corpus import KINDS, write_config, write_corpus
from tests.support.milvus import milvus_file
from tests.support.published import publish

main = main_of("build_index")

STUDIES = 10


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = write_corpus(tmp_path / "work", STUDIES)
    publish(work / "model")
    return work


@pytest.fixture
def config_file(tmp_path: Path, work: Path) -> Path:
    return write_config(tmp_path / "config.yaml", work)


def run(config_file: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["--config", str(config_file), *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return next(line for line in lines if line.get("artifact") == "index")


def test_the_index_is_made_reused_and_made_anew_for_another_model(work, config_file, capsys):
    assert run(config_file, capsys)["state"] == "made"
    assert run(config_file, capsys)["state"] == "reused"

    model = load(work / "model", "cpu")
    index = RetrievalIndex.open(ARTIFACT.at(work), model.digest)
    images = index.artifact.summary["images"]
    assert images == STUDIES + -(-STUDIES // 4)
    vector = model.embed_sentences([KINDS[0][1]])[0]
    question = Query("text", 1, vector=vector)
    (hit,) = index.search(question)
    assert hit.texts == [KINDS[0][1]]

    publish(work / "model", seed=1)
    assert run(config_file, capsys)["state"] == "made"
    assert open_artifact(ARTIFACT.at(work), ARTIFACT).digest != index.artifact.digest
    assert [*index.search(question)] == [hit]  # its files are open, whatever bears their names now


def test_an_engine_is_filled_before_the_index_is_published(
    work, config_file, tmp_path, capsys, monkeypatch
):
    with milvus_file(tmp_path) as uri:
        run(config_file, capsys, "--set", f"retrieval.uri={uri}")
        model = load(work / "model", "cpu")
        plain = RetrievalIndex.open(ARTIFACT.at(work), model.digest)
        engine = RetrievalIndex.open(ARTIFACT.at(work), model.digest, RetrievalConfig(uri=uri))
        vector = model.embed_sentences([KINDS[1][1]])[0]
        for target in ("image", "text"):
            question = Query(target, 5, vector=vector)
            assert engine.search(question) == plain.search(question)
    publish(work / "model", seed=1)
    monkeypatch.setattr("medclip_dcl.retrieval.milvus.TIMEOUT_S", 0.3)
    gone = ["--set", "retrieval.uri=http://127.0.0.1:9"]
    assert main(["--config", str(config_file), *gone]) == 1
    assert open_artifact(ARTIFACT.at(work), ARTIFACT).digest == plain.artifact.digest
