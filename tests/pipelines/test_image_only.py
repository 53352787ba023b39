"""The image-only experiment as users start it: digits, thinned, trained, probed, reported."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from medclip_dcl.artifact import open_artifact
from medclip_dcl.config import load_config
from medclip_dcl.image_only import artifacts
from medclip_dcl.image_only.artifacts import ImageSet, read_image_model
from medclip_dcl.tables import read_table
from medclip_dcl.training.logging import TIMINGS, read_metrics
from pipelines.prepare_image_set import main as prepare
from pipelines.probe_images import main as probe_images
from pipelines.train import main as train
from pipelines.write_report import main as write_report

CONFIG = "configs/images/digits_r.yaml"
STEPS = 48
TINY = {
    "image_set.per_class": 60,
    "image_set.test_per_class": 20,
    "image_set.size_px": 8,
    "model.image": {
        "depths": [1, 1],
        "widths": [16, 32],
        "stem": "cifar",
        "channels": 1,
        "input_px": 8,
    },
    "train.global_batch": 32,
    "train.steps": STEPS,
    "train.learning_rate": 5e-3,
    "train.warmup_steps": 5,
    "train.save_every_steps": 8,
    "train.log_every_steps": 1,
    "probe.fractions": [0.1, 1.0],
    "probe.draws": 2,
    "probe.penalties": [0.01],
    "probe.tsne_images": 60,
    "probe.perplexity": 5,
}


def arguments(work: Path, **changes: Any) -> list[str]:
    settings: Mapping[str, Any] = {**TINY, **changes, "work": str(work)}
    given = [("--set", f"{name}={json.dumps(value)}") for name, value in settings.items()]
    return ["--config", CONFIG, *(word for pair in given for word in pair)]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole story, which nothing disturbed."""
    work = tmp_path_factory.mktemp("images") / "work"
    work.mkdir()
    for job in (prepare, train, probe_images, write_report):
        assert job(arguments(work)) == 0
    return work


def images_alone(work: Path, folder: Path) -> Path:
    """A recipe's folder that holds the image set alone."""
    fresh = folder / "work"
    shutil.copytree(artifacts.IMAGE_SET.at(work), artifacts.IMAGE_SET.at(fresh))
    return fresh


def figures(work: Path) -> list[dict[str, Any]]:
    lines = read_metrics(work / "checkpoints")
    return [{key: line[key] for key in line if key not in TIMINGS} for line in lines]


def test_odd_digits_are_thinned_in_training_alone(work: Path) -> None:
    images = ImageSet(open_artifact(artifacts.IMAGE_SET.at(work), artifacts.IMAGE_SET))
    assert [item.train for item in images.classes] == [60, 6] * 5
    assert {item.test for item in images.classes} == {20}
    assert min(item.validate for item in images.classes) > 9
    train_ids, test_ids = (set(images.split(name).image_ids) for name in ("train", "test"))
    assert len(train_ids) == 330
    assert train_ids.isdisjoint(test_ids)


def test_the_model_says_what_it_was_made_from(work: Path) -> None:
    model = read_image_model(artifacts.IMAGE_MODEL.at(work))
    assert model.card["data"]["train"] == 330
    assert model.card["views"]["eta"] == "class_share"
    assert model.card["training"]["steps"] == STEPS
    assert model.config.work == "."
    log = figures(work)
    assert [line["step"] for line in log] == list(range(1, STEPS + 1))
    assert log[0]["gamma_squared"] == pytest.approx(2)
    negatives = log[0]["expected_false_negatives"] / log[0]["mean_eta"]
    assert negatives == pytest.approx(2 * (32 - 1), rel=0.02)  # some anchors' eta vary


def test_training_learns(work: Path) -> None:
    losses = [line["uncorrected_loss"] for line in figures(work)]
    assert sum(losses[-6:]) < 0.93 * sum(losses[:6])


def test_probes_see_more_than_chance_and_than_an_untrained_encoder(work: Path) -> None:
    rows = read_table(artifacts.PROBE.at(work), artifacts.PROBES).to_pylist()
    assert len(rows) == 2 * (2 + 1)
    of = {(row["encoder"], row["fraction"]): row["accuracy"] for row in rows}
    assert of["trained", 1.0] > of["untrained", 1.0] > 0.1
    assert of["trained", 1.0] > 0.5
    assert len(read_table(artifacts.PROBE.at(work), artifacts.MAP)) == 60


def test_the_report_shows_probes_and_map(work: Path) -> None:
    page = (work / "report.html").read_text(encoding="utf-8")
    assert 'id="images"' in page
    assert "Map of the features (t-SNE)" in page
    assert page.count("<svg") == 3
    assert "chest" not in page
    assert ">stale<" not in page


def test_a_stopped_run_goes_on_bit_by_bit(work: Path, tmp_path: Path) -> None:
    again = images_alone(work, tmp_path)

    def interrupt() -> None:
        log, end = again / "checkpoints" / "metrics.jsonl", time.monotonic() + 90
        while not (log.is_file() and log.read_bytes().count(b"\n") >= 11):
            if time.monotonic() > end:
                return
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert train(arguments(again)) == 75
    thread.join()
    assert 11 <= len(figures(again)) < STEPS
    assert train(arguments(again)) == 0
    assert figures(again) == figures(work)
    digests = [
        read_image_model(artifacts.IMAGE_MODEL.at(folder)).digest for folder in (again, work)
    ]
    assert digests[0] == digests[1]


def test_another_eta_is_another_run(
    work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(arguments(work)) == 0
    assert '"state": "reused"' in capfd.readouterr().out
    again = images_alone(work, tmp_path)
    changes = {"views.eta": "low", "train.steps": 3, "train.validate_every_steps": 3}
    assert train(arguments(again, **changes, **{"views.M": 3})) == 0
    (*first, last) = figures(again)
    assert first[0]["mean_eta"] == pytest.approx(0.2 * 0.1 / 1.1)
    assert last["validation_loss"] > 0


def test_a_model_of_another_size_is_refused(
    work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    again = images_alone(work, tmp_path)
    assert train(arguments(again, **{"model.image": {"input_px": 32}})) == 2
    assert "1 channels of 32 pixels" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"image_set.kind": "none"}, "image_set.kind is none"),
        ({"image_set.test_per_class": 0}, "set image_set.test_per_class"),
    ],
)
def test_an_incomplete_image_set_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], changes: dict[str, Any], output: str
) -> None:
    assert prepare(arguments(tmp_path, **changes)) == 2
    assert output in capfd.readouterr().err


def test_the_cifar_recipe_has_the_papers_settings() -> None:
    config = load_config(Path("configs/images/cifar10_r.yaml"))
    assert config.model.image.depths == (2, 2, 2, 2)
    assert config.model.image.stem == "cifar"
    assert (config.views.anchors, config.views.gamma_squared, config.views.dim) == ("both", 2, 128)
    assert 2 * (config.train.global_batch - 1) == 254
    assert (config.train.learning_rate, config.train.weight_decay) == (1e-3, 1e-6)
    assert config.image_set.thinned == ("dog", "frog", "horse", "ship", "truck")
    seen = config.views.augment
    assert (seen.flip, seen.jitter, seen.grey) == (0.5, 0.8, 0.2)
    assert (seen.brightness, seen.contrast, seen.saturation, seen.hue) == (0.4, 0.4, 0.4, 0.1)


@pytest.mark.real_data
def test_cifar_10_is_prepared_from_its_tables(test_data: Path, tmp_path: Path) -> None:
    given = ["work", "image_set.root", "image_set.per_class", "image_set.test_per_class"]
    values = [tmp_path, test_data / "cifar10", 50, 5]
    words = [f"{name}={value}" for name, value in zip(given, values, strict=True)]
    config_file = [
        "--config",
        "configs/images/cifar10_r.yaml",
        "--set",
        "image_set.validate_share=0.002",
    ]
    assert prepare([*config_file, *(word for item in words for word in ("--set", item))]) == 0
    images = ImageSet(open_artifact(artifacts.IMAGE_SET.at(tmp_path), artifacts.IMAGE_SET))
    counts = {item.name: (item.train, item.validate, item.test) for item in images.classes}
    assert counts["cat"] == (50, 10, 5)
    assert counts["dog"] == (5, 10, 5)
    assert images.split("test").pixels.shape == (50, 3, 32, 32)
