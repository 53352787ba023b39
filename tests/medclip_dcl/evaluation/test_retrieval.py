from dataclasses import replace

import numpy as np
import pytest
import torch

from medclip_dcl.evaluation.grounding import BoxedSentence
from medclip_dcl.evaluation.metrics import BootstrapOptions, value_of
from medclip_dcl.evaluation.results import RANKS
from medclip_dcl.evaluation.retrieval import (
    evaluate_boxes,
    evaluate_reports,
    measure_ranks,
    report_scores,
    reports_of_images,
)
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import box_vectors
from tests.support.oracle import BOXED, BOXED_IMAGES, boxed, oracle, shown

IMAGES = shown({(0, 0): "fluid"}, {(1, 2): "cyst"}, {}, {(3, 3): "fluid"})
SAMPLING = BootstrapOptions(20, 0)


def test_width_and_height_are_not_mixed_up():
    regions = torch.zeros(1, 2, 4, 3)
    regions[0, :, :2, 0] = 1  # left half
    regions[0, :, 2:, 1] = 1  # right half
    boxes = torch.tensor([[0.0, 0.0, 0.25, 1.0], [0.75, 0.0, 0.25, 1.0], [0.0, 0.0, 1.0, 0.5]])
    left, right, top = box_vectors(regions, boxes, torch.zeros(3, dtype=torch.long))
    assert left.tolist() == pytest.approx([1, 0, 0])
    assert right.tolist() == pytest.approx([0, 1, 0])
    assert top.tolist() == pytest.approx([0.5**0.5, 0.5**0.5, 0], abs=1e-6)


def test_a_report_scores_the_mean_of_its_sentences():
    scores = torch.tensor([[0.2, 0.0], [0.4, 0.6], [-0.2, 0.9]])
    text, report = torch.tensor([0, 1, 2, 1]), torch.tensor([0, 0, 0, 1])
    means = report_scores(scores, text, report, 2)
    assert means.flatten().tolist() == pytest.approx([0.4 / 3, 0.5, 0.4, 0.6])


def test_a_report_ranks_first_where_it_names_what_is_shown_and_doubles_before_a_query_s_own():
    reports = [["Fluid."], ["Cyst.", "Cyst."], ["Fluid."]]
    outcome, rows = evaluate_reports(oracle(), IMAGES.select([0, 1, 3]), reports, SAMPLING)
    pool = {"report_to_image": 3, "image_to_report": 2}
    assert outcome.pool == pool | {"report_to_image.own": 3, "image_to_report.own": 3}
    assert outcome.groups["report_to_image"]["recall_at_1"].value == 1.0
    found = outcome.groups["image_to_report"]
    assert found["recall_at_1"].value == 1.0
    assert found["own_recall_at_1"].value == pytest.approx(1 / 3)  # the cyst's alone
    assert found["own_median_rank"].value == 2.0  # 2, 1, 2
    assert outcome.chance["image_to_report.own_recall_at_1"] == pytest.approx(1 / 3)
    names = ("rank", "own_rank")
    ranks = {(row["direction"], row["image_id"]): [row[name] for name in names] for row in rows}
    assert ranks["image_to_report", "image-0"] == [1, 2]  # one double, before it
    assert ranks["report_to_image", "image-1"] == [1, 1]
    assert set(rows[0]) == set(RANKS.schema.names)


def test_recall_of_both_directions_is_the_mean_of_six():
    # Table 5 by hand: I->T .10 .31 .48, T->I .10 .33 .50 of 100 queries; medians 106 and 102.
    there = np.repeat([10, 50, 100, 106], [10, 31 - 10, 48 - 31, 100 - 48])
    back = np.repeat([10, 50, 100, 102], [10, 33 - 10, 50 - 33, 100 - 50])
    pairs = {"there": (there, np.full(100, 7)), "back": (back, np.full(100, 9))}
    figures = measure_ranks(pairs, np.ones((1, 100), dtype=int))
    found = {name: value_of(values) for name, values in figures.items()}
    assert found["recall"] == pytest.approx(1.82 / 6)
    assert found["own_recall"] == 1.0
    assert found["own_median_rank"] == 8.0
    assert found["median_rank"] == (106 + 101) / 2  # the 50th of 100 is rank 100
    assert found["back.recall_at_50"] == 0.33
    assert found["there.own_recall_at_1"] == 0.0
    weights = np.array([[1, 1, 1, 1], [0, 0, 3, 1]])  # ranks 1, 3, 7, 2, then 7, 7, 7, 2
    figures = measure_ranks({"there": [np.array([1, 3, 7, 2])] * 2}, weights)
    assert figures["there.recall_at_1"].tolist() == [0.25, 0]
    assert figures["there.recall_at_5"].tolist() == [0.75, 0.25]
    assert figures["there.median_rank"].tolist() == [2.5, 7]


def test_boxes_find_their_sentence_and_those_of_one_sentence_on_one_image_are_its_own():
    outcome, ranks = evaluate_boxes(oracle(), BOXED_IMAGES, BOXED, SAMPLING)
    assert (outcome.pool["sentence_to_box"], outcome.pool["box_to_sentence"]) == (3, 2)
    assert outcome.pool["box_to_sentence.own"] == 3
    for direction in ("box_to_sentence", "sentence_to_box"):
        assert outcome.groups[direction]["recall_at_1"].value == 1.0
    # Two boxes read alike: one of two sentences, and (2/3 + 1/3 + 2/3) / 3 for boxes.
    assert outcome.chance["box_to_sentence.recall_at_1"] == pytest.approx(1 / 2)
    assert outcome.chance["sentence_to_box.recall_at_1"] == pytest.approx(5 / 9)
    assert set(ranks[0]) == set(RANKS.schema.names)
    assert outcome.figures["recall"].value == 1.0  # three items: any is among the first ten
    assert outcome.figures["median_rank"].value == 1.0
    assert outcome.figures["own_median_rank"].value == 2.0  # 2, 1, 2 in both directions
    two = BoxedSentence(0, "Fluid", "Fluid.", "fluid", np.vstack([BOXED[0].boxes] * 2))
    _, ranks = evaluate_boxes(oracle(), BOXED_IMAGES, [two, BOXED[1]], SAMPLING)
    assert {row["own_rank"] for row in ranks} == {1}
    units = [boxed(0, "fluid", 0, 1), boxed(1, "fluid", 0, 0), boxed(2, "fluid", 0, 0)]
    units.append(boxed(1, "cyst", 0, 1))  # a clear cell: all sentences tie, so it ranks last
    _, ranks = evaluate_boxes(oracle(), BOXED_IMAGES, units, SAMPLING)
    assert [row["rank"] for row in ranks if row["direction"] == "box_to_sentence"][-1] == 2


def test_regions_in_a_box_count_alike_whatever_their_lengths():
    images = shown({(0, 0): "fluid", (0, 1): "cyst"})
    lengths = torch.linspace(1, 9, 16).view(1, 4, 4, 1)
    longer = replace(images, regions=images.regions * lengths)
    wide = [replace(boxed(0, "cyst", 0, 0), boxes=np.array([[0.0, 0.0, 40.0, 10.0]]))]
    keeping = replace(oracle(), similarity=SimilarityConfig(kind="biovil"))
    wide.append(boxed(0, "fluid", 0, 0))
    plain = evaluate_boxes(oracle(), images, wide, SAMPLING)
    assert plain == evaluate_boxes(keeping, longer, wide, SAMPLING)


def test_a_study_enters_the_report_pool_once_and_only_with_a_report():
    texts = (("s", "One."), ("s", "Two."), ("t", "Three."))
    sentences = [{"study_id": study, "text": text} for study, text in texts]
    chosen, reports = reports_of_images(
        ["s", "silent", "t", "s"], sentences, 10, np.random.default_rng(0)
    )
    assert (chosen, reports) == ([0, 2], [["One.", "Two."], ["Three."]])
    many = [{"study_id": str(number), "text": "One."} for number in range(9)]
    names = [row["study_id"] for row in many]
    for seed in range(9):
        drawn, _ = reports_of_images(names, many, 5, np.random.default_rng(seed))
        assert len(set(drawn)) == 5
