"""Region vectors inside a box: RoIAlign as two small matrices per box.

RoIAlign averages bilinear samples on a regular grid inside each bin. Bilinear
interpolation is separable, so the average is rows @ map @ columns.T, with one
weight matrix for each axis.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def roi_align(
    features: Float[Tensor, "images channels rows columns"],
    boxes: Float[Tensor, "boxes 4"],
    image_of_box: Int[Tensor, " boxes"],
    spatial_scale: float,
    output_size: int = 1,
) -> Float[Tensor, "boxes channels out out"]:
    """Pool each box of a feature map onto a small grid.

    Args:
        features: maps.
        boxes: (x0, y0, x1, y1) in pixels of the model's input, x1 > x0 and y1 > y0.
        image_of_box: row of `features` that each box lies on.
        spatial_scale: cells per input pixel: one over the encoder's stride.
        output_size: bins along each side of a box.

    Returns:
        Means of bilinear samples. A bin takes one sample a cell that it spans, at
        least one. Samples more than a cell outside the map count as 0.

    Source: He et al. 2017, RoIAlign with half-pixel alignment and adaptive sampling
        (`aligned=True`, `sampling_ratio=0` elsewhere).
    """
    cells = boxes.to(features.dtype) * spatial_scale - 0.5  # cell centres at whole numbers
    x0, y0, x1, y1 = cells.unbind(dim=1)
    across_rows = _axis_weights(y0, y1, features.shape[2], output_size)
    across_columns = _axis_weights(x0, x1, features.shape[3], output_size)
    return torch.einsum("bor,bcrk,bpk->bcop", across_rows, features[image_of_box], across_columns)


def _axis_weights(
    start: Float[Tensor, " boxes"], stop: Float[Tensor, " boxes"], cells: int, bins: int
) -> Float[Tensor, "boxes bins cells"]:
    """Weight of each cell in each bin, along one axis."""
    width = (stop - start) / bins
    samples = width.ceil().clamp_min(1)  # per bin; differs from box to box
    step = torch.arange(int(samples.max()) if len(samples) else 1, device=start.device)
    within = (step + 0.5) / samples.unsqueeze(1)  # (boxes, samples), in units of a bin
    bin_index = torch.arange(bins, device=start.device, dtype=start.dtype)
    offset = (bin_index[:, None] + within[:, None, :]) * width[:, None, None]
    position = start[:, None, None] + offset  # (boxes, bins, samples)
    counts = (step < samples.unsqueeze(1))[:, None, :]  # the rest is padding
    counts = counts & (position >= -1) & (position <= cells)
    nearest = position.clamp(0, cells - 1).unsqueeze(-1)
    cell = torch.arange(cells, device=start.device, dtype=start.dtype)
    hat = (1 - (nearest - cell).abs()).clamp_min(0)  # linear interpolation's weights
    return (hat * counts.unsqueeze(-1)).sum(dim=2) / samples[:, None, None]
