"""Retrieval: sentence from box, box from sentence, report from film and back."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from medclip_dcl.model.box_pooling import roi_align


def box_vectors(
    regions: Float[Tensor, "images rows columns dim"],
    boxes: Float[Tensor, "boxes 4"],
    image_of_box: Int[Tensor, " boxes"],
) -> Float[Tensor, "boxes dim"]:
    """Pool the region vectors inside each box.

    Args:
        regions: unit vectors.
        boxes: x, y, width, height, each as a share of the film's width or height, (0, 1].
        image_of_box: row of `regions` that each box lies on.

    Returns:
        Unit vectors.

    Source: Wang et al. 2023, Section 3.3: RoIAlign on the region embeddings.
    """
    rows, columns = regions.shape[1:3]
    x, y, width, height = boxes.unbind(dim=1)
    cells = torch.stack([x * columns, y * rows, (x + width) * columns, (y + height) * rows], dim=1)
    pooled = roi_align(regions.permute(0, 3, 1, 2), cells, image_of_box, spatial_scale=1.0)
    return functional.normalize(pooled.flatten(1), dim=-1)


def report_scores(
    scores: Float[Tensor, "texts images"],
    text: Int[Tensor, " sayings"],
    report: Int[Tensor, " sayings"],
    reports: int,
) -> Float[Tensor, "reports images"]:
    """Score whole reports: the mean over their sentences.

    Args:
        scores: image-sentence scores of distinct sentences.
        text: row of `scores` of each saying, a sentence in a report.
        report: the report of each saying, in [0, reports); every report has at least one.
        reports: number of reports.

    Returns:
        Mean image-sentence score of each report, in [-1, 1].

    Source: ours; Wang et al. 2023 score sentences alone.
    """
    total = scores.new_zeros(reports, scores.shape[1]).index_add_(0, report, scores[text])
    count = torch.bincount(report, minlength=reports).unsqueeze(1)
    return total / count
