import math
from itertools import chain
from types import SimpleNamespace

import pytest
import torch

from medclip_dcl.core.errors import QueryError
from medclip_dcl.inference import zero_shot
from medclip_dcl.inference.model_package import Curve, FindingCalibration, ScoreCalibration
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.inference.zero_shot import margins, prompt_offset
from medclip_dcl.models.settings import ProbabilitiesConfig

TWO = (Finding("edema", ("p1", "p2"), ("n1",)), Finding("mass", ("p3",), ("n2", "n3")))


def scored(margin, asked=TWO, gamma=1.0, calibration=None, offsets=None):
    curves = zero_shot.calibrations_of(asked, TWO, calibration)
    levels = offsets or [None] * len(asked)
    return zero_shot.finding_scores(margin, torch.tensor(gamma), asked, curves, levels)


def test_several_prompts_of_a_side_are_averaged_by_score():
    scores = torch.tensor([[0.2], [0.4], [0.1], [0.0], [0.5], [0.3]])
    assert margins(scores, TWO).flatten().tolist() == pytest.approx([0.2, -0.4])


def test_a_level_stands_in_the_place_of_a_missing_negative_prompt():
    asked = (Finding("mass", ("p1", "p2")), TWO[0])
    scores = torch.tensor([[0.2], [0.4], [0.2], [0.4], [0.1]])
    assert margins(scores, asked).flatten().tolist() == pytest.approx([0.3, 0.2])
    assert margins(scores, asked, [0.35, 9]).flatten().tolist() == pytest.approx([-0.05, 0.2])
    scores = torch.tensor([[0.2], [0.4], [0.1], [0.2], [0.4]])
    levels = [9, 0.35]
    assert margins(scores, asked[::-1], levels).flatten().tolist() == pytest.approx([0.2, -0.05])
    assert zero_shot.required_levels(asked, [(0.35, 0.35), None]) == [0.35, 0]
    with pytest.raises(QueryError, match="finding 0 has no negative prompt"):
        zero_shot.required_levels(asked, [None, (0.1, 0.2)])


def test_an_offset_is_the_logarithm_of_the_mean_over_the_bank():
    scores = torch.tensor([[0.0, math.log(3.0)], [math.log(2.0), math.log(2.0)], [800.0, 800.0]])
    assert prompt_offset(scores).tolist() == pytest.approx([math.log(2), math.log(2), 800])


def test_levels_are_offsets_of_scaled_scores_and_a_lone_prompt_has_one():
    log = math.log
    f = torch.tensor([[0, log(3) / 4], [0, log(3) / 4], [0.5, 0.5], [log(2) / 4, log(2) / 4]])
    model = SimpleNamespace(gamma=torch.tensor(2.0), score=lambda _bank, _prompts: f)
    asked = (TWO[0], Finding("mass", ("p3",)))
    levels = zero_shot.prompt_levels(model, torch.zeros(2, 1, 1, 3), torch.zeros(4, 3), asked)
    assert levels.flatten().tolist() == pytest.approx([log(2), 2, log(2), log(2)])
    assert zero_shot.offsets_of_levels([(0.5, -0.25), None]) == [0.75, None]


def test_a_percentile_is_the_share_of_the_bank_strictly_below():
    bank = torch.tensor([[0.1, 0.2, 0.3, 0.4], [5.0, 5.0, 6.0, 7.0]])
    ranks = zero_shot.percentiles(torch.tensor([[0.2, 0.9], [5.0, 6.5]]), bank)
    assert ranks.tolist() == [[25, 100], [0, 75]]


def test_decisions_are_margins_above_the_offset_and_scores_stay():
    margin = torch.tensor([[0.1, -0.1], [0.0, 0.2]])
    plain, moved = scored(margin), scored(margin, offsets=[-0.15, 0.2])
    assert [[one.name for one in image] for image in plain] == [["edema", "mass"]] * 2
    assert [[one.decision for one in image] for image in plain] == [[True, False], [False, True]]
    assert [[one.decision for one in image] for image in moved] == [[True, False], [True, False]]
    mass = plain[0][1]
    assert (mass.score, mass.threshold, mass.offset) == (0.5, 0.5, None)
    assert moved[0][0].threshold == pytest.approx(1 / (1 + math.exp(0.15)))
    for before, after in zip(chain(*plain), chain(*moved), strict=True):
        assert after.score == before.score
        assert (after.score > after.threshold) == after.decision


def fitted(finding: str, curve: Curve | None, reason: str) -> FindingCalibration:
    counts = {"images_with": 3, "images_without": 4, "patients": 7}
    errors = {"score_error": 0.2, "fitted_error": 0.1}
    return FindingCalibration(finding=finding, curve=curve, reason=reason, **counts, **errors)


CALIBRATION = ScoreCalibration(
    truth="labels",
    settings=ProbabilitiesConfig(),
    inputs={},
    findings=(
        # Log odds: twice the logit of the score, minus one.
        fitted("edema", Curve(slope=2.0, intercept=-1.0), ""),
        fitted("mass", None, "too few images"),
    ),
)


def test_a_calibrated_finding_has_its_probability_and_another_its_reason():
    margin = torch.tensor([[0.5], [0.5]])
    edema, mass = scored(margin, gamma=3.0, calibration=CALIBRATION)[0]
    assert edema.probability == pytest.approx(1 / (1 + math.exp(-(2 * 9 * 0.5 - 1))), rel=1e-12)
    assert edema.probability_note == ""
    assert (mass.probability, mass.probability_note) == (None, "too few images")
    # a probability is that of the margin as it is, whatever is decided
    moved, _ = scored(margin, gamma=3.0, calibration=CALIBRATION, offsets=[0.6, None])[0]
    assert (moved.probability, moved.decision) == (edema.probability, False)


def test_other_prompts_of_the_same_name_get_no_probability():
    other = (Finding("edema", ("p1",), ("n1",)),)
    answer = scored(torch.zeros(1, 1), other, calibration=CALIBRATION)[0][0]
    assert answer.probability is None
    assert "prompts of its card" in answer.probability_note
