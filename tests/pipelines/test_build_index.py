import json
from pathlib import Path

import pytest

from medclip_dcl.artifacts.embeddings import KIND
from medclip_dcl.artifacts.frame import open_artifact
from medclip_dcl.index import Query, RetrievalIndex
from medclip_dcl.tasks.predictor import load
from pipelines.build_index import main
from tests.synthetic.corpus import KINDS, write_corpus, write_recipe
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
