"""A run's own service, started for real, answers about a test image; its page and its summary."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from medclip_dcl.client import Client
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest
from medclip_dcl.inference.model_package import ARTIFACT
from medclip_dcl.inference.predictor import load
from pipelines import ask_service, build_index, write_report
from tests.support.corpus import KINDS, write_config
from tests.support.evaluated import evaluate_here, write_evaluated
from tests.support.service import png, running

SENTENCES = {sentence for _, *said in KINDS for sentence in said}


@contextmanager
def forked_service(model: Path, vectors: Path) -> Iterator[Client]:
    """The same service without a start of its own, which the demo of `.ci/run` has."""
    folders = {"model": str(model), "index": str(vectors)}
    with running(model.parent, **folders) as service, Client(service.url) as client:
        yield client


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose service was asked."""
    work = write_evaluated(tmp_path_factory.mktemp("asked") / "work")
    for row in read_table(work / "manifest", manifest.IMAGES).to_pylist():
        (work / row["path"]).write_bytes(png())
    evaluate_here(work)
    config_file = write_config(work / "config.yaml", work, source={"root": str(work)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ask_service, "_serving", forked_service)
        for stage in (build_index, ask_service):
            assert stage.main(["--config", str(config_file)]) == 0
    return config_file


def test_the_answers_are_those_of_the_model_about_a_boxed_test_image(config_file: Path) -> None:
    work = config_file.parent
    record = json.loads((work / ask_service.ANSWERS).read_text())
    images = read_table(work / "manifest", manifest.IMAGES).to_pylist()
    (image,) = (row for row in images if row["image_id"] == record["image_id"])
    boxes = read_table(work / "manifest", manifest.BOXES).to_pylist()
    assert image["split"] == "test"
    assert (image["image_id"], record["phrase"]) in {
        (row["image_id"], row["phrase"]) for row in boxes
    }
    answers = {name: answer["body"] for name, answer in record["answers"].items()}
    assert {answer["model"] for answer in answers.values()} == {load(ARTIFACT.at(work)).digest}
    assert len(answers["classify"]["findings"]) == len(load(ARTIFACT.at(work)).findings)
    assert len(answers["ground"]["phrases"]) == 1
    hits = answers["retrieve"]["hits"]
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert {text for hit in hits for text in hit["texts"]} <= SENTENCES
    assert ask_service.main(["--config", str(config_file)]) == 0  # reuses it
    assert json.loads((work / ask_service.ANSWERS).read_text()) == record


def test_a_service_that_does_not_stop_is_killed() -> None:
    deaf = ["sh", "-c", "trap '' TERM; echo; exec sleep 9"]
    process = subprocess.Popen(deaf, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    ask_service.stop_service(process, patience_s=0.05)
    assert process.returncode == -signal.SIGKILL


def page(config_file: Path, *, private: bool) -> str:
    words = ["--config", str(config_file), "--set", f"report.private={str(private).lower()}"]
    assert write_report.main(words) == 0
    return (config_file.parent / "report.html").read_text(encoding="utf-8")


def test_the_page_shows_what_was_asked_and_found_and_a_private_one_does_not(
    config_file: Path,
) -> None:
    shutil.rmtree(config_file.parent / "eta_cache")  # its charts take most of a page's time
    phrase = json.loads((config_file.parent / ask_service.ANSWERS).read_text())["phrase"]
    private, whole = page(config_file, private=True), page(config_file, private=False)
    assert phrase in whole
    assert whole.count("data:image/jpeg") > 0
    assert not any(sentence in private for sentence in SENTENCES)
    assert "data:image" not in private


def test_an_index_without_a_test_image_is_named(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(config_file), "--set", 'index.splits=["train"]']
    assert build_index.main(words) == 0
    capsys.readouterr()
    assert ask_service.main(words) == 1
    assert "raise source.test_share" in capsys.readouterr().err
