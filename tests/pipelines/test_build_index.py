import json
import shutil
import signal
from pathlib import Path

import pytest

from benchmarks.fixtures.corpus import KINDS, write_config, write_corpus
from benchmarks.fixtures.killed import SHARDS, killed_at_shard
from benchmarks.fixtures.milvus import milvus_server
from benchmarks.fixtures.published import publish
from medclip_dcl.artifact import open_artifact
from medclip_dcl.inference import load
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.search import Query, RetrievalIndex
from medclip_dcl.retrieval.settings import RetrievalConfig
from pipelines.build_index import main

STUDIES = 10


def run(config_file: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["--config", str(config_file), *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return next(line for line in lines if line.get("artifact") == "index")


def test_the_index_is_made_reused_and_made_anew_for_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = write_corpus(tmp_path / "work", STUDIES)
    config_file = write_config(tmp_path / "config.yaml", work)
    publish(work / "model")
    assert run(config_file, capsys)["state"] == "made"
    assert run(config_file, capsys)["state"] == "reused"

    model = load(work / "model", "cpu")
    index = RetrievalIndex.open(ARTIFACT.at(work), model.digest)
    images = index.artifact.summary["images"]
    assert images == STUDIES + -(-STUDIES // 4)
    vector = model.embed_sentences([KINDS[0][1]])[0]
    (hit,) = index.search(Query("text", 1, vector=vector))
    assert hit.texts == (KINDS[0][1],)

    publish(work / "model", seed=1)
    assert run(config_file, capsys)["state"] == "made"
    assert open_artifact(ARTIFACT.at(work), ARTIFACT).digest != index.artifact.digest


def test_splits_choose_what_is_indexed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = write_corpus(tmp_path / "work", STUDIES)
    config_file = write_config(tmp_path / "config.yaml", work)
    publish(work / "model")
    made = run(
        config_file, capsys, "--set", 'index.splits=["test"]', "--set", "index.pictures=false"
    )
    assert made["images"] == 3  # study 8 has two
    assert main(["--config", str(config_file), "--set", "index.splits=[]"]) == 2


def test_the_old_index_serves_while_a_build_is_killed_and_its_end_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = write_corpus(tmp_path / "work", 40)
    config_file = write_config(tmp_path / "config.yaml", work)
    publish(work / "model")
    run(config_file, capsys, *SHARDS)
    model = load(work / "model", "cpu")
    question = Query("image", 5, vector=model.embed_sentences([KINDS[0][1]])[0])
    before = RetrievalIndex.open(ARTIFACT.at(work), model.digest).search(question)

    publish(work / "model", seed=1)
    shutil.copytree(work, tmp_path / "calm")
    draft = work / ".index.draft"
    assert killed_at_shard(config_file, draft, 5) == -signal.SIGKILL
    assert (draft / "pooled-00005.npy").is_file()
    old = RetrievalIndex.open(ARTIFACT.at(work), model.digest)
    assert old.search(question) == before
    first = (draft / "pooled-00000.npy").stat().st_mtime_ns
    assert run(config_file, capsys, *SHARDS)["state"] == "resumed"
    assert (ARTIFACT.at(work) / "pooled-00000.npy").stat().st_mtime_ns == first
    assert old.search(question) == before  # its files are open, whatever bears their names now

    calm = write_config(tmp_path / "calm.yaml", tmp_path / "calm")
    run(calm, capsys, *SHARDS)
    ends = [open_artifact(ARTIFACT.at(folder), ARTIFACT) for folder in (work, tmp_path / "calm")]
    assert ends[0].digest == ends[1].digest


def test_an_engine_is_filled_before_the_index_is_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = write_corpus(tmp_path / "work", STUDIES)
    config_file = write_config(tmp_path / "config.yaml", work)
    publish(work / "model")
    with milvus_server(tmp_path / "engine") as uri:
        run(config_file, capsys, "--set", f"retrieval.uri={uri}")
        model = load(work / "model", "cpu")
        plain = RetrievalIndex.open(ARTIFACT.at(work), model.digest)
        engine = RetrievalIndex.open(ARTIFACT.at(work), model.digest, RetrievalConfig(uri=uri))
        vector = model.embed_sentences([KINDS[1][1]])[0]
        for target in ("image", "text"):
            question = Query(target, 5, vector=vector)
            assert engine.search(question) == plain.search(question)
    publish(work / "model", seed=1)
    gone = ["--set", f"retrieval.uri={uri}", "--set", "retrieval.timeout_s=1"]
    assert main(["--config", str(config_file), *gone]) == 1
    assert open_artifact(ARTIFACT.at(work), ARTIFACT).digest == plain.artifact.digest
