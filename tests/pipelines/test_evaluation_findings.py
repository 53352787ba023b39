from pathlib import Path
from typing import Any

import pytest

from benchmarks.fixtures.corpus import write_config
from benchmarks.fixtures.evaluated import PROMPTS, write_evaluated
from medclip_dcl.artifact import open_artifact
from medclip_dcl.data import manifest
from medclip_dcl.evaluation import results
from medclip_dcl.tables import read_table
from pipelines.evaluate import main

PARAPHRASES = """
format_version: 1
findings:
  - name: pneumonia
    label: Pneumonia
    positive: [pneumonia is seen, there is pneumonia]
    negative: [the lungs are clear, no pneumonia]
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_evaluated(tmp_path_factory.mktemp("further") / "work")


def run(work: Path, **settings: Any) -> int:
    (work / "prompts.yaml").write_text(PROMPTS)
    given = {"bootstrap": 10, "prompts": str(work / "prompts.yaml")} | settings
    config_file = write_config(
        work / "config.yaml", work, evaluate=given, source={"root": str(work)}
    )
    return main(["--config", str(config_file)])


def questions(work: Path) -> dict[str, Any]:
    found = results.read_figures(open_artifact(results.ARTIFACT.at(work), results.ARTIFACT))
    answered: dict[str, Any] = found["questions"]
    return answered


def test_groups_and_paraphrases_are_told_apart(work: Path) -> None:
    images = read_table(manifest.ARTIFACT.at(work), manifest.IMAGES).to_pylist()
    subjects = sorted({row["subject_id"] for row in images if row["split"] == "test"})
    sexes = [f"{name},{'FM'[number % 4 == 0]}" for number, name in enumerate(subjects)]
    (work / "people.csv").write_text("\n".join(["subject_id,gender", *sexes]))
    (work / "paraphrases.yaml").write_text(PARAPHRASES)
    demographics = {"table": str(work / "people.csv"), "sex": "gender"}
    assert run(work, demographics=demographics, paraphrases=str(work / "paraphrases.yaml")) == 0
    found = questions(work)
    pool = found["subgroups"]["pool"]
    assert pool == {
        "sex: female": 6,
        "sex: male": 4,
        "view: PA": 10,
    }  # the men have two images each
    withheld = found["subgroups"]["groups"]["view: PA"]["mean_auc"]
    assert [withheld[name] for name in ("value", "n", "subjects")] == [None, 10, 8]
    assert found["paraphrases"]["pool"] == {"pneumonia": 4}
    spread = found["paraphrases"]["groups"]["pneumonia"]
    rows = read_table(results.ARTIFACT.at(work), results.PROMPTS).to_pylist()
    areas = [row["auc"] for row in rows]
    assert len(areas) == 4
    ends = [spread["auc_lowest"]["value"], spread["auc_highest"]["value"]]
    assert ends == pytest.approx([min(areas), max(areas)])


def test_without_a_table_and_paraphrases_the_reasons_are_told(work: Path) -> None:
    assert run(work) == 0
    found = questions(work)
    assert "evaluate.paraphrases" in found["paraphrases"]["absent"]
    withheld = found["subgroups"]["groups"]["view: PA"]["mean_auc"]
    assert withheld["reason"] == "fewer than 10 patients"


def test_a_file_that_is_none_is_refused_by_the_setting_s_name(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(work, paraphrases=str(work / "nowhere.yaml")) == 2
    assert "evaluate.paraphrases names" in capsys.readouterr().err
