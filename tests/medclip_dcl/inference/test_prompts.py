from pathlib import Path

import pytest

from medclip_dcl.core.errors import QueryError
from medclip_dcl.inference.prompts import Finding, FindingCode, parse_prompts, read_prompts

PAIR = {"name": "edema", "positive": "Pulmonary  edema", "negative": ["No edema", "Clear lungs"]}


def test_a_side_is_one_sentence_or_several():
    assert parse_prompts([PAIR]) == (
        Finding("edema", ("Pulmonary edema",), ("No edema", "Clear lungs"), ""),
    )


@pytest.mark.parametrize("entry", [{}, {"negative": []}])
def test_a_finding_may_have_no_negative_prompt(entry):
    (finding,) = parse_prompts([{"name": "mass", "positive": "A mass"} | entry])
    assert finding == Finding("mass", ("A mass",), ())


def test_a_code_is_read_and_is_no_part_of_the_question():
    code = {"value": 19242006, "scheme": "SCT", "meaning": "Pulmonary edema"}
    (coded,) = parse_prompts([PAIR | {"code": code}])
    assert coded.code == FindingCode("19242006", "SCT", "Pulmonary edema")
    assert (coded,) == parse_prompts([PAIR])  # a calibration fits with and without


@pytest.mark.parametrize(
    ("tree", "rule"),
    [
        ([], "at least one entry"),
        ({"name": "edema"}, "at least one entry"),
        (["edema"], "finding 0 must be a mapping"),
        ([PAIR | {"threshold": 1}], "finding 0 must be a mapping"),
        ([PAIR | {"name": " "}], "finding 0 needs a name"),
        ([PAIR | {"positive": []}], "finding 0 needs a positive prompt"),
        ([PAIR | {"negative": None}], "finding 0 needs a positive prompt, and a negative that"),
        ([PAIR | {"negative": [""]}], "finding 0 has a prompt that is empty"),
        ([PAIR | {"negative": [7]}], "finding 0 has a prompt that is empty or no text"),
        ([PAIR, PAIR], "same name"),
        ([PAIR | {"code": "19242006"}], "code of finding 0 must have value, scheme, meaning"),
        (
            [PAIR | {"code": {"value": 17 * "1", "scheme": "SCT", "meaning": "edema"}}],
            "value in the code of finding 0 needs 1 to 16 letters",
        ),
    ],
)
def test_malformed_findings_are_refused_by_number(tree, rule):
    with pytest.raises(QueryError, match=rule) as caught:
        parse_prompts(tree)
    assert "edema" not in str(caught.value)


def test_the_paper_s_five_findings_are_read_with_their_labels():
    findings = read_prompts(Path("configs/prompts/chex5.yaml"))
    assert [finding.name for finding in findings] == [
        "pneumonia",
        "cardiomegaly",
        "edema",
        "effusion",
        "pneumothorax",
    ]
    assert findings[3] == Finding(
        "effusion", ("Pleural effusions",), ("No pleural effusions",), "Pleural Effusion"
    )
