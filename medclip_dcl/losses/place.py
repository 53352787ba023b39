"""Weak localisation: a sentence that says where a finding is should fit the image there best.

Axes and symbols
    pairs         images with their own sentence
    rows, columns of the region grid; row 0 is the top, column 0 the viewer's left
    h_r           cosine of region r and the sentence
    m             mask: where the sentence says that the finding is
    tau           softness of the maximum, 0.1
    f_in, f_out   tau * ( logsumexp_r(h_r / tau) - log size ) over m and over the rest

    L = softplus( -gamma^2 (f_in - f_out) ), for pairs whose mask is neither empty nor full

Three sources make a mask, and each may be silent: the side that sentence and report agree
on, words for a third of the lung, and the usual place of the finding. The last is anatomy,
not something that is learnt from the pairs.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int8
from torch import Tensor
from torch.nn import functional

from medclip_dcl.core.errors import ObjectiveError
from medclip_dcl.losses.relations import ASSERTED, LEFT, RIGHT
from medclip_dcl.text.labeler.labels import FINDINGS, ReportLabels

TAU = 0.1

_ZONES: Mapping[str, int] = {"": 0, "upper": 1, "middle": 2, "lower": 3}
_ZONE_ROWS = {"upper": (0.0, 0.5), "middle": (0.25, 0.8), "lower": (0.45, 1.0)}
"""Rows as shares of the height; thirds overlap, since lungs and crops differ."""
_USUAL_PLACES = {
    "Cardiomegaly": (0.4, 0.9, 0.25, 0.8),
    "Enlarged Cardiomediastinum": (0.15, 0.6, 0.25, 0.75),
    "Pleural Effusion": (0.5, 1.0, 0.0, 1.0),
    "Pneumothorax": (0.0, 0.55, 0.0, 1.0),
    "Edema": (0.2, 0.8, 0.1, 0.9),
}
"""Finding -> first and last row, first and last column, as shares of a frontal image."""


def encode_zones(claims: Sequence[ReportLabels]) -> Int8[Tensor, " texts"]:
    """Turn the thirds of the lung that sentences name into small integers; 0: none, or several."""
    return torch.tensor([_ZONES[text.zone] for text in claims], dtype=torch.int8)


def place_masks(
    sentences: Int8[Tensor, "pairs codes"],
    reports: Int8[Tensor, "pairs codes"],
    zones: Int8[Tensor, " pairs"],
    grid: tuple[int, int],
) -> Bool[Tensor, "pairs rows columns"]:
    """Mark the regions of a frontal image, not mirrored, where a sentence says its finding is.

    Codes are those of `relations.encode_claims`, of each image's own sentence and whole report;
    their first findings are `FINDINGS`. A
    sentence has a place where it asserts exactly one finding. Its side counts where the report
    asserts the finding on that side alone. A mask is all False where the pair says no place, or
    one that holds every region or none.

    Source: ours.
    """
    rows, columns = grid
    if rows * columns == 1:
        raise ObjectiveError("the region grid is 1 x 1, which has no places; set place_weight to 0")
    device = sentences.device
    row = (torch.arange(rows, device=device) + 0.5) / rows
    column = (torch.arange(columns, device=device) + 0.5) / columns

    asserted = sentences[:, :-1] & ASSERTED != 0
    one = asserted.sum(dim=1) == 1
    finding = asserted.int().argmax(dim=1, keepdim=True)
    own_side, report_side = (
        codes.gather(1, finding).squeeze(1) & (LEFT | RIGHT) for codes in (sentences, reports)
    )
    # A side that the report does not give to the finding alone is no place: it is elsewhere too.
    side = torch.where(own_side == report_side, own_side, torch.zeros_like(own_side))
    # The patient's left is on the viewer's right. The middle column of an odd grid is in both.
    to_left = (side != LEFT)[:, None] | (column >= 0.5)
    to_right = (side != RIGHT)[:, None] | (column <= 0.5)

    thirds = torch.ones(len(_ZONES), rows, dtype=torch.bool, device=device)
    for name, (first, last) in _ZONE_ROWS.items():
        thirds[_ZONES[name]] = (row > first) & (row < last)
    usual = torch.ones(asserted.shape[1], rows, columns, dtype=torch.bool, device=device)
    for name, (top, bottom, left, right) in _USUAL_PLACES.items():
        inside = ((row > top) & (row < bottom))[:, None] & (column > left) & (column < right)
        usual[FINDINGS.index(name)] = inside

    masks = (to_left & to_right)[:, None, :] & thirds[zones.long()][:, :, None]
    masks = masks & usual[finding.squeeze(1)] & one[:, None, None]
    full = masks.flatten(1).all(dim=1)
    return masks & ~full[:, None, None]


def place_loss(
    regions: Float[Tensor, "pairs rows columns dim"],
    sentences: Float[Tensor, "pairs dim"],
    masks: Bool[Tensor, "pairs rows columns"],
    gamma: Float[Tensor, ""],
) -> tuple[Float[Tensor, " pairs"], Bool[Tensor, " pairs"]]:
    """Ask of every pair with a mask that the sentence fits better inside than outside.

    Regions and sentences are unit vectors; gamma receives gradient.

    Returns:
        The loss of each pair, at least 0, log 2 where inside and outside fit equally, and 0
        without gradient where its mask is empty; and whether f_in > f_out.

    Source: ours.
    """
    h = torch.einsum("prcd,pd->prc", regions.float(), sentences.float()).flatten(1)
    inside = masks.flatten(1)
    has_place = inside.any(dim=1)
    # A pair without a place is computed with a mask of one region: its own would give NaN.
    inside = inside | (~has_place[:, None] & (torch.arange(h.shape[1], device=h.device) == 0))
    gain = _soft_maximum(h, inside) - _soft_maximum(h, ~inside)
    loss = functional.softplus(-(gamma.float() ** 2) * gain)
    return torch.where(has_place, loss, 0.0), (gain > 0) & has_place


def _soft_maximum(
    h: Float[Tensor, "pairs regions"], chosen: Bool[Tensor, "pairs regions"]
) -> Float[Tensor, " pairs"]:
    # Less the log of the size: a large mask must not win by its number of regions.
    level = (h / TAU).masked_fill(~chosen, -torch.inf).logsumexp(dim=1)
    return TAU * (level - chosen.sum(dim=1).log())
