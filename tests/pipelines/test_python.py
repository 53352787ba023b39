"""A table becomes a trained and evaluated model by calls in Python, in an empty folder."""

import io
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from medclip_dcl.pipelines.python import Figures, Run
from PIL import Image

import medclip_dcl as medclip
from medclip_dcl.core.errors import ConfigError, JobFailed, QueryError, StudyError
from medclip_dcl.likelihood import scoring
from medclip_dcl.text import sentences
from pipelines.stages import DATA, STAGES
from tests.house.tree import ROOT
from tests.support import forkserver
from tests.support.jobs import REPORTS, rows, write_studies
from tests.support.public_checkpoints import PROCESSORS, write_pair
from tests.support.published import publish
from tests.support.tiny_models import random_images

SMALL: Mapping[str, Any] = {
    "train": {"steps": 4, "epochs": None, "warmup_steps": 1, "global_batch": 8,
              "validate_every_steps": 0, "best_metric": ""},
    "model": {"image": {"depths": [1, 1], "widths": [8, 16], "input_px": 64}},
    "model.similarity.dim": 16, "images.size_px": 64, "language_model.steps": 4, "workers": 1,
    "likelihood.engine": "torch", "inference.engine": "torch",
    "evaluate.bootstrap": 20,
}  # fmt: skip
PAGE = (ROOT / "docs/python.md").read_text(encoding="utf-8").partition("## Labels")[0]
LOAD, ASK, TRAIN, ROWS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
STAGES_TO_TRAIN = [*(name for name in STAGES if STAGES[name].heading == DATA), "train"][1:]
ON = {"train": SMALL["train"], "language_model.steps": 4, "workers": 1,
      "likelihood.engine": "torch", "jobs": STAGES_TO_TRAIN}  # fmt: skip


class Forked:
    """A run in a process that need not import anything first, to its end: in place of `Popen`."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], **_: object) -> None:
        assert command[1:3] == ["-m", "medclip_dcl.pipelines"]
        where = ("os:chdir", (str(Path.cwd()),))
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            given = {"environment": env, "before": where}
            self.returncode = forkserver.run("pipelines.__main__", command[3:], log, **given)
            self.stdout = io.StringIO(log.read_text(encoding="utf-8"))

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    stand_in = SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("medclip_dcl.pipelines.python.subprocess", stand_in)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with a table of 120 studies and one of 30 with labels alone."""
    folder = tmp_path_factory.mktemp("empty")
    write_studies(folder / "studies.csv", 120)
    write_studies(folder / "test.csv", 30, 200, has_reports=False)
    return folder


@pytest.fixture(scope="module")
def names(folder: Path) -> Iterator[dict[str, Any]]:
    """What the lines of docs/python.md about training leave, run in that folder."""
    names: dict[str, Any] = {"SMALL": SMALL}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(f"import medclip_dcl as medclip\n{with_settings(TRAIN, 'SMALL')}", names)
        yield names


def with_settings(code: str, name: str) -> str:
    """Let a run of the page take seconds; all else is as it stands there."""
    return re.sub(r'out="runs/\w+"', rf"\g<0>, settings={name}", code)


def test_the_page_s_five_snippets_are_short() -> None:
    assert all(len(line) < 100 for code in (LOAD, ASK, TRAIN, ROWS) for line in code.splitlines())
    assert len(TRAIN.splitlines()) <= 5  # train from a table, and evaluate
    load, embed, zero_shot = LOAD.splitlines()[2], ASK.splitlines()[4], ASK.splitlines()[0]
    assert (".load(" in load, ".encode(" in embed, ".classify(" in zero_shot) == (True,) * 3


def test_the_page_s_lines_about_a_model_run(tmp_path, monkeypatch, capsys):
    publish(tmp_path / "runs/demo/model", bank=random_images(4, 64))
    for name, pixels in zip(("image.png", "other.png"), random_images(2, 72), strict=True):
        Image.fromarray(pixels).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(LOAD, names)
    exec(ASK, names)
    assert names["answer"]["A mass."].score == names["answer"].findings[1].score
    assert -1 <= names["image"] @ names["sentence"] <= 1
    assert {row["image"] for row in names["rows"]} == {0, 1}
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8").partition("## Vectors")[2]
    first, second = re.findall(r"```python\n(.*?)```", page.partition("\n## ")[0], re.DOTALL)
    write_studies(tmp_path / "studies.csv", 5)
    exec(first.replace("*.dcm", "*.png"), names)
    exec(second, names)
    cosines = names["vectors"] @ names["model"].encode_text("Left pleural effusion.")
    assert list(names["rows"][0]) == list(np.argsort(-cosines)[:3])
    printed = capsys.readouterr().out
    assert f"1.000 {names['paths'][0]}" in printed
    assert printed.startswith("model ")
    assert "There is a left pleural effusion." in printed


def test_five_lines_train_and_evaluate_a_model_of_a_table(names: dict[str, Any]) -> None:
    run, figures = names["run"], names["figures"]
    assert isinstance(run, Run)
    assert run.report.stat().st_size > 10_000
    assert [line["step"] for line in run.log if "loss" in line][-1] == 4
    assert run.metrics.tree["split"] == "test"
    assert isinstance(figures, Figures)
    assert figures.tree["images"] == 30
    assert figures.tree["model"] == run.model.digest
    figure = figures["zero_shot.effusion.auc"]
    assert 0 <= figure["low"] <= figure["value"] <= figure["high"] <= 1
    assert (figure["n"], figure["subjects"]) == (30, 30)
    assert "zero_shot.wide heart.auc" in figures
    (row,) = [row for row in figures.rows() if row["figure"] == "zero_shot.mean_auc"]
    assert row["value"] == figures["zero_shot.mean_auc"]["value"]
    assert f"{row['value']:.3f}" in repr(figures)
    assert "<table>" in figures._repr_html_()
    assert "report runs/mine/report.html" in repr(run)


def test_the_same_call_reuses_what_is_there_and_another_does_not_replace_it(names, capsys):
    digest, events = names["run"].model.digest, []
    run = medclip.train("studies.csv", out="runs/mine", settings=SMALL, callback=events.append)
    assert run.model.digest == digest
    assert capsys.readouterr().out == ""  # a callback takes the place of lines
    made = [event for event in events if "artifact" in event]
    assert {event["state"] for event in made if event["artifact"] == "model"} == {"reused"}
    with pytest.raises(TypeError):
        events[0]["step"] = 7
    with pytest.raises(JobFailed, match=r"runs/mine holds a finished model .*seed: 0 -> 1"):
        medclip.train("studies.csv", out="runs/mine", settings={**SMALL, "seed": 1})


def test_rows_in_memory_train_on_from_a_model_and_a_callback_sees_steps(names):
    images = random_images(40, 72, seed=7)
    forms = [images[0], torch.from_numpy(images[1]), Image.fromarray(images[2])]
    studies = [
        {"image": image, "report": f"{REPORTS[number % 3]} {number}.", "patient": f"q{number}"}
        for number, image in enumerate([*forms, *images[3:]])
    ]
    events: list[Mapping[str, Any]] = []
    start, training, *rest = ROWS.splitlines()
    assert start.startswith("rows = [{")
    names |= {"rows": studies, "ON": ON, "events": events}
    exec(with_settings(training, "ON, callback=events.append"), names)
    exec("\n".join(rest), names)
    steps = [event["step"] for event in events if "loss" in event and "step" in event]
    assert steps == [1, 2, 3, 4]
    base, tuned = names["run"].model, names["tuned"].model
    assert tuned.card["objective"]["kind"] == "debiased"
    assert tuned.config.model.similarity.dim == 16
    name = "text.projection.weight"
    away = float((tuned.model.state_dict()[name] - base.model.state_dict()[name]).abs().max())
    assert 0 < away < 4 * 5e-5 * 2  # four steps of AdamW at the rate of fine-tuning
    written = np.asarray(Image.open("runs/tuned/dataset/images/000001.png"))
    level = images[1].astype(float)
    scaled = np.rint((level - level.min()) / (level.max() - level.min()) * 65535)
    assert np.array_equal(written, scaled)


def test_likelihoods_and_eta_are_those_of_the_stages(names: dict[str, Any]) -> None:
    run = names["run"]
    stored = rows(run.folder, scoring.ARTIFACT, scoring.LIKELIHOODS)[:3]
    said = rows(run.folder, sentences.ARTIFACT, sentences.SENTENCES)
    texts = {row["text_key"]: row["text"] for row in said}
    pll = medclip.score_sentences([texts[row["text_key"]] for row in stored], run)
    assert pll.tolist() == pytest.approx([row["pll_nats"] for row in stored], abs=2e-3)
    expected = np.minimum(0.2 * np.exp(0.35 * pll.numpy()), 0.1)
    assert medclip.eta(pll, eta_max=0.1).numpy() == pytest.approx(expected, rel=1e-5)
    assert medclip.eta([0.0, -2.0]).tolist() == pytest.approx([0.2, 0.2 * np.exp(-0.7)])
    assert medclip.score_sentences("Effusion", run.folder).shape == (1,)
    with pytest.raises(QueryError, match="text 1 is not a string"):
        medclip.score_sentences(["a", 7], run)


@pytest.mark.parametrize(
    ("arguments", "error", "rule"),
    [
        ({"dataset": "none.csv"}, StudyError, "none.csv is missing"),
        ({"dataset": 7}, ConfigError, "the path of a table or of a config, a data frame, or a"),
        ({"dataset": {"image": "a", "report": "b"}}, ConfigError, "a list of rows"),
        ({"dataset": []}, ConfigError, "one row or more"),
        ({"dataset": ["abc"]}, ConfigError, "each a mapping such as"),
        ({"objective": "best"}, ConfigError, "'best' is not known; choose of relations, debiased"),
        ({"settings": {"train.stepz": 4}}, ConfigError, "stepz"),
        ({"columns": {"report": "Befund"}}, ConfigError, "no column"),
        ({"base": "nowhere"}, ConfigError, "nowhere is not a folder here"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_before_a_stage_runs(
    folder, monkeypatch, arguments, error, rule
):
    monkeypatch.chdir(folder)
    given = {"dataset": "studies.csv", "out": "runs/refused"} | arguments
    with pytest.raises(error, match=rule):
        medclip.train(**given)
    assert not list(Path("runs/refused").glob("*/artifact.json"))


def test_a_stop_ends_the_run_before_it_has_a_model(folder, monkeypatch):
    monkeypatch.setattr("medclip_dcl.pipelines.python.subprocess", subprocess)  # as users have it
    monkeypatch.chdir(folder)

    def stop(event: Mapping[str, Any]) -> None:
        if event.get("artifact") == "sentences":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        medclip.train("studies.csv", out="runs/stopped", settings=SMALL, callback=stop)
    made = sorted(path.parent.name for path in Path("runs/stopped").glob("*/artifact.json"))
    assert "manifest" in made
    assert "model" not in made


def test_an_adopted_checkpoint_is_a_start_and_keeps_its_maker_s_resizing(tmp_path):
    write_studies(tmp_path / "studies.csv", 60)
    write_pair(tmp_path / "clip", "clip", PROCESSORS["clip"])
    medclip.adopt(tmp_path / "clip", tmp_path / "package")
    base = medclip.load(tmp_path / "package")
    run = medclip.train(tmp_path / "studies.csv", out=tmp_path / "run", base=base, settings=ON)
    assert base.config.images.fit
    assert run.model.config.images.fit == base.config.images.fit
    before, after = base.encode_text("no effusion"), run.model.encode_text("no effusion")
    assert 0.9 < before @ after < 1  # four small steps away from where it began
