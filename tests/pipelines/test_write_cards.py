import json
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.errors import ArtifactMissing, ArtifactStale
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest
from medclip_dcl.evaluation import results
from medclip_dcl.inference import model_package
from medclip_dcl.text import sentences
from pipelines import pages
from pipelines.job import main_of
from pipelines.report.sources import count_splits
from tests.support.corpus import commit_tables, write_config, write_corpus
from tests.support.evaluated import evaluate_here, write_evaluated
from tests.support.published import publish

main = main_of("write_cards")

TABLES = (manifest.IMAGES, manifest.REPORTS, manifest.STUDY_LABELS, manifest.BOXES)

WORDS = {
    "intended_use": "Comparing losses.",
    "limits": ["Tiny images alone."],
    "licence": "MIT",
    "data": "Drawn for a test.",
}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evaluate_here(write_evaluated(tmp_path_factory.mktemp("cards") / "work"))


def run(work: Path, **words: Any) -> int:
    config_file = write_config(
        work / "cards.yaml", work, card=WORDS | words, source={"root": str(work)}
    )
    return main(["--config", str(config_file)])


def facts(work: Path, name: str) -> dict[str, Any]:
    return json.loads((work / "cards" / name).read_text())


def test_publishing_is_refused_while_a_text_is_empty(tmp_path, capsys):
    work = write_evaluated(tmp_path / "work")
    model = open_artifact(work / "model", model_package.ARTIFACT)
    for name, empty in {"intended_use": " ", "limits": [], "licence": ""}.items():
        assert run(work, **{name: empty}) == 2
        assert f"card.{name} empty" in capsys.readouterr().err
    with pytest.raises(ArtifactMissing, match="fill the config's card section"):
        pages.cards_of(work, model)
    assert open_artifact(work / "model", model_package.ARTIFACT).digest == model.digest


def test_the_cards_open_the_gate_for_their_own_model_alone(tmp_path: Path) -> None:
    work = write_evaluated(tmp_path / "work")
    assert run(work) == 0
    model = open_artifact(work / "model", model_package.ARTIFACT)
    assert pages.cards_of(work, model).summary["model"] == model.digest
    publish(work / "model", ["elsewhere"], seed=1)
    with pytest.raises(ArtifactStale, match="rerun write_cards"):
        pages.cards_of(work, open_artifact(work / "model", model_package.ARTIFACT))


def test_the_model_card_says_what_was_measured(evaluated: Path) -> None:
    assert run(evaluated) == 0
    found = facts(evaluated, pages.MODEL_FACTS)
    tree = results.read_figures(open_artifact(results.ARTIFACT.at(evaluated), results.ARTIFACT))
    auc = tree["questions"]["zero_shot"]["figures"]["mean_auc"]
    assert found["evaluation"]["figures"]["zero-shot AUC, mean of findings"] == {
        **auc,
        "chance": 0.5,
    }
    text = (evaluated / "cards" / pages.MODEL_CARD).read_text()
    assert ModelCard(text).data.license == "mit"
    assert "Comparing losses." in text
    assert "- Tiny images alone." in text
    shown = f"{auc['value']:.3f} [{auc['low']:.3f}, {auc['high']:.3f}]"
    assert f"| zero-shot AUC, mean of findings | {shown} | 0.500 |" in text
    auprc = tree["questions"]["decisions"]["groups"]["pneumonia"]["auprc"]
    shown = f"{auprc['value']:.3f} [{auprc['low']:.3f}, {auprc['high']:.3f}]"
    (line,) = (line for line in text.splitlines() if line.startswith("| pneumonia | 10 |"))
    assert line.split(" | ")[3] == shown
    assert "12 steps with 8 pairs each, from 24 studies of 24 patients" in text


def test_the_data_card_counts_split_by_split(evaluated: Path) -> None:
    assert run(evaluated) == 0
    found = facts(evaluated, pages.DATA_FACTS)
    counts = {name: (row["images"], row["patients"]) for name, row in found["splits"].items()}
    assert counts == {"train": (30, 24), "validate": (10, 8), "test": (10, 8)}
    assert found["splits"]["test"]["views"] == "PA 10"
    assert found["labels"]["Pneumonia"] == {"present": 6, "absent": 18, "uncertain": 0, "blank": 0}
    assert found["terms"] == "Drawn for a test."


def test_cards_name_no_patient_image_or_sentence(evaluated: Path) -> None:
    assert run(evaluated) == 0
    said = read_table(sentences.ARTIFACT.at(evaluated), sentences.SENTENCES)["text"].to_pylist()
    text = "".join(path.read_text() for path in (evaluated / "cards").glob("*_card.*"))
    assert not re.search(r"\bp0\d\d\b|image0\d\d|\bs0\d\d\b", text)
    assert not [sentence for sentence in set(said) if sentence in text]


def test_a_column_that_is_no_view_is_counted_and_not_named(tmp_path: Path) -> None:
    work = write_corpus(tmp_path / "work")
    listed = {form: read_table(work / "manifest", form).to_pylist() for form in TABLES}
    for number, row in enumerate(listed[manifest.IMAGES]):
        row["view"] = ("Doe^Jane 1950", "pa", "AP  axial", "")[number % 4]
    source = commit_tables(work, manifest.ARTIFACT, listed, views="odd")
    counted = [row["views"] for row in count_splits(source).values()]
    assert {part.rpartition(" ")[0] for views in counted for part in views.split(", ")} == {
        *("AP AXIAL", "PA", "not known", "other")
    }
