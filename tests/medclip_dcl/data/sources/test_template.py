"""Reports made of labels: who says what, and that a table of labels alone is trained on."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import ValidationError

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.sources.readers import read_source
from medclip_dcl.text.sentences import text_key
from pipelines.data import claims_of_template

ROWS = """\
patient,file,Mass,Hernia
a,0.png,1,0
b,1.png,1,1
c,2.png,0,0
d,3.png,0,
e,4.png,-1,0
"""
SHORT = "{finding} in the chest X-ray"
LONG = {"present": "There is a {finding}.", "absent": "There is no {finding}."}


def source(root: Path, template: Any, **changes: Any) -> SourceConfig:
    columns = {"subject_id": "patient", "path": "file", "labels": {"Mass": "Mass"}}
    columns["labels"]["Hernia"] = "Hernia"
    (root / "table.csv").write_text(ROWS)
    for number in range(5):
        Image.new("L", (40, 40), number).save(root / f"{number}.png")
    tree = {"kind": "table", "root": str(root), "table": "table.csv", "template": template}
    tree |= {"columns": columns, "findings": ["Mass", "Hernia", "Fracture"]} | changes
    return SourceConfig.model_validate(tree)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (SHORT, ["Mass in the chest X-ray.",
                 "Mass in the chest X-ray. Hernia in the chest X-ray.",
                 "No finding in the chest X-ray.", "", ""]),
        (LONG, ["There is a Mass. There is no Hernia.", "There is a Mass. There is a Hernia.",
                "There is no Mass. There is no Hernia.", "There is no Mass.",
                "There is no Hernia."]),
        ({**LONG, "absent": "", "none": "Normal lungs."},
         ["There is a Mass.", "There is a Mass. There is a Hernia.", "Normal lungs.", "", ""]),
    ],
)  # fmt: skip
def test_present_absent_and_no_findings_are_said_and_blank_ones_are_not(template, said, tmp_path):
    raw = read_source(source(tmp_path, template), Path).raw
    assert [study.report.findings for study in raw.studies] == said
    assert [study.subject_id for study in raw.studies] == ["a", "b", "c", "d", "e"]
    assert raw.has_reports


def test_sentences_claim_what_they_were_made_of_whatever_a_labeler_knows(tmp_path):
    claims = claims_of_template(source(tmp_path, {**LONG, "none": "Normal lungs."})).sentences
    assert claims[text_key("There is a Hernia.")].asserted == {"Hernia": frozenset()}
    assert claims[text_key("There is no Hernia.")].negated == {"Hernia"}
    assert claims[text_key("Normal lungs.")].normal


@pytest.mark.parametrize("template", ["a chest X-ray", {"absent": "No {finding}."},
                                      {"present": "{finding}", "absent": "none"}])  # fmt: skip
def test_a_template_without_its_finding_is_refused(template, tmp_path):
    with pytest.raises(ValidationError, match=r"needs \{finding\}"):
        source(tmp_path, template)


def test_a_template_needs_labels_and_no_reports(tmp_path):
    columns = {"subject_id": "patient", "path": "file"}
    with pytest.raises(ConfigError, match="makes reports of labels, and there are none"):
        read_source(source(tmp_path, SHORT, columns=columns), Path)
    with pytest.raises(ConfigError, match="this source has reports; leave out"):
        read_source(source(tmp_path, SHORT, columns={**columns, "report": "Mass"}), Path)
