import numpy as np
import pytest
import torch

from medclip_dcl.evaluation.inputs import (
    UNKNOWN,
    EncodedImages,
    boxed_sentences,
    exact_truth,
    labelled_truth,
    reports_of_images,
)
from medclip_dcl.inference import Finding

FINDINGS = (
    Finding("effusion", ("a",), ("b",), "Pleural Effusion"),
    Finding("gout", ("a",), ("b",)),
)


def images(*image_ids, size_px=(100, 80)):
    return EncodedImages(
        image_ids,
        image_ids,
        tuple([size_px] * len(image_ids)),
        torch.zeros(len(image_ids), 1, 1, 1),
    )


def box(image_id, phrase, x=0.0, **changes):
    row = {
        "image_id": image_id,
        "category": "Effusion",
        "phrase": phrase,
        "x": x,
        "y": 10.0,
        "width": 20.0,
        "height": 30.0,
        "image_width": 80,
        "image_height": 100,
    }
    return row | changes


def test_exact_truth_knows_every_type_and_nothing_else():
    truth = exact_truth(FINDINGS, ["i", "j", "k"], {"i": {"effusion"}, "j": set()}, {"effusion"})
    assert truth.tolist() == [[1, 0, UNKNOWN], [UNKNOWN] * 3]


def test_uncertain_and_blank_labels_are_dropped():
    labels = [
        {"study_id": str(number), "Pleural Effusion": value}
        for number, value in enumerate([1, 0, -1, None])
    ]
    truth = labelled_truth(FINDINGS, ["0", "1", "2", "3", "unlabelled"], labels)
    assert truth.tolist() == [[1, 0, UNKNOWN, UNKNOWN, UNKNOWN], [UNKNOWN] * 5]


def test_boxes_of_one_sentence_on_one_image_are_gathered():
    rows = [box("i", "A."), box("j", "A."), box("i", "B."), box("i", "A.", x=40), box("z", "A.")]
    units = boxed_sentences(rows, images("i", "j"), ["a", "a", "b", "a", "a"])
    assert [(unit.image, unit.key, len(unit.boxes)) for unit in units] == [
        (0, "a", 2),
        (1, "a", 1),
        (0, "b", 1),
    ]
    assert units[0].boxes.tolist() == [[0, 10, 20, 30], [40, 10, 20, 30]]


def test_boxes_are_scaled_to_the_image_s_own_size():
    rows = [box("i", "A.", x=8.0, image_width=40, image_height=200)]
    (unit,) = boxed_sentences(rows, images("i"), ["a"])
    assert unit.boxes.tolist() == [[16, 5, 40, 15]]


def test_a_study_enters_the_report_pool_once_and_only_with_a_report():
    sentences = [
        {"study_id": "s", "text": "One."},
        {"study_id": "s", "text": "Two."},
        {"study_id": "t", "text": "Three."},
    ]
    chosen, reports = reports_of_images(
        ["s", "silent", "t", "s"], sentences, 10, np.random.default_rng(0)
    )
    assert (chosen, reports) == ([0, 2], [["One.", "Two."], ["Three."]])


@pytest.mark.parametrize("pool", [0, 3])
def test_the_report_pool_is_bounded(pool):
    study_ids = [str(number) for number in range(9)]
    sentences = [{"study_id": name, "text": name} for name in study_ids]
    chosen, reports = reports_of_images(study_ids, sentences, pool, np.random.default_rng(0))
    assert len(chosen) == pool
    assert reports == [[study_ids[image]] for image in chosen]
