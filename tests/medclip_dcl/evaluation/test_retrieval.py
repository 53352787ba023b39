import pytest
import torch
from torch.nn import functional

from medclip_dcl.evaluation.retrieval import box_vectors, report_scores


def test_a_box_over_one_cell_has_that_cell_s_vector():
    regions = functional.normalize(torch.randn(2, 4, 4, 8), dim=-1)
    box = torch.tensor([[0.25, 0.5, 0.25, 0.25]])  # column 1, row 2
    vector = box_vectors(regions, box, torch.tensor([1]))
    assert torch.allclose(vector[0], regions[1, 2, 1], atol=1e-6)


def test_width_and_height_are_not_mixed_up():
    regions = torch.zeros(1, 2, 4, 3)
    regions[0, :, :2, 0] = 1  # left half
    regions[0, :, 2:, 1] = 1  # right half
    boxes = torch.tensor([[0.0, 0.0, 0.25, 1.0], [0.75, 0.0, 0.25, 1.0], [0.0, 0.0, 1.0, 0.5]])
    left, right, top = box_vectors(regions, boxes, torch.zeros(3, dtype=torch.long))
    assert left.tolist() == pytest.approx([1, 0, 0])
    assert right.tolist() == pytest.approx([0, 1, 0])
    assert top.tolist() == pytest.approx([0.5**0.5, 0.5**0.5, 0], abs=1e-6)


def test_box_vectors_are_unit():
    regions = functional.normalize(torch.randn(1, 5, 5, 8), dim=-1)
    boxes = torch.tensor([[0.1, 0.2, 0.7, 0.3]])
    norm = box_vectors(regions, boxes, torch.zeros(1, dtype=torch.long)).norm(dim=-1)
    assert norm.tolist() == pytest.approx([1.0])


def test_a_report_scores_the_mean_of_its_sentences():
    scores = torch.tensor([[0.2, 0.0], [0.4, 0.6], [-0.2, 0.9]])
    text, report = torch.tensor([0, 1, 2, 1]), torch.tensor([0, 0, 0, 1])
    means = report_scores(scores, text, report, 2)
    assert means.flatten().tolist() == pytest.approx([0.4 / 3, 0.5, 0.4, 0.6])
