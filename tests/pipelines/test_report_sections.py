"""Sections on trust and false negatives: what they show, and what a private page leaves out."""

from pathlib import Path

import pytest

from benchmarks.fixtures.corpus import KINDS, write_config
from benchmarks.fixtures.evaluated import write_evaluated
from benchmarks.fixtures.published import PROMPTS, publish
from pipelines.calibrate_scores import main as calibrate
from pipelines.evaluate import main as evaluate
from pipelines.write_report import main

CANARY = "a canary sings in the left lung"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = write_evaluated(tmp_path_factory.mktemp("sections") / "work")
    publish(work / "model", ["elsewhere"], seed=5)
    (work / "prompts.yaml").write_text(f"format_version: 1\nfindings: {PROMPTS}\n")
    pair = "{name: pneumonia, label: Pneumonia, positive: [pneumonia, %s], negative: no pneumonia}"
    (work / "other.yaml").write_text(f"format_version: 1\nfindings: [{pair % CANARY}]\n")
    config_file = write_config(
        work / "config.yaml",
        work,
        evaluate={
            "bootstrap": 10,
            "prompts": str(work / "prompts.yaml"),
            "paraphrases": str(work / "other.yaml"),
        },
        probabilities={"least_per_class": 2},
        source={"root": str(work)},
    )
    assert calibrate(["--config", str(config_file)]) == 0
    assert evaluate(["--config", str(config_file)]) == 0
    return work


def page(work: Path, *, private: bool) -> str:
    config_file = str(work / "config.yaml")
    assert main(["--config", config_file, "--set", f"report.private={str(private).lower()}"]) == 0
    return (work / "report.html").read_text(encoding="utf-8")


def test_trust_and_false_negatives_have_their_sections(work: Path) -> None:
    text = page(work, private=False)
    assert 'id="trust"' in text
    assert 'id="audit"' in text
    assert "Reliability: share of images" in text
    assert "best minus worst AUC" not in text  # one view alone: no gap
    assert CANARY in text
    assert "Pairs most likely to be false" in text
    assert any(said in text for _, *pair in KINDS for said in pair)


def test_a_private_page_keeps_the_figures_and_drops_prompts_images_and_sentences(
    work: Path,
) -> None:
    text = page(work, private=True)
    assert 'id="trust"' in text
    assert 'id="audit"' in text
    assert "Reliability: share of images" in text
    assert CANARY not in text
    assert "Pairs most likely" not in text
    assert "data:image" not in text
    assert not any(said in text for _, *pair in KINDS for said in pair)
