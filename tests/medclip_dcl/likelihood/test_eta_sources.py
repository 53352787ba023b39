"""Frequencies and labels as class probabilities, by hand."""

import numpy as np
import pytest

from medclip_dcl.core.errors import ScoreError
from medclip_dcl.likelihood.eta_sources import (
    NOT_MENTIONED,
    SentenceClaims,
    eta_from_frequency,
    eta_from_labels,
)

NAMES = ("Edema", "No Finding", "Pneumonia")
BLANK = NOT_MENTIONED
LABELS = np.array(
    [[1, BLANK, BLANK], [1, BLANK, 1], [0, 1, 0], [-1, BLANK, BLANK], [BLANK, 1, BLANK]], np.int8
)


def test_frequency_is_the_share_of_training_reports():
    assert eta_from_frequency(np.array([0, 1, 4]), 8).tolist() == [0, 0.125, 0.5]
    assert eta_from_frequency(np.array([0, 1]), 1).tolist() == [0, 1]
    with pytest.raises(ScoreError, match="3 training reports"):
        eta_from_frequency(np.array([4]), 3)
    with pytest.raises(ScoreError, match="0 training reports"):
        eta_from_frequency(np.array([0]), 0)


@pytest.mark.parametrize(
    ("claims", "share"),
    [
        (SentenceClaims(("Edema",), (), False), 2 / 5),
        (SentenceClaims(("Edema", "Pneumonia"), (), False), 1 / 5),
        (SentenceClaims((), ("Edema",), False), 2 / 5),
        (SentenceClaims((), ("Edema", "Pneumonia"), False), 2 / 5),
        (SentenceClaims((), ("Pneumonia",), False), 4 / 5),
        (SentenceClaims((), (), True), 2 / 5),
        (SentenceClaims(("Edema",), (), True), 2 / 5),  # what is asserted goes before normal
        (SentenceClaims((), (), False), 0),
    ],
)
def test_labels_give_the_share_of_studies_that_fit(claims, share):
    assert eta_from_labels([claims, claims], LABELS, NAMES).tolist() == [share, share]


def test_a_finding_that_no_study_is_labelled_for_is_not_corrected():
    labels = np.array([[1, BLANK, BLANK], [0, 1, BLANK]], np.int8)
    said = [SentenceClaims((), ("Pneumonia",), False), SentenceClaims((), ("Edema",), False)]
    assert eta_from_labels(said, labels, NAMES).tolist() == [0, 1 / 2]
