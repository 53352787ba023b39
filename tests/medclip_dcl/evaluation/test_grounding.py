from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fixtures.oracle import oracle, shown
from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.geometry import Window
from medclip_dcl.evaluation.grounding import (
    evaluate_boxes,
    evaluate_gallery,
    evaluate_grounding,
    mean_figures,
)
from medclip_dcl.evaluation.inputs import BoxedSentence
from medclip_dcl.evaluation.results import BOX_ANSWERS, GROUNDINGS, RANKS

# Images of 40 x 80 pixels (rows x columns) under a 4 x 4 grid: cells are 10 high and 20 wide.
IMAGES = shown({(0, 1): "fluid"}, {(2, 3): "cyst"}, {(3, 0): "fluid"})
SAMPLING = BootstrapOptions(20, 0)


def unit(image, word, row, column):
    cell = np.array([[column * 20.0, row * 10.0, 20.0, 10.0]])
    return BoxedSentence(image, word.capitalize(), f"{word.capitalize()}.", word, cell)


UNITS = [unit(0, "fluid", 0, 1), unit(1, "cyst", 2, 3), unit(2, "fluid", 3, 0)]


def test_a_heatmap_in_its_box_stands_out():
    outcome, rows = evaluate_grounding(oracle(), IMAGES, UNITS, 80, SAMPLING)
    assert outcome.figures["pointing"].value == 1.0
    assert outcome.figures["cnr"].value == outcome.figures["cnr_signed"].value > 1
    assert outcome.chance["pointing"] == pytest.approx(1 / 16)
    assert set(outcome.groups) == {"Cyst", "Fluid"}
    assert outcome.groups["Fluid"]["cnr"].n == 2
    assert set(rows[0]) == set(GROUNDINGS.schema.names)
    assert np.argmax(rows[0]["grid"]) == 1


def test_a_box_elsewhere_lowers_every_figure_and_turns_the_sign():
    wrong = [unit(0, "fluid", 3, 3), unit(1, "cyst", 0, 0)]
    figures = evaluate_grounding(oracle(), IMAGES, wrong, 80, SAMPLING)[0].figures
    assert figures["pointing"].value == 0.0
    assert figures["cnr_signed"].value < 0 < figures["cnr"].value


def test_figures_hardly_depend_on_the_size_at_which_they_are_taken():
    large = shown({(0, 1): "fluid"}, size_px=(400, 800))
    box = BoxedSentence(0, "Fluid", "Fluid.", "fluid", UNITS[0].boxes * 10)
    whole, bounded = (
        evaluate_grounding(oracle(), large, [box], longest, SAMPLING)[0].figures
        for longest in (800, 200)
    )
    for name in ("cnr", "miou", "pointing"):
        assert bounded[name].value == pytest.approx(whole[name].value, rel=0.02)


def test_a_crop_sees_no_margin_and_its_heatmap_keeps_its_place():
    # 100 x 200 pixels: a crop of 93, from (53, 3); its cells are 23.25 wide. The finding is in
    # cell (0, 1), x 76.25 to 99.5.
    crop = replace(shown({(0, 1): "fluid"}, size_px=(100, 200)), geometry="biovil")
    assert crop.window(0) == Window(53, 3, 93, 93)
    box = BoxedSentence(0, "Fluid", "Fluid.", "fluid", np.array([[76.25, 3.0, 23.25, 23.25]]))
    far = BoxedSentence(0, "Fluid", "Fluid.", "fluid", np.array([[150.0, 3.0, 40.0, 90.0]]))
    outcome, _ = evaluate_grounding(oracle(), crop, [box], 200, SAMPLING)
    assert outcome.figures["cnr_signed"].value > 1
    lower = replace(box, boxes=box.boxes + np.array([[0.0, 60.0, 0.0, 0.0]]))
    assert evaluate_grounding(oracle(), crop, [lower], 200, SAMPLING)[1][0]["cnr"] < 0
    _, missed = evaluate_grounding(oracle(), crop, [far], 200, SAMPLING)
    assert (missed[0]["cnr"], missed[0]["pointed"]) == (None, False)  # outside what is seen
    found = evaluate_boxes(oracle(), crop, [box, far], SAMPLING)[1]
    assert [row["x"] for row in found] == [76.25, 150.0]


def test_each_box_finds_its_sentence_and_back():
    outcome, rows, ranks, vectors = evaluate_boxes(oracle(), IMAGES, UNITS, SAMPLING)
    assert (outcome.pool["sentence_to_box"], outcome.pool["box_to_sentence"]) == (3, 2)
    assert outcome.pool["box_to_sentence.own"] == 3
    for direction in ("box_to_sentence", "sentence_to_box"):
        assert outcome.groups[direction]["recall_at_1"].value == 1.0
    # Two boxes read alike: one of two sentences, and (2/3 + 1/3 + 2/3) / 3 for boxes.
    assert outcome.chance["box_to_sentence.recall_at_1"] == pytest.approx(1 / 2)
    assert outcome.chance["sentence_to_box.recall_at_1"] == pytest.approx(5 / 9)
    assert vectors.shape == (3, 7)
    assert [row["sentence_rank"] for row in rows] == [1, 1, 1]
    assert set(rows[0]) == set(BOX_ANSWERS.schema.names)
    assert set(ranks[0]) == set(RANKS.schema.names)
    assert outcome.figures["recall"].value == 1.0  # three items: any is among the first ten
    assert outcome.figures["median_rank"].value == 1.0
    assert outcome.figures["own_median_rank"].value == 2.0  # 2, 1, 2 in both directions


def test_the_boxes_of_one_sentence_on_one_image_are_its_own():
    two = BoxedSentence(0, "Fluid", "Fluid.", "fluid", np.vstack([UNITS[0].boxes] * 2))
    _, _, ranks, _ = evaluate_boxes(oracle(), IMAGES, [two, UNITS[1]], SAMPLING)
    assert {row["own_rank"] for row in ranks} == {1}


def test_a_sentence_that_many_boxes_bear_is_one_item():
    units = [unit(0, "fluid", 0, 1), unit(1, "fluid", 0, 0), unit(2, "fluid", 0, 0)]
    units.append(unit(1, "cyst", 0, 1))  # a clear cell: all sentences tie, so it ranks last
    _, rows, _, _ = evaluate_boxes(oracle(), IMAGES, units, SAMPLING)
    assert rows[-1]["sentence_rank"] == 2


def test_a_box_on_the_wrong_image_misses():
    units = [unit(1, "fluid", 2, 3), unit(0, "cyst", 0, 1)]
    outcome, rows, _, _ = evaluate_boxes(oracle(), IMAGES, units, SAMPLING)
    assert [row["sentence_rank"] for row in rows] == [2, 2]
    assert outcome.groups["sentence_to_box"]["median_rank"].value == 2.0


def test_the_gallery_ranks_the_true_sentence_of_each_box():
    _, rows, _, vectors = evaluate_boxes(oracle(), IMAGES, UNITS, SAMPLING)
    gallery = ["Dust.", "Fluid.", "Cyst.", "Bone."]
    outcome = evaluate_gallery(oracle(), vectors, rows, gallery, [1, 2, None], SAMPLING)
    assert outcome.figures["recall_at_1"].value == 1.0
    assert outcome.figures["recall_at_1"].n == 2
    assert outcome.chance["recall_at_1"] == pytest.approx(0.25)
    assert outcome.pool == {"boxes": 2, "sentences": 4}
    assert rows[0]["gallery_best"][0] == 1
    assert (rows[2]["gallery_rank"], rows[2]["gallery_true"]) == (None, None)


def test_a_gallery_without_a_true_sentence_says_so():
    _, rows, _, vectors = evaluate_boxes(oracle(), IMAGES, UNITS, SAMPLING)
    outcome = evaluate_gallery(oracle(), vectors, rows, ["Dust."], [None] * 3, SAMPLING)
    assert "no box has its sentence" in outcome.absent
    assert outcome.figures["recall_at_1"].value is None


def test_undefined_units_are_left_out_of_a_mean():
    columns = {"cnr": [1.0, None, 3.0, 2.0], "none": [None] * 4}
    figures = mean_figures(columns, list("abcd"), BootstrapOptions(0, 0))
    assert figures["cnr"].value == 2.0
    assert figures["none"].value is None
