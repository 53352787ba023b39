import numpy as np
import pytest
from sklearn.metrics import jaccard_score

from medclip_dcl.errors import MetricError
from medclip_dcl.evaluation.metrics import (
    BIOVIL_THRESHOLDS,
    PAPER_THRESHOLDS,
    box_mask,
    is_pointed_at,
    mean_iou,
    signed_cnr,
)

# A 4x4 heatmap with the top left 2x2 inside: inside 3, 1, 3, 1; outside four 1 and eight 0.
HEATMAP = np.array([[3, 1, 1, 1], [3, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]], dtype=float)
INSIDE = box_mask(np.array([[0.0, 0, 2, 2]]), 4, 4)


def test_a_box_covers_the_pixels_whose_centres_it_holds():
    mask = box_mask(np.array([[1.0, 0.6, 2, 1.5]]), 4, 4)  # x 1..3, y .6..2.1: row 1 alone
    assert np.argwhere(mask).tolist() == [[1, 1], [1, 2]]


def test_overlapping_boxes_are_united_in_any_order():
    boxes = np.array([[0.0, 0, 3, 3], [1.0, 1, 3, 3]])
    mask = box_mask(boxes, 4, 4)
    assert mask.sum() == 9 + 9 - 4
    assert (box_mask(boxes[::-1].copy(), 4, 4) == mask).all()


def test_cnr_by_hand():
    # Inside mean 2, variance 1; outside mean 1/3, variance 1/3 - 1/9 = 2/9.
    expected = (2 - 1 / 3) / np.sqrt(1 + 2 / 9)
    assert signed_cnr(HEATMAP, INSIDE) == pytest.approx(expected)
    assert signed_cnr(HEATMAP, ~INSIDE) == pytest.approx(-expected)


def test_cnr_does_not_depend_on_scale_and_offset():
    assert signed_cnr(7 * HEATMAP - 3, INSIDE) == pytest.approx(signed_cnr(HEATMAP, INSIDE))


def test_pixels_without_a_score_are_left_out_of_cnr():
    padded = np.pad(HEATMAP, 1, constant_values=np.nan)
    mask = np.pad(INSIDE, 1, constant_values=True)
    assert signed_cnr(padded, mask) == pytest.approx(signed_cnr(HEATMAP, INSIDE))


@pytest.mark.parametrize(
    ("heatmap", "mask"),
    [
        (np.ones((4, 4)), INSIDE),
        (HEATMAP, np.zeros((4, 4), dtype=bool)),
        (HEATMAP, np.ones((4, 4), dtype=bool)),
        (np.full((4, 4), np.nan), INSIDE),
    ],
    ids=["constant", "no box", "box over all", "no score"],
)
def test_cnr_without_contrast_is_none(heatmap, mask):
    assert signed_cnr(heatmap, mask) is None


def test_paper_thresholds_are_41_and_exact_at_both_ends():
    assert len(PAPER_THRESHOLDS) == 41
    assert (PAPER_THRESHOLDS[0], PAPER_THRESHOLDS[20], PAPER_THRESHOLDS[-1]) == (-1.0, 0.0, 1.0)


def test_mean_iou_of_a_perfect_map():
    # At t = -1 everything is above: IoU = area = 4/16; at the other 40 it is 1.
    perfect = np.where(INSIDE, 1.0, -1.0)
    assert mean_iou(perfect, INSIDE, PAPER_THRESHOLDS) == pytest.approx((40 + 0.25) / 41)


def test_mean_iou_agrees_with_scikit_learn():
    heatmap = np.random.default_rng(6).uniform(-1, 1, (9, 7))
    mask = box_mask(np.array([[1.0, 2, 4, 5]]), 9, 7)
    expected = np.mean(
        [
            jaccard_score(mask.ravel(), (heatmap >= step * 0.05).ravel(), zero_division=0)
            for step in range(-20, 21)
        ]
    )
    found = mean_iou(heatmap, mask, PAPER_THRESHOLDS)
    assert found == pytest.approx(expected, abs=1e-9, rel=0)


def test_mean_iou_of_a_constant_zero_map():
    # t = -1 ... 0: 21 thresholds with IoU = area; above 0 nothing, IoU 0.
    zero = np.zeros((4, 4))
    assert mean_iou(zero, INSIDE, PAPER_THRESHOLDS) == pytest.approx(21 * 0.25 / 41)


def test_mean_iou_of_an_empty_union_is_zero():
    assert mean_iou(np.zeros((4, 4)), np.zeros((4, 4), dtype=bool), BIOVIL_THRESHOLDS) == 0.0


def test_biovil_thresholds_are_blind_to_the_clamp_at_zero():
    heatmap = np.linspace(-1, 1, 16).reshape(4, 4)
    clamped = np.maximum(heatmap, 0)
    both = [mean_iou(h, INSIDE, BIOVIL_THRESHOLDS) for h in (heatmap, clamped)]
    assert both[0] == both[1]


def test_pointing_asks_where_the_maximum_lies():
    assert is_pointed_at(HEATMAP, INSIDE) is True
    assert is_pointed_at(HEATMAP, ~INSIDE) is False


def test_pointing_at_inside_and_outside_alike_is_a_miss():
    assert is_pointed_at(np.zeros((4, 4)), INSIDE) is False


def test_no_scores_point_nowhere():
    assert is_pointed_at(np.full((4, 4), np.nan), INSIDE) is None
    assert mean_iou(np.full((4, 4), np.nan), INSIDE, PAPER_THRESHOLDS) is None


@pytest.mark.usefixtures("unchecked_shapes")
def test_heatmap_and_mask_must_have_one_shape():
    with pytest.raises(MetricError, match="differ"):
        signed_cnr(HEATMAP, INSIDE[:3])
