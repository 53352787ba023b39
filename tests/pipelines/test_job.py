"""A job reuses what is valid, replaces no finished model unasked, and says how it ended."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from medclip_dcl.core.artifact import Artifact, ArtifactType, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import ArtifactMissing, ArtifactStale, ConfigError, StudyError
from medclip_dcl.core.progress import Progress
from medclip_dcl.likelihood.eta import used_settings
from pipelines import run as runs
from pipelines.__main__ import main
from pipelines.config import Config, check_config
from pipelines.job import STOPPED, Job, Stopped, job_main, refuse_other_model
from pipelines.run import refuse_to_replace
from pipelines.stages import stages_of
from tests.house.tree import ROOT
from tests.support.headers import made_by_other_code

ARTIFACT = ArtifactType("thing", 1, "make_thing")


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(f"work: {tmp_path / 'work'}\n", encoding="utf-8")
    return path


def run(config_file: Path, work: object, *more: str) -> int:
    return job_main("make_thing", work)(["--config", str(config_file), *more])  # type: ignore[arg-type]


def test_what_is_valid_is_reused_and_changed_code_is_named_until_it_is_made_again(
    config_file, capsys
):
    def work(job: Job) -> None:
        job.make(ARTIFACT, {"eta": job.config.eta}, {}, lambda writer: {"forced": job.force})

    def states_of(*runs: tuple[str, ...]) -> tuple[list[str], str]:
        assert [run(config_file, work, *more) for more in runs] == [0] * len(runs)
        shown = capsys.readouterr()
        return [json.loads(line)["state"] for line in shown.out.splitlines()], shown.err

    other = ("--set", "eta.a=0.1")
    assert states_of((), (), other) == (["made", "reused", "made"], "")
    made_by_other_code(config_file.parent / "work" / "thing", "medclip_dcl/core/files.py")
    states, error = states_of(other)
    assert states == ["reused"]
    assert "thing reused, made before medclip_dcl/core/files.py changed; --force" in error
    assert states_of((*other, "--force"), other) == (["made", "reused"], "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (StudyError("x"), 3),
        (ArtifactMissing("x"), 4),
        (Stopped(), STOPPED),
        (KeyboardInterrupt(), STOPPED),
    ],
)
def test_exit_code_tells_how_it_ended(config_file: Path, error: BaseException, code: int) -> None:
    def work(job: Job) -> None:
        raise error

    assert run(config_file, work) == code


FAULTY = """
import sys, threading
from multiprocessing import get_context
from medclip_dcl.core.errors import ending_with_fault
from pipelines.job import job_main

def fail():
    with ending_with_fault():
        raise KeyError("Jane Doe")

def work(job):
    other = get_context("fork").Process(target=fail)
    other.start()
    other.join()
    assert other.exitcode == 1
    thread = threading.Thread(target=lambda: {}["Jane Doe"])
    thread.start()
    thread.join()
    raise ValueError("Jane Doe")

sys.exit(job_main("make_thing", work)(["--config", sys.argv[1]]))
"""


def test_a_fault_names_its_type_and_place_but_not_its_message(config_file):
    """A library's message may quote a report, in the job's processes and threads too."""
    command = [sys.executable, "-c", FAULTY, str(config_file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("KeyError") >= 2
    assert "ValueError" in done.stderr
    assert " work\n" in done.stderr
    assert "Jane" not in done.stderr


def test_a_run_has_a_line_a_stage_and_the_rest_where_a_log_is_asked_for(
    config_file, monkeypatch, capsys
):
    def work(job: Job) -> None:
        with Progress("things", 2) as progress:
            progress.advance(2)
        job.say(ignored_keys=0)
        job.say(warning="few", finding="mass", auc=None)
        job.say(artifact="thing", state="made", seconds=2.0, none=0, a=1, b=2, c=3, d=4)

    monkeypatch.setenv("PROGRESS_OF_RUN", "1")
    monkeypatch.delenv("PROGRESS_FORMAT")
    assert run(config_file, work) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "make_thing: warning few",
        "make_thing: thing made in 2 s: a 1, b 2, c 3",
    ]
    assert printed.err == ""
    assert run(config_file, work, "--log", "words") == 0
    printed = capsys.readouterr()
    assert "make_thing: ignored keys 0" in printed.out
    assert "none 0, a 1, b 2, c 3, d 4" in printed.out
    assert "things: 2 of 2" in printed.err


def test_a_signal_that_comes_as_a_stage_ends_stops_the_run(config_file, monkeypatch, capfd):
    """The stage, which works in a process of its own, has ended too far to hear of it."""
    work = config_file.parent / "work"

    def stage(_: object) -> int:
        work.mkdir()  # it fails if another stage comes
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(os.getppid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(runs, "main_of", lambda _: stage)
    before = signal.getsignal(signal.SIGTERM)
    assert runs.run(config_file) == STOPPED
    assert work.is_dir()
    assert "run the same command again to go on" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


# ---- A second run


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
