"""build_index: made for one model, and an engine is filled before it is published."""

import json
from pathlib import Path

import pytest

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.inference.predictor import load
from medclip_dcl.retrieval import RetrievalConfig
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.search import Query, RetrievalIndex
from tests.support.corpus import KINDS, write_corpus
from tests.support.jobs import run_here
from tests.support.milvus import milvus_file
from tests.support.published import publish

STUDIES = 10


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = write_corpus(tmp_path / "work", STUDIES)
    publish(work / "model")
    return work


def test_the_index_is_made_reused_and_made_anew_for_another_model(work, capsys):
    def state_of_run() -> str:
        run_here("build_index", work)
        lines = map(json.loads, capsys.readouterr().out.splitlines())
        return next(line["state"] for line in lines if line.get("artifact") == "index")

    assert state_of_run() == "made"
    assert state_of_run() == "reused"

    model = load(work / "model", "cpu")
    index = RetrievalIndex.open(ARTIFACT.at(work), model.digest)
    images = index.artifact.summary["images"]
    assert images == STUDIES + -(-STUDIES // 4)
    vector = model.embed_sentences([KINDS[0][1]])[0]
    question = Query("text", 1, vector=vector)
    (hit,) = index.search(question)
    assert hit.texts == [KINDS[0][1]]

    publish(work / "model", seed=1)
    assert state_of_run() == "made"
    assert open_artifact(ARTIFACT.at(work), ARTIFACT).digest != index.artifact.digest
    assert [*index.search(question)] == [hit]  # its files are open, whatever bears their names now


def test_an_engine_is_filled_before_the_index_is_published(work, tmp_path, monkeypatch):
    with milvus_file(tmp_path) as uri:
        run_here("build_index", work, f"retrieval.uri={uri}")
        model = load(work / "model", "cpu")
        plain = RetrievalIndex.open(ARTIFACT.at(work), model.digest)
        engine = RetrievalIndex.open(ARTIFACT.at(work), model.digest, RetrievalConfig(uri=uri))
        vector = model.embed_sentences([KINDS[1][1]])[0]
        for target in ("image", "text"):
            question = Query(target, 5, vector=vector)
            assert engine.search(question) == plain.search(question)
    publish(work / "model", seed=1)
    monkeypatch.setattr("medclip_dcl.retrieval.milvus.TIMEOUT_S", 0.3)
    run_here("build_index", work, "retrieval.uri=http://127.0.0.1:9", code=1)
    assert open_artifact(ARTIFACT.at(work), ARTIFACT).digest == plain.artifact.digest
