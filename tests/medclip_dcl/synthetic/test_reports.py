from collections import Counter

import numpy as np
import pytest

from medclip_dcl.synthetic.reports import (
    FINE_FINDINGS,
    TYPES,
    FineFinding,
    Meaning,
    Report,
    draw_findings,
    draw_report,
    gallery_sentence,
    lay_out,
    study_labels,
)
from medclip_dcl.text.labeler.lexicon import LABELS

LEFT_EFFUSION = FineFinding("effusion", "left")


def studies(count: int) -> list[tuple[dict[FineFinding, float], Report, str]]:
    found = []
    for seed in range(count):
        generator = np.random.default_rng(seed)
        shown = {finding: float(generator.random()) for finding in draw_findings(generator)}
        report = draw_report(shown, generator)
        found.append((shown, report, lay_out(report, "AP", generator)))
    return found


STUDIES = studies(400)


@pytest.mark.parametrize(
    ("meaning", "found", "expected"),
    [
        (Meaning(asserted=(("effusion", "left", ""),)), (LEFT_EFFUSION,), True),
        (Meaning(asserted=(("effusion", "", ""),)), (LEFT_EFFUSION,), True),
        (Meaning(asserted=(("effusion", "right", ""),)), (LEFT_EFFUSION,), False),
        (Meaning(asserted=(("effusion", "", ""),)), (), False),
        (Meaning(negated=("effusion",)), (LEFT_EFFUSION,), False),
        (Meaning(negated=("edema", "effusion")), (LEFT_EFFUSION,), False),
        (Meaning(negated=("edema",)), (LEFT_EFFUSION,), True),
        (Meaning(normal=True), (), True),
        (Meaning(normal=True), (LEFT_EFFUSION,), False),
    ],
)
def test_meaning_holds_of_the_images_it_is_true_of(meaning, found, expected):
    assert meaning.holds(found) is expected


def test_reports_say_nothing_false() -> None:
    for shown, report, _ in STUDIES:
        assert report.statements
        assert all(statement.meaning.holds(shown) for statement in report.statements)


def test_labels_agree_with_truth_and_report() -> None:
    values: Counter[int] = Counter()
    for shown, report, _ in STUDIES:
        labels = study_labels(report)
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
