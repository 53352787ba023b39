"""A second run does not destroy the first without a word."""

from pathlib import Path
from typing import Any

import pytest

from medclip_dcl.core.artifact import Artifact, ArtifactType, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import ArtifactStale
from medclip_dcl.likelihood.eta import used_settings
from pipelines.__main__ import main
from pipelines.config import Config, check_config
from pipelines.job import refuse_other_model
from pipelines.run import refuse_to_replace
from pipelines.stages import stages_of


def config(work: Path, **sections: Any) -> Config:
    return check_config({"work": str(work), **sections}, "test")


def make(work: Path, name: str, **settings: Any) -> Artifact:
    kind = ArtifactType(name, 1, "its_job")
    with write_artifact(kind.at(work), kind, make_fingerprint(kind, settings, {})) as writer:
        return writer.commit({})


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with what a run of the default settings would leave."""
    made = config(tmp_path, train={"precision": "bf16"})
    make(tmp_path, "manifest", source=made.source.result_settings())
    make(tmp_path, "likelihoods", variant=made.likelihood.variant, engine="torch")
    make(tmp_path, "eta_cache", eta=used_settings(made.eta))
    settings = {"objective": made.objective, "train": made.train.result_settings()}
    make(tmp_path, "model", seed=0, model=made.model, **settings)
    make(tmp_path, "results", evaluate=made.evaluate, inference=made.inference)
    return tmp_path


BOTH = "a finished model and finished results"


@pytest.mark.parametrize(
    ("sections", "lost", "change"),
    [
        ({"seed": 1}, BOTH, "seed: 0 -> 1"),
        ({"objective": {"kind": "infonce"}}, BOTH, 'objective.kind: "debiased" -> "infonce"'),
        ({"eta": {"a": 0.3}}, BOTH, "eta.a: 0.2 -> 0.3"),
        ({"likelihood": {"variant": "within_word_l2r"}}, BOTH, "likelihood.variant: "),
        ({"evaluate": {"bootstrap": 7}}, "finished results", "evaluate.bootstrap: 1000 -> 7"),
    ],
)
def test_other_settings_are_named_before_anything_is_touched(work, sections, lost, change):
    asked = config(work, **({"train": {"precision": "bf16"}} | sections))
    with pytest.raises(ArtifactStale) as caught:
        refuse_to_replace(asked, work, stages_of(asked))
    text = str(caught.value)
    assert f"{work} holds {lost}, made with other settings" in text
    assert change in text
    assert "--set work=FOLDER" in text
    assert "--replace" in text


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"train": {"precision": "bf16", "save_every_steps": 3}},
        {"index": {"candidates": 50}},
        {"jobs": ["write_report"], "objective": {"kind": "infonce"}},
        {"jobs": ["train"], "evaluate": {"bootstrap": 7}},
    ],
)
def test_the_same_run_and_what_replaces_neither_go_on(work: Path, sections: dict[str, Any]) -> None:
    asked = config(work, **({"train": {"precision": "bf16"}} | sections))
    refuse_to_replace(asked, work, stages_of(asked))


def test_an_unfinished_run_is_refused_by_its_checkpoints_alone(tmp_path: Path) -> None:
    make(tmp_path, "eta_cache", eta={"source": "pll", "a": 0.2})
    asked = config(tmp_path, eta={"a": 0.3})
    refuse_to_replace(asked, tmp_path, stages_of(asked))


def test_a_run_says_so_on_one_line_and_leaves_the_model(tmp_path, capfd):
    model = make(tmp_path, "model", objective=config(tmp_path).objective)
    words = ["run", "demo", "--set", f"work={tmp_path}", "--set", "objective.kind=infonce"]
    words += ["--set", "objective.relation=none"]
    assert main([*words, "--set", 'jobs=["train"]']) == 4
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"run: {tmp_path} holds a finished model, made with other settings")
    assert (model.path / "artifact.json").is_file()


def test_training_alone_refuses_other_inputs_too(tmp_path: Path) -> None:
    kind = ArtifactType("model", 1, "train")
    refuse_other_model(tmp_path, kind, {})
    fingerprint = make(tmp_path, "model", seed=0).fingerprint
    refuse_other_model(tmp_path, kind, fingerprint)
    for other, change in (
        ({"settings": {"seed": 1}}, "seed: 0 -> 1"),
        ({"inputs": {"eta_cache": "ab"}}, "another eta_cache"),
    ):
        with pytest.raises(ArtifactStale, match=rf"a finished model.* \({change}\)"):
            refuse_other_model(tmp_path, kind, fingerprint | other)
