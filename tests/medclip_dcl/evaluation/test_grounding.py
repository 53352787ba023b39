from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import jaccard_score

from medclip_dcl.data.limits import Fit
from medclip_dcl.evaluation.evaluated_model import EncodedImages
from medclip_dcl.evaluation.grounding import (
    PAPER_THRESHOLDS,
    BoxedSentence,
    box_mask,
    boxed_sentences,
    evaluate_grounding,
    is_pointed_at,
    mean_iou,
    signed_cnr,
)
from medclip_dcl.evaluation.metrics import BootstrapOptions
from medclip_dcl.evaluation.results import GROUNDINGS
from medclip_dcl.evaluation.retrieval import evaluate_boxes
from medclip_dcl.models.settings import SimilarityConfig
from tests.support.oracle import BOXED, BOXED_IMAGES, boxed, oracle, shown

SAMPLING = BootstrapOptions(20, 0)


def test_a_heatmap_stands_out_in_its_box_and_turns_the_sign_elsewhere():
    outcome, rows = evaluate_grounding(oracle(), BOXED_IMAGES, BOXED, 80, SAMPLING)
    assert outcome.figures["pointing"].value == 1.0
    assert outcome.figures["cnr"].value == outcome.figures["cnr_signed"].value > 1
    assert outcome.chance["pointing"] == pytest.approx(1 / 16)
    assert set(outcome.groups) == {"Cyst", "Fluid"}
    assert outcome.groups["Fluid"]["cnr"].n == 2
    assert set(rows[0]) == set(GROUNDINGS.schema.names)
    assert np.argmax(rows[0]["grid"]) == 1
    wrong = [boxed(0, "fluid", 3, 3), boxed(1, "cyst", 0, 0)]
    figures = evaluate_grounding(oracle(), BOXED_IMAGES, wrong, 80, SAMPLING)[0].figures
    assert figures["pointing"].value == 0.0
    assert figures["cnr_signed"].value < 0 < figures["cnr"].value


def test_the_chance_of_cnr_is_that_of_other_images_heatmaps():
    # Heatmaps of noise: signed CNR is 0 by chance, and absolute CNR is not.
    generator = torch.Generator().manual_seed(0)
    regions = torch.nn.functional.normalize(torch.randn(40, 4, 4, 7, generator=generator), dim=-1)
    names = tuple(map(str, range(40)))
    images = EncodedImages(names, names, ((40, 80),) * 40, regions)
    units = [boxed(image, "fluid", image % 4, image // 4 % 4) for image in range(40)]
    outcome, _ = evaluate_grounding(oracle(), images, units, 80, SAMPLING)
    figures, chance = outcome.figures, outcome.chance
    assert chance["cnr"] == pytest.approx(figures["cnr"].value, rel=0.25)
    assert abs(chance["cnr_signed"]) < 0.15 < 0.5 < chance["cnr"]
    right = evaluate_grounding(oracle(), BOXED_IMAGES, BOXED, 80, SAMPLING)[0]
    assert right.chance["cnr"] < right.figures["cnr"].value


def test_lengths_of_region_vectors_do_not_move_heatmaps():
    lengths = torch.linspace(0.5, 2, 16).view(1, 4, 4, 1)
    longer = replace(BOXED_IMAGES, regions=BOXED_IMAGES.regions * lengths)
    model = replace(oracle(), similarity=SimilarityConfig(kind="biovil"))
    moved, plain = (
        evaluate_grounding(model, images, BOXED, 80, SAMPLING)[0]
        for images in (longer, BOXED_IMAGES)
    )
    assert moved == plain


def fluid_in(*box: float) -> BoxedSentence:
    """The sentence of the fluid with a box (x, y, width, height)."""
    return BoxedSentence(0, "Fluid", "Fluid.", "fluid", np.array([box]))


def test_heatmaps_are_compared_at_a_bounded_size_and_are_never_enlarged():
    image = shown({(0, 1): "fluid"}, size_px=(100, 200))
    upper = [fluid_in(0.0, 0.0, 200.0, 33.0)]
    areas = [
        evaluate_grounding(oracle(), image, upper, longest, SAMPLING)[1][0]["area"]
        for longest in (2, 20, 200, 400)
    ]
    assert areas == [0, 0.3, 0.33, 0.33]  # of 1, 10, 100 and 100 rows: centres above .33


def test_a_crop_sees_no_margin_and_its_heatmap_keeps_its_place():
    # 100 x 200 pixels: a crop of 93, from (53, 3); its cells are 23.25 wide. The finding is in
    # cell (0, 1), x 76.25 to 99.5.
    fit = Fit("crop", "bilinear", resized_px=500)
    crop = replace(shown({(0, 1): "fluid"}, size_px=(100, 200)), fit=fit, size_px=465)
    assert crop.window(0) == pytest.approx((53.4, 3.4, 93, 93))
    right, lower = fluid_in(76.25, 3.0, 23.25, 23.25), fluid_in(76.25, 63.0, 23.25, 23.25)
    outside = fluid_in(150.0, 3.0, 40.0, 90.0)  # of what is seen
    hit, low, missed = (
        evaluate_grounding(oracle(), crop, [unit], 200, SAMPLING)[1][0]
        for unit in (right, lower, outside)
    )
    assert hit["cnr_signed"] > 1
    assert low["cnr_signed"] < 0
    assert (missed["cnr_signed"], missed["pointed"]) == (None, False)
    other = replace(outside, text="Cyst.", key="cyst")
    _, ranks = evaluate_boxes(oracle(), crop, [right, other], SAMPLING)
    assert ranks[0]["rank"] == 1


def images(*image_ids):
    sizes = ((100, 80),) * len(image_ids)
    return EncodedImages(image_ids, image_ids, sizes, torch.zeros(len(image_ids), 1, 1, 1))


def box(image_id, phrase, x=0.0, **changes):
    row = {"image_id": image_id, "category": "Effusion", "phrase": phrase}
    row |= {"x": x, "y": 10.0, "width": 20.0, "height": 30.0}
    return row | {"image_width": 80, "image_height": 100} | changes


def test_boxes_of_one_sentence_on_one_image_are_gathered_and_cover_the_centres_they_hold():
    rows = [box("i", "A."), box("j", "A."), box("i", "B."), box("i", "A.", x=40), box("z", "A.")]
    units = boxed_sentences(rows, images("i", "j"), ["a", "a", "b", "a", "a"])
    gathered = [(unit.image, unit.key, len(unit.boxes)) for unit in units]
    assert gathered == [(0, "a", 2), (1, "a", 1), (0, "b", 1)]
    assert units[0].boxes.tolist() == [[0, 10, 20, 30], [40, 10, 20, 30]]
    # Boxes are scaled from the size that the table states to the image's own.
    rows = [box("i", "A.", x=8.0, image_width=40, image_height=200)]
    (unit,) = boxed_sentences(rows, images("i"), ["a"])
    assert unit.boxes.tolist() == [[16, 5, 40, 15]]
    mask = box_mask(np.array([[1.0, 0.6, 2, 1.5]]), 4, 4)  # x 1..3, y .6..2.1: row 1 alone
    assert np.argwhere(mask).tolist() == [[1, 1], [1, 2]]
    assert box_mask(np.array([[0.0, 0, 3, 3], [1.0, 1, 3, 3]]), 4, 4).sum() == 9 + 9 - 4


HEATMAP = np.array([[3, 1, 1, 1], [3, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]], dtype=float)
INSIDE = box_mask(np.array([[0.0, 0, 2, 2]]), 4, 4)


def test_cnr_by_hand_without_pixels_that_have_no_score_and_the_maximum_pointed_at():
    # Inside mean 2, variance 1; outside mean 1/3, variance 1/3 - 1/9 = 2/9.
    expected = (2 - 1 / 3) / np.sqrt(1 + 2 / 9)
    assert signed_cnr(HEATMAP, INSIDE) == pytest.approx(expected)
    assert signed_cnr(HEATMAP, ~INSIDE) == pytest.approx(-expected)
    padded = np.pad(HEATMAP, 1, constant_values=np.nan)
    mask = np.pad(INSIDE, 1, constant_values=True)
    assert signed_cnr(padded, mask) == pytest.approx(signed_cnr(HEATMAP, INSIDE))
    unseen, nowhere = np.full_like(HEATMAP, np.nan), np.zeros_like(INSIDE)
    assert mean_iou(unseen, INSIDE, PAPER_THRESHOLDS) is None
    alike = np.ones((4, 4))
    for pair in (alike, INSIDE), (unseen, INSIDE), (HEATMAP, nowhere), (HEATMAP, ~nowhere):
        assert signed_cnr(*pair) is None
    assert is_pointed_at(HEATMAP, INSIDE) is True
    assert is_pointed_at(HEATMAP, ~INSIDE) is False


def test_mean_iou_of_a_perfect_map_over_41_exact_thresholds_and_of_an_empty_union():
    assert len(PAPER_THRESHOLDS) == 41
    assert (PAPER_THRESHOLDS[0], PAPER_THRESHOLDS[20], PAPER_THRESHOLDS[-1]) == (-1.0, 0.0, 1.0)
    # At t = -1 everything is above: IoU = area = 4/16; at the other 40 it is 1.
    perfect = np.where(INSIDE, 1.0, -1.0)
    assert mean_iou(perfect, INSIDE, PAPER_THRESHOLDS) == pytest.approx((40 + 0.25) / 41)
    assert mean_iou(np.zeros((4, 4)), np.zeros((4, 4), dtype=bool), (0.1, 0.5)) == 0.0


def test_mean_iou_agrees_with_scikit_learn():
    heatmap = np.random.default_rng(6).uniform(-1, 1, (9, 7))
    mask = box_mask(np.array([[1.0, 2, 4, 5]]), 9, 7)
    above = [(heatmap >= step * 0.05).ravel() for step in range(-20, 21)]
    expected = np.mean([jaccard_score(mask.ravel(), each, zero_division=0) for each in above])
    assert mean_iou(heatmap, mask, PAPER_THRESHOLDS) == pytest.approx(expected, abs=1e-9, rel=0)
