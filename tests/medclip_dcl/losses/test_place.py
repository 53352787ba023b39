"""Places: masks read off by hand, a loss that asks for the inside, or nothing at all."""

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import normalize

from medclip_dcl.losses.place import encode_zones, place_loss, place_masks
from medclip_dcl.losses.relations import encode_claims
from medclip_dcl.text.labeler.labels import ReportLabels

GAMMA = torch.tensor(math.sqrt(10.0))


def says(
    *findings: str, side: str = "", denies: tuple[str, ...] = (), more: tuple[str, ...] = ()
) -> ReportLabels:
    sides = frozenset({side} if side else ())
    asserted = {name: sides | frozenset(more) for name in findings}
    return ReportLabels(asserted, frozenset(denies), frozenset(), normal=False)


def mask_of(
    sentence: ReportLabels,
    report: ReportLabels | None = None,
    zone: str = "",
    grid: tuple[int, int] = (4, 4),
) -> torch.Tensor:
    codes = encode_claims([sentence]), encode_claims([report or sentence])
    zones = encode_zones([dataclasses.replace(sentence, zone=zone)])
    return place_masks(*codes, zones, grid)[0]


def test_the_patients_left_is_on_the_viewers_right() -> None:
    left = mask_of(says("Lung Opacity", side="left"))
    assert left.tolist() == [[False, False, True, True]] * 4
    right = mask_of(says("Lung Opacity", side="right"))
    assert torch.equal(right, left.flip(1))


def test_middle_column_of_an_odd_grid_is_on_both_sides() -> None:
    left = mask_of(says("Lung Opacity", side="left"), grid=(1, 5))
    assert left.tolist() == [[False, False, True, True, True]]
    right = mask_of(says("Lung Opacity", side="right"), grid=(1, 5))
    assert torch.equal(right, left.flip(1))


@pytest.mark.parametrize(
    ("zone", "rows"), [("upper", [1, 1, 0, 0]), ("middle", [0, 1, 1, 0]), ("lower", [0, 0, 1, 1])]
)
def test_zone_words_are_rows(zone: str, rows: list[int]) -> None:
    assert mask_of(says("Lung Opacity"), zone=zone)[:, 0].int().tolist() == rows


def test_usual_place_of_an_effusion_is_below() -> None:
    expected = torch.zeros(4, 4, dtype=torch.bool)
    expected[2:, 2:] = True
    assert torch.equal(mask_of(says("Pleural Effusion", side="left")), expected)


@pytest.mark.parametrize(
    ("finding", "rows", "columns"),
    [
        ("Cardiomegaly", (8, 17), (5, 15)),  # the heart: below the middle, more to the left
        ("Enlarged Cardiomediastinum", (3, 11), (5, 14)),
        ("Pleural Effusion", (10, 19), (0, 19)),
        ("Pneumothorax", (0, 10), (0, 19)),
        ("Edema", (4, 15), (2, 17)),
    ],
)
def test_usual_places_are_rectangles_of_a_frontal_image(finding, rows, columns):
    mask = mask_of(says(finding), grid=(20, 20))
    expected = torch.zeros(20, 20, dtype=torch.bool)
    expected[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1] = True
    assert torch.equal(mask, expected)


def test_side_counts_only_where_the_report_agrees() -> None:
    sentence = says("Lung Opacity", side="left")
    assert mask_of(sentence, says("Lung Opacity", side="left")).any()
    assert not mask_of(sentence, says("Lung Opacity", side="left", more=("right",))).any()
    assert not mask_of(sentence, says("Edema")).any()


@pytest.mark.parametrize(
    "sentence",
    [
        says("Lung Opacity"),
        says("Lung Opacity", "Edema", side="left"),
        says(denies=("Pneumothorax",)),
        says(),
    ],
    ids=["no place", "two findings", "denied", "no finding"],
)
def test_what_says_no_place_has_no_mask(sentence: ReportLabels) -> None:
    assert not mask_of(sentence).any()


def test_an_empty_intersection_has_no_mask() -> None:
    assert not mask_of(says("Pneumothorax"), zone="lower", grid=(2, 2)).any()


def test_a_peak_inside_costs_less_than_log_2_and_one_outside_more() -> None:
    sentence = torch.tensor([[1.0, 0.0]])
    mask = mask_of(says("Lung Opacity", side="left"))[None]
    for column, inside in ((3, True), (0, False)):
        regions = torch.tensor([0.0, 1.0]).expand(1, 4, 4, 2).clone()
        regions[0, 2, column] = torch.tensor([1.0, 0.0])
        loss, fits = place_loss(regions, sentence, mask, GAMMA)
        # By hand: tau log((e^10 + 7) / 8) = .7921 on one side, 0 on the other, times 10.
        gain = 0.1 * math.log((math.exp(10) + 7) / 8) * (1 if inside else -1)
        assert float(loss) == pytest.approx(math.log1p(math.exp(-10 * gain)), rel=1e-5)
        assert (float(loss) < math.log(2)) == inside == bool(fits)


def test_a_mirrored_image_with_swapped_words_costs_the_same() -> None:
    torch.manual_seed(0)
    regions = normalize(torch.randn(1, 5, 5, 8), dim=-1)
    sentence = normalize(torch.randn(1, 8), dim=-1)
    left, right = (
        mask_of(says("Lung Opacity", side=s), grid=(5, 5))[None] for s in ("left", "right")
    )
    one, _ = place_loss(regions, sentence, left, GAMMA)
    other, _ = place_loss(regions.flip(2), sentence, right, GAMMA)
    torch.testing.assert_close(one, other)


def test_a_pair_without_a_place_gives_no_loss_and_no_gradient() -> None:
    torch.manual_seed(0)
    raw = torch.randn(2, 3, 3, 8, requires_grad=True)
    sentences = normalize(torch.randn(2, 8), dim=-1)
    gamma = GAMMA.clone().requires_grad_()
    masks = torch.stack(
        [
            mask_of(says("Lung Opacity"), grid=(3, 3)),
            mask_of(says("Lung Opacity", side="left"), grid=(3, 3)),
        ]
    )
    loss, fits = place_loss(normalize(raw, dim=-1), sentences, masks, gamma)
    assert loss[0].item() == 0
    assert not fits[0]
    loss.sum().backward()
    assert (raw.grad[0] == 0).all()
    assert (raw.grad[1] != 0).any()
    assert raw.grad.isfinite().all()
    assert float(gamma.grad) != 0


def test_gradient_agrees_with_finite_differences() -> None:
    torch.manual_seed(0)
    regions = torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    sentences = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    masks = torch.rand(2, 2, 3) > 0.5

    def total(r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return place_loss(r, t, masks, GAMMA)[0].sum()

    loss = total(regions, sentences)
    (slope,) = torch.autograd.grad(loss, regions)
    step = torch.zeros_like(regions)
    step[1, 0, 2, 1] = 1e-2
    with torch.no_grad():
        around = (total(regions + step, sentences) - total(regions - step, sentences)) / 2e-2
    assert around.item() == pytest.approx(slope[1, 0, 2, 1].item(), rel=1e-2, abs=1e-4)
