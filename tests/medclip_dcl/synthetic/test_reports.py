from collections import Counter

import numpy as np
import pytest

from medclip_dcl.synthetic.reports import (
    FINE_FINDINGS,
    TYPES,
    FineFinding,
    Meaning,
    Statement,
    draw_findings,
    draw_report,
    gallery_sentence,
    study_labels,
)
from medclip_dcl.text.labeler.lexicon import LABELS

EFFUSION, LEFT_EFFUSION = FineFinding("effusion"), FineFinding("effusion", "left")


def studies(count: int) -> list[tuple[dict[FineFinding, float], list[Statement]]]:
    drawn = []
    for seed in range(count):
        generator = np.random.default_rng(seed)
        shown = draw_findings(generator)
        drawn.append((shown, draw_report(shown, "AP", generator)[1]))
    return drawn


STUDIES = studies(400)


@pytest.mark.parametrize(
    ("meaning", "shown", "expected"),
    [
        (Meaning(asserted=LEFT_EFFUSION), [LEFT_EFFUSION], True),
        (Meaning(asserted=EFFUSION), [LEFT_EFFUSION], True),
        (Meaning(asserted=FineFinding("effusion", "right")), [LEFT_EFFUSION], False),
        (Meaning(asserted=EFFUSION), [], False),
        (Meaning(negated=("effusion",)), [LEFT_EFFUSION], False),
        (Meaning(negated=("edema", "effusion")), [LEFT_EFFUSION], False),
        (Meaning(negated=("edema",)), [LEFT_EFFUSION], True),
        (Meaning(negated=tuple(TYPES)), [], True),
    ],
)
def test_meaning_holds_of_the_images_it_is_true_of(meaning, shown, expected):
    assert meaning.holds(shown) is expected


def test_reports_say_nothing_false() -> None:
    for shown, statements in STUDIES:
        assert statements
        assert all(statement.meaning.holds(shown) for statement in statements)


def test_labels_agree_with_truth_and_report() -> None:
    values: Counter[int] = Counter()
    for shown, statements in STUDIES:
        labels = study_labels(statements)
        assert set(labels) <= set(LABELS)
        true = {label for finding in shown for label in TYPES[finding.type].labels}
        for label, value in labels.items():
            if label != "No Finding":
                assert (label in true) == (value != 0)
        assert labels.get("No Finding", 0) == (not shown)
        values.update(labels.values())
    assert set(values) == {-1, 0, 1}


def test_gallery_sentences_tell_fine_findings_apart() -> None:
    assert len({gallery_sentence(finding) for finding in FINE_FINDINGS}) == len(FINE_FINDINGS)
    assert gallery_sentence(FineFinding("pneumothorax", "right")) == (
        "There is a right pneumothorax."
    )
