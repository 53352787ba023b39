"""The reader keeps its level on real reports."""

import json

import pytest

from benchmarks.method.labeler import main, measure_generated, reads_as_meant
from medclip_dcl.synthetic.reports import FineFinding, Meaning, Statement

LEFT_EFFUSION = FineFinding("effusion", "left")


@pytest.mark.parametrize(
    ("text", "meaning", "expected"),
    [
        ("History of edema.", Meaning(), True),
        ("Edema.", Meaning(), False),
        ("A left effusion is seen.", Meaning(asserted=LEFT_EFFUSION), True),
        ("An effusion is seen.", Meaning(asserted=LEFT_EFFUSION), False),
        ("Left effusion, no edema.", Meaning(asserted=LEFT_EFFUSION), False),
        ("The edema has resolved.", Meaning(negated=("edema",)), True),
    ],
)
def test_a_sentence_is_right_where_nothing_else_is_read(text, meaning, expected):
    assert reads_as_meant(Statement(text, "coarse", meaning)) is expected


def test_generated_sentences_are_read_as_they_are_meant() -> None:
    """All but the names of hila and aorta, which the labeler does not know."""
    figures = measure_generated(150)
    for kind in ("coarse", "combined", "fine", "negated"):
        assert figures[f"generated {kind}"] >= 20
        assert figures[f"generated right {kind}"] >= 0.9


@pytest.mark.real_data
def test_macro_f1_on_real_reports_meets_its_bar(test_data, capsys):
    assert main(["--held-out"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["bars"]["macro_f1"]["met"]
    assert line["figures"]["macro_f1 concepts held out"] >= 0.90
    assert line["figures"]["macro_f1 findings held out"] >= 0.80
