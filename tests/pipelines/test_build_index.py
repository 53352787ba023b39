import json
import shutil
import signal
from pathlib import Path

import pytest

from medclip_dcl.artifact import open_artifact
from medclip_dcl.inference.predictor import load
from medclip_dcl.retrieval.embeddings import KIND
from medclip_dcl.retrieval.search import Query, RetrievalIndex
from medclip_dcl.retrieval.settings import RetrievalConfig
from pipelines.build_index import main
from tests.synthetic.corpus import KINDS, write_corpus, write_recipe
from tests.synthetic.killed import SHARDS, killed_at_shard
from tests.synthetic.milvus import milvus_server
from tests.synthetic.published import publish

STUDIES = 10


def run(recipe: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["--config", str(recipe), *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return next(line for line in lines if line.get("artifact") == "index")


def test_the_index_is_made_reused_and_made_anew_for_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = write_corpus(tmp_path / "work", STUDIES)
    recipe = write_recipe(tmp_path / "recipe.yaml", work)
    publish(work / "model")
    assert run(recipe, capsys)["state"] == "made"
    assert run(recipe, capsys)["state"] == "reused"

    model = load(work / "model", "cpu")
    index = RetrievalIndex.open(KIND.at(work), model.digest)
    films = index.artifact.summary["films"]
    assert films == STUDIES + -(-STUDIES // 4)
    vector = model.embed_sentences([KINDS[0][1]])[0]
    (hit,) = index.search(Query("text", 1, vector=vector))
    assert hit.texts == (KINDS[0][1],)

    publish(work / "model", seed=1)
    assert run(recipe, capsys)["state"] == "made"
    assert open_artifact(KIND.at(work), KIND).digest != index.artifact.digest


def test_splits_choose_what_is_indexed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = write_corpus(tmp_path / "work", STUDIES)
    recipe = write_recipe(tmp_path / "recipe.yaml", work)
    publish(work / "model")
    made = run(recipe, capsys, "--set", 'index.splits=["test"]', "--set", "index.pictures=false")
    assert made["films"] == 3  # study 8 has two
    assert main(["--config", str(recipe), "--set", "index.splits=[]"]) == 2


def test_the_old_index_serves_while_a_build_is_killed_and_its_end_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = write_corpus(tmp_path / "work", 40)
    recipe = write_recipe(tmp_path / "recipe.yaml", work)
    publish(work / "model")
    run(recipe, capsys, *SHARDS)
    model = load(work / "model", "cpu")
    question = Query("image", 5, vector=model.embed_sentences([KINDS[0][1]])[0])
    before = RetrievalIndex.open(KIND.at(work), model.digest).search(question)

    publish(work / "model", seed=1)
    shutil.copytree(work, tmp_path / "calm")
    draft = work / ".index.draft"
    assert killed_at_shard(recipe, draft, 5) == -signal.SIGKILL
    assert (draft / "pooled-00005.npy").is_file()
    old = RetrievalIndex.open(KIND.at(work), model.digest)
    assert old.search(question) == before
    first = (draft / "pooled-00000.npy").stat().st_mtime_ns
    assert run(recipe, capsys, *SHARDS)["state"] == "resumed"
    assert (KIND.at(work) / "pooled-00000.npy").stat().st_mtime_ns == first
    assert old.search(question) == before  # its files are open, whatever bears their names now

    calm = write_recipe(tmp_path / "calm.yaml", tmp_path / "calm")
    run(calm, capsys, *SHARDS)
    ends = [open_artifact(KIND.at(folder), KIND) for folder in (work, tmp_path / "calm")]
    assert ends[0].digest == ends[1].digest


def test_an_engine_is_filled_before_the_index_is_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = write_corpus(tmp_path / "work", STUDIES)
    recipe = write_recipe(tmp_path / "recipe.yaml", work)
    publish(work / "model")
    with milvus_server(tmp_path / "engine") as uri:
        run(recipe, capsys, "--set", f"retrieval.uri={uri}")
        model = load(work / "model", "cpu")
        plain = RetrievalIndex.open(KIND.at(work), model.digest)
        engine = RetrievalIndex.open(KIND.at(work), model.digest, RetrievalConfig(uri=uri))
        vector = model.embed_sentences([KINDS[1][1]])[0]
        for target in ("image", "text"):
            question = Query(target, 5, vector=vector)
            assert engine.search(question) == plain.search(question)
    publish(work / "model", seed=1)
    gone = ["--set", f"retrieval.uri={uri}", "--set", "retrieval.timeout_s=1"]
    assert main(["--config", str(recipe), *gone]) == 1
    assert open_artifact(KIND.at(work), KIND).digest == plain.artifact.digest
