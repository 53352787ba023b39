"""The trainer as users start it: whole runs, kills, launchers, several processes."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tensorboardX.proto.event_pb2 import Event

from medclip_dcl import load
from medclip_dcl.inference import model_package
from medclip_dcl.inference.model_package import read_model_package, subject_hash
from medclip_dcl.training.logging import read_metrics
from medclip_dcl.training.setup import TrainInputs
from pipelines.config import load_config
from pipelines.job import Job
from pipelines.stages import STAGES
from pipelines.train import main
from tests.support import forkserver
from tests.support.corpus import write_config, write_corpus, write_eta
from tests.support.headers import made_by_other_code

STEPS = 160
LONG = {"steps": STEPS, "save_every_steps": 20}
LAUNCH = "accelerate.commands.launch --config_file configs/accelerate/cpu.yaml"
DEADLINE_S = 90
GRACE_S = 30


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def whole_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    work = shutil.copytree(corpus, tmp_path_factory.mktemp("whole") / "work")
    assert train(work, train=LONG) == 0
    return work


@pytest.fixture
def work(corpus: Path, tmp_path: Path) -> Path:
    return shutil.copytree(corpus, tmp_path / "work")


def train(work: Path, *flags: str, **sections: Mapping[str, Any]) -> int:
    return main(["--config", str(write_config(work / "config.yaml", work, **sections)), *flags])


def figures(work: Path) -> list[dict[str, Any]]:
    """The metrics log without what differs from run to run."""
    lines = read_metrics(work / "checkpoints")
    return [{key: line[key] for key in line if key != "images_per_s"} for line in lines]


def digest(work: Path) -> str:
    return read_model_package(model_package.ARTIFACT.at(work)).digest


def wait_until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def steps_logged(work: Path) -> int:
    log = work / "checkpoints" / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.is_file() else 0


def test_a_run_publishes_a_model_that_says_what_it_is(whole_run: Path) -> None:
    model = read_model_package(model_package.ARTIFACT.at(whole_run))
    assert model.card["data"]["studies"] == 24
    assert model.card["grid"] == {"rows": 4, "columns": 4}
    assert len(model.card["prompts"]) == 5
    assert subject_hash("p000") in model.subject_hashes
    assert subject_hash("p039") not in model.subject_hashes
    with model.text_folder() as folder:
        assert {"config.json", "tokenizer.json"} <= {item.name for item in folder.iterdir()}
    log = figures(whole_run)
    assert [line["step"] for line in log] == list(range(1, STEPS + 1))
    assert log[0].keys() >= {"loss", "frac_floor", "mean_weight", "mean_eta", "gamma_squared", "lr"}
    assert log[0]["expected_false_negatives"] == pytest.approx(7 * 0.05)
    assert not list((whole_run / "checkpoints").glob("step-*"))


def offsets_of(work: Path) -> tuple[str, int, int]:
    folder = model_package.ARTIFACT.at(work)
    predictor = load(folder, "cpu")
    offsets = predictor.offsets
    assert [item.finding for item in offsets.findings] == [f.name for f in predictor.findings]
    return offsets.split, offsets.images, len(model_package.read_bank(folder))


def test_decisions_are_levelled_over_validation_images_where_they_suffice(whole_run, tmp_path):
    # Of five studies three train and one validates; every fourth has two images.
    assert offsets_of(whole_run) == ("train", 30, 30)
    work = write_corpus(tmp_path / "work", 320)
    assert train(work, train={"steps": 2}) == 0
    assert offsets_of(work) == ("validate", 80, 80)


def test_training_learns_and_shuffled_reports_do_not(whole_run: Path, work: Path) -> None:
    assert train(work, train={**LONG, "steps": STEPS // 2, "shuffle_reports": True}) == 0

    def last(folder: Path) -> float:
        tail = [line["uncorrected_loss"] for line in figures(folder)[-20:]]
        return sum(tail) / len(tail)

    assert last(whole_run) < 1.2  # 8 places, 4 kinds: log 2 is the best on average
    assert last(work) > 1.7  # log 8 = 2.08 knows nothing


def test_sigterm_to_the_launcher_leaves_no_orphan_and_a_run_that_goes_on(whole_run, work):
    config_file = write_config(work / "config.yaml", work, train=LONG)
    words = f"{LAUNCH} -m pipelines.train --config {config_file}".split()
    launcher = subprocess.Popen(
        [sys.executable, "-m", *words],
        env={**os.environ, "PYTHONPATH": ".", "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: steps_logged(work) >= 30)
    (child,) = psutil.Process(launcher.pid).children()
    asked = time.monotonic()
    launcher.terminate()
    launcher.wait()
    wait_until(lambda: not psutil.pid_exists(child.pid))
    assert time.monotonic() - asked < GRACE_S
    (newest, *_) = sorted((work / "checkpoints").glob("step-*"), reverse=True)
    assert int(newest.name.removeprefix("step-")) == len(figures(work)) < STEPS
    assert train(work, train=LONG) == 0
    assert figures(work) == figures(whole_run)
    assert digest(work) == digest(whole_run)


def stop_after(work: Path, step: int, **sections: Mapping[str, Any]) -> int:
    """Train in this process and end it once a step is logged."""
    ended = threading.Event()

    def interrupt() -> None:
        wait_until(lambda: ended.is_set() or steps_logged(work) >= step)
        if not ended.is_set():  # else it would end the tests
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code = train(work, **sections)
    ended.set()
    thread.join()
    return code


@pytest.mark.parametrize(("kind", "relation"), [("infonce", "none"), ("multipositive", "claims")])
def test_every_input_that_is_opened_is_in_the_fingerprint(work, kind, relation):
    objective = {"kind": kind, "relation": relation}
    config = load_config(write_config(work / "config.yaml", work, objective=objective))
    opened = Job("train", config, work).open_inputs(verify=False)
    assert opened.values.keys() == opened.digests.keys()
    assert ("claims" in opened.values) == (relation == "claims")
    always = {"manifest", "prepared", "sentences", "eta_cache", "text_weights", "prompts"}
    assert opened.values.keys() - {"claims"} == always
    listed = {item.name for item in STAGES["train"].inputs}
    assert listed == {field.name for field in fields(TrainInputs)}


def test_a_run_does_not_go_on_with_another_eta_or_other_settings(work, capfd):
    loop = {**LONG, "steps": 40}
    assert stop_after(work, 5, train=loop) == 75
    capfd.readouterr()
    assert train(work, train={**loop, "learning_rate": 0.5}) == 4
    assert "settings.train.learning_rate: 0.01 -> 0.5" in capfd.readouterr().err
    write_eta(work, 0.1)
    assert train(work, train=loop) == 4
    assert "inputs.eta_cache" in capfd.readouterr().err
    write_eta(work, 0.05)
    assert train(work, train={**loop, "save_every_steps": 50}) == 0


def test_a_forced_run_goes_on_with_checkpoints_of_its_own_code_alone(work, capfd):
    loop = {"steps": 12, "save_every_steps": 2}
    assert stop_after(work, 3, train=loop) == 75
    changed, unforced = (
        shutil.copytree(work, work.with_name(name)) for name in ("changed", "unforced")
    )
    for path in (*changed.glob("checkpoints/step-*"), *unforced.glob("checkpoints/step-*")):
        made_by_other_code(path, "medclip_dcl/losses/debiased.py")
    for folder, begins_again in ((work, False), (changed, True)):
        capfd.readouterr()
        assert train(folder, "--force", train=loop) == 0
        shown = capfd.readouterr().out
        assert '"state": "made"' in shown
        assert ('"from_step": 0,' in shown) is begins_again
    assert train(unforced, train=loop) == 0  # it goes on, and says so
    told = "checkpoints reused, made before medclip_dcl/losses/debiased.py changed"
    assert told in capfd.readouterr().err
    assert train(work, "--force", train=loop) == 0
    assert '"state": "made"' in capfd.readouterr().out
    assert train(work, train={"steps": 2}) == 4
    assert "a finished model" in capfd.readouterr().err
    assert train(work, "--replace", train={"steps": 2}) == 0
    assert "settings.train.steps: 12 -> 2" in capfd.readouterr().out


def test_figures_go_to_a_tracker_as_well(work: Path) -> None:
    assert train(work, train={"trackers": ["tensorboard"], "validate_every_steps": 6}) == 0
    reported = scalars(work / "trackers")
    for line in read_metrics(work / "checkpoints"):
        for name, value in line.items():
            assert reported[name, line["step"]] == pytest.approx(value, rel=1e-6), name
    texts = b"".join(path.read_bytes() for path in (work / "trackers").rglob("*") if path.is_file())
    assert b"train.global_batch" in texts
    assert str(work).encode() not in texts


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """Read event files: length, checksum, event, checksum, one after the other."""
    found = {}
    for path in folder.rglob("events.out.*"):
        data, index = path.read_bytes(), 0
        while index < len(data):
            (length,) = struct.unpack_from("<Q", data, index)
            event = Event.FromString(data[index + 12 : index + 12 + length])
            index += length + 16
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
    return found


@pytest.mark.parametrize("name", ["FSDP", "DEEPSPEED"])
def test_processes_that_share_the_weights_are_refused(corpus, monkeypatch, capfd, name):
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    assert train(corpus, train={"steps": 1}) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert f"distribute this run by {name}; every process needs whole weights" in line


def test_two_processes_follow_the_loss_curve_of_one_in_chunks(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {"freeze_batchnorm": True, "steps": 10, "learning_rate": 1e-3, "chunk": 2}
    objective = {"directions": "both", "relation": "claims"}
    write_corpus(one, dropout=0.0, eta=0.2)
    shutil.copytree(one, two)
    assert train(one, train=settings, objective=objective) == 0
    of_two = {"train": {**settings, "processes": 2}, "objective": objective}
    arguments = ["--config", str(write_config(two / "config.yaml", two, **of_two))]
    crew = forkserver.start_ranks(2, "pipelines.train", arguments, tmp_path / "log")
    for process in crew:
        process.join(DEADLINE_S)
    assert [process.exitcode for process in crew] == [0, 0], (tmp_path / "log").read_text()
    ours, theirs = figures(one), figures(two)
    assert len(ours) == len(theirs) == 10
    assert ours[0]["loss"] != ours[-1]["loss"]
    for alone, together in zip(ours, theirs, strict=True):
        for name in ("loss", "uncorrected_loss", "mean_eta", "mates", "gamma_squared"):
            assert together[name] == pytest.approx(alone[name], rel=1e-5), name
    card = json.loads((two / "model" / "model.json").read_text())["training"]
    assert card["processes"] == 2
    assert train(two, train=settings, objective=objective) == 0  # valid whatever the number


def test_a_vit_with_adapters_is_trained_published_and_asked(work: Path) -> None:
    vit = {"model_type": "dinov2", "hidden_size": 16, "patch_size": 8}
    vit |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    image = {"kind": "vit", "backbone": vit, "input_px": 32}
    model = {"image": image, "lora": {"image": 2, "text": 2}, "similarity": {"dim": 16}}
    assert train(work, train={"steps": 2}, model=model) == 0
    published = read_model_package(model_package.ARTIFACT.at(work))
    assert not [name for name in published.weights() if "lora" in name or "base_layer" in name]
    assert published.card["preprocessing"]["channels"] == []
    predictor = load(published.path)
    square = np.arange(40 * 40, dtype=np.uint16).reshape(40, 40)
    (found,) = predictor.ground(square, "There is an effusion.").phrases
    assert np.array(found.grid).shape == (4, 4)
    assert np.isfinite(found.grid).all()
