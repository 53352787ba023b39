from pathlib import Path

import pytest

from medclip_dcl.core.errors import QueryError
from medclip_dcl.inference.prompts import Finding, FindingCode, parse_prompts, read_prompts

PAIR = {"name": "edema", "positive": "Pulmonary  edema", "negative": ["No edema", "Clear lungs"]}


def test_findings_keep_their_order_and_a_code_is_no_part_of_the_question():
    assert [item.name for item in parse_prompts(("mass", "nodule"))] == ["mass", "nodule"]
    code = {"value": 19242006, "scheme": "SCT", "meaning": "Pulmonary edema"}
    (coded,) = parse_prompts([PAIR | {"code": code}])
    assert coded.code == FindingCode("19242006", "SCT", "Pulmonary edema")
    assert (coded,) == parse_prompts([PAIR])  # a calibration fits with and without


@pytest.mark.parametrize(
    ("tree", "rule"),
    [
        ([], "at least one entry"),
        (7, "must be names, pairs of prompts or mappings"),
        (None, "must be names, pairs of prompts or mappings"),
        (b"edema", "must be names, pairs of prompts or mappings"),
        ({"name": "edema"}, "finding 0 needs a positive prompt"),
        ("  ", "finding 0 is empty or a denial"),
        (["No edema"], "finding 0 is empty or a denial"),
        ([["No edema"]], "finding 0 must be a name, a positive and a negative prompt, or a map"),
        ([["edema", ""]], "finding 0 has a prompt that is empty"),
        ([["edema", []]], "finding 0 needs a positive prompt"),
        ([7], "finding 0 must be a name"),
        ([PAIR | {"threshold": 1}], "or a mapping with keys among"),
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


OWN = (Finding("effusion", ("Pleural effusions",), ("No pleural effusions",), "Pleural Effusion"),)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("Effusion", OWN[0]),  # the model's own, by its name or by that of its label
        (["pleural effusion"], OWN[0]),
        (OWN[0], OWN[0]),
        ("mass", Finding("mass", ("Mass",), ("No mass",))),
        (["Mass"], Finding("Mass", ("Mass",), ("No mass",))),
        ({"COPD": 0}.keys(), Finding("COPD", ("COPD",), ("No COPD",))),
        (("lung  mass",), Finding("lung mass", ("Lung mass",), ("No lung mass",))),
        ("There is a mass.", Finding("There is a mass.", ("There is a mass.",))),
        ([("A mass", "Clear")], Finding("A mass", ("A mass",), ("Clear",))),
        ([["A mass", ["Clear", "No mass"]]], Finding("A mass", ("A mass",), ("Clear", "No mass"))),
        (iter([{"name": "m", "positive": "A mass"}]), Finding("m", ("A mass",))),
        (PAIR, Finding("edema", ("Pulmonary edema",), ("No edema", "Clear lungs"))),
        ({"name": "m", "positive": "A mass", "negative": []}, Finding("m", ("A mass",), ())),
        (Finding("mass", "A mass", ["Clear"]), Finding("mass", ("A mass",), ("Clear",))),
    ],
)
def test_a_finding_is_a_name_a_pair_a_mapping_or_a_finding(tree, expected):
    (finding,) = parse_prompts(tree, OWN)
    assert finding == expected


def test_the_paper_s_five_findings_are_read_with_their_labels():
    findings = read_prompts(Path("configs/prompts/chex5.yaml"))
    names = "pneumonia cardiomegaly edema effusion pneumothorax"
    assert " ".join(finding.name for finding in findings) == names
    assert findings[3] == OWN[0]
