import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, normalize

from medclip_dcl.core.errors import ObjectiveError
from medclip_dcl.losses.debiased import debiased_contrastive_loss, debiased_terms, debiasing_gauges
from medclip_dcl.losses.info_nce import info_nce_loss

FLOORS = ("floor", "zero", "fallback")
README = Path(__file__).parents[3] / "medclip_dcl" / "losses" / "README.md"
TEXT = README.read_text(encoding="utf-8")


def cosines(anchors: int, candidates: int | None = None, seed: int = 0) -> torch.Tensor:
    """Similarities in [-1, 1], float64; the diagonal is the larger the later the row."""
    generator = torch.Generator().manual_seed(seed)
    f = torch.rand(anchors, candidates or anchors, generator=generator, dtype=torch.float64) * 2 - 1
    f.diagonal().copy_(torch.linspace(-1, 1, anchors))
    return f


def gradient(loss: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, s, retain_graph=True)[0]


def assert_same(
    loss: torch.Tensor, expected: torch.Tensor, s: torch.Tensor, atol: float = 1e-12
) -> None:
    """Two losses have one value, and one gradient towards `s`."""
    assert loss.item() == pytest.approx(expected.item(), abs=atol)
    torch.testing.assert_close(gradient(loss, s), gradient(expected, s), atol=atol, rtol=0)


def by_hand(s, p, eta, weights, known, mates, floor) -> float:
    """One anchor's loss by Eq. 7 and 8, in plain exponentials; gamma**2 is 2."""
    is_positive = torch.arange(len(s)) == p
    drawn = weights.masked_fill(is_positive | known, 0)
    w = drawn.masked_fill(mates, 0)
    N, K = w.sum(), (drawn - w).sum()
    if N == 0:
        return 0.0
    left = (((N + K) * eta - K) / N).clamp(min=0)
    mean_negative = (w * s.exp()).sum() / N
    g = (mean_negative - left * s.exp()[is_positive | known | mates].mean()) / (1 - left)
    least = math.exp(-2)
    if g <= least:
        g = {"floor": least, "zero": g.clamp(min=0), "fallback": mean_negative}[floor]
    return math.log1p(N * g / s[p].exp())


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("most", [0.0, 0.2, 0.9])
def test_it_is_the_formula_whatever_is_known_and_weighed(floor, share, most):
    """Any candidate may be a known positive, a mate, both, or weigh nothing."""
    eta = torch.linspace(0, most, 5, dtype=torch.float64)
    for seed in range(20):
        s, generator = 2 * cosines(5, 7, seed), torch.Generator().manual_seed(seed)
        positive = torch.randint(7, (5,), generator=generator)
        weights = torch.randint(3, (5, 7), generator=generator).double()
        known, mates = (torch.rand(2, 5, 7, generator=generator) < share).unbind()
        masks = {"weights": weights, "known_positives": known, "known_mates": mates}
        found = debiased_contrastive_loss(
            s, positive, eta, math.sqrt(2), **masks, floor=floor, reduction="none"
        )
        rows = zip(s, positive, eta, *masks.values(), strict=True)
        assert found.tolist() == pytest.approx([by_hand(*row, floor) for row in rows], abs=1e-12)


def test_eta_of_zero_is_cross_entropy() -> None:
    s = (14 * cosines(32)).requires_grad_()
    expected = cross_entropy(s, torch.arange(32))
    for eta in (0.0, torch.zeros(32, dtype=torch.float64)):
        for floor in FLOORS:
            loss = debiased_contrastive_loss(s, None, eta, math.sqrt(14), floor=floor)
            assert_same(loss, expected, s)


@pytest.mark.parametrize("tau", [0.1, 0.5])
def test_constant_eta_is_chuangs_rectangular_form(tau: float) -> None:
    B, eta = 12, 0.1
    generator = torch.Generator().manual_seed(3)
    views = normalize(torch.randn(2 * B, 6, generator=generator, dtype=torch.float64), dim=1)
    views[B:] = normalize(views[:B] + 0.8 * views[B:], dim=1)
    views.requires_grad_()
    s = views @ views.T / tau
    partner = torch.arange(2 * B).roll(B)

    # Chuang et al. 2020, written out: 2B anchors, 2B - 2 negatives from both views.
    others = ~torch.eye(2 * B, dtype=torch.bool)
    others[torch.arange(2 * B), partner] = False
    negatives = s[others].exp().reshape(2 * B, 2 * B - 2)
    positives = s[torch.arange(2 * B), partner].exp()
    N = 2 * B - 2
    Ng = (negatives.sum(1) - eta * N * positives) / (1 - eta)
    Ng = Ng.clamp(min=N * math.exp(-1 / tau))
    expected = -(positives / (positives + Ng)).log().mean()

    not_self = 1 - torch.eye(2 * B, dtype=torch.float64)
    for value in (eta, torch.full((2 * B,), eta, dtype=torch.float64)):
        loss = debiased_contrastive_loss(s, partner, value, tau**-0.5, weights=not_self)
        assert_same(loss, expected, views)


def test_correction_only_reweights_the_anchor() -> None:
    """Off the floor: L = log1p((r - N eta)/(1 - eta)), and every gradient of a row times w."""
    B = 48
    s = (6 * cosines(B)).requires_grad_()
    eta = torch.linspace(0, 0.3, B, dtype=torch.float64)
    biased = info_nce_loss(s, reduction="none")
    loss = debiased_contrastive_loss(s, None, eta, 10.0, reduction="none")
    off = biased > (1 + (B - 1) * eta).log()
    assert 0 < off.sum() < B
    r = biased.expm1()
    closed = torch.log1p((r - (B - 1) * eta) / (1 - eta))
    torch.testing.assert_close(loss[off], closed[off], atol=1e-10, rtol=0)
    w = (biased.exp() / (biased.exp() - eta * B)).detach()
    assert (w[off] >= 1).all()
    torch.testing.assert_close(
        gradient(loss[off].sum(), s), gradient((w * biased)[off].sum(), s), atol=1e-10, rtol=0
    )


@given(
    positive=st.floats(-3, 3),
    negatives=st.lists(st.floats(-3, 3), min_size=1, max_size=20),
    eta=st.floats(0.001, 0.9),
)
@settings(max_examples=200, deadline=None)
def test_eq8_is_positive_exactly_above_log_one_plus_n_eta(positive, negatives, eta):
    s = torch.tensor([[positive, *negatives]], dtype=torch.float64)
    excess = info_nce_loss(s).item() - math.log1p(len(negatives) * eta)
    ell = debiased_terms(s, None, eta, 2.0).ell.item()
    if abs(excess) > 1e-12:
        assert (ell > -math.inf) == (excess > 0)


def test_boundary_of_eq8_is_on_the_floor() -> None:
    # Mean e^{s_n} / e^{s_p} = eta, to the last digit.
    s = torch.tensor([[0.0] + 4 * [math.log(0.25)]], dtype=torch.float64)
    assert debiased_terms(s, None, 0.25, 2.0).ell.item() == -math.inf
    loss = debiased_contrastive_loss(s, None, 0.25, 2.0)
    assert loss.item() == pytest.approx(math.log1p(4 * math.exp(-4)), abs=1e-15)


def test_learned_pair_costs_the_floor_by_hand() -> None:
    s = torch.full((1, 64), -14.0, dtype=torch.float64)
    s[0, 0] = 14.0
    loss = debiased_contrastive_loss(s, None, 0.2, math.sqrt(14))
    assert loss.item() == pytest.approx(math.log1p(63 * math.exp(-28)), rel=1e-12)


def test_floor_gives_gamma_no_gradient_of_its_own() -> None:
    f = torch.full((3, 10), -0.9, dtype=torch.float64)
    f.diagonal().copy_(torch.tensor([0.7, 0.8, 0.9]))
    gamma = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = debiased_contrastive_loss(gamma**2 * f, None, 0.3, gamma, reduction="none")
    phi = math.log(9) - 4 - 4 * f.diagonal()
    assert torch.equal((loss - torch.log1p(phi.exp())).abs() < 1e-14, torch.ones(3).bool())
    expected = (-2 * 2.0 * f.diagonal() * phi.sigmoid()).sum()
    assert gradient(loss.sum(), gamma).item() == pytest.approx(expected.item(), abs=1e-14)


def test_eta_of_one_anchor_changes_that_anchors_loss_alone_and_receives_no_gradient() -> None:
    s = (4 * cosines(8, 20)).requires_grad_()
    eta = torch.zeros(8, dtype=torch.float64, requires_grad=True)
    before = debiased_contrastive_loss(s, None, eta, 2.0, reduction="none")
    before.sum().backward()
    assert eta.grad is None
    raised = torch.tensor([0, 0, 0, 0.2, 0, 0, 0, 0], dtype=torch.float64)
    after = debiased_contrastive_loss(s, None, raised, 2.0, reduction="none")
    assert (before != after).nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("eta", [0.0, 0.2, 0.999])
@pytest.mark.parametrize("argument", ["known_positives", "known_mates"])
@pytest.mark.parametrize("share", [None, 0.3, 1.0])
def test_gradient_is_finite_whatever_is_dead(floor, eta, argument, share):
    of_the_class = {} if share is None else {argument: torch.rand(16, 16) < share}
    s = (14 * cosines(16)).requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        loss = debiased_contrastive_loss(s, None, eta, math.sqrt(14), floor=floor, **of_the_class)
        loss.backward()
    assert loss.isfinite()
    assert s.grad.isfinite().all()


def test_anchors_without_negatives_cost_nothing_and_are_left_out_of_the_mean():
    s = (4 * cosines(3)).requires_grad_()
    known = torch.zeros(3, 3, dtype=torch.bool)
    known[1] = True
    rows = debiased_contrastive_loss(s, None, 0.1, 2.0, known_positives=known, reduction="none")
    mean = debiased_contrastive_loss(s, None, 0.1, 2.0, known_positives=known)
    assert rows[1].item() == 0
    assert mean.item() == pytest.approx((rows[0] + rows[2]).item() / 2, abs=1e-15)
    assert not gradient(mean, s)[1].any()
    s = torch.ones(1, 1, requires_grad=True)
    loss = debiased_contrastive_loss(s, None, 0.2, 1.0)
    loss.backward()
    assert (loss.item(), s.grad.item()) == (0, 0)


@pytest.mark.parametrize("share_known", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_g_estimates_the_true_negatives_whatever_share_of_the_false_is_known(share_known):
    """A fifth of all draws are of the anchor's class, and some of these are known."""
    generator = torch.Generator().manual_seed(7)
    chance = torch.rand(4, 3000, 401, generator=generator, dtype=torch.float64)
    of_the_class = chance[0] < 0.2
    of_the_class[:, 0] = True  # the positive
    # e^s is uniform on [1, 4] within the class, and on [.5, 1.5] outside, where its mean is 1.
    s = torch.where(of_the_class, 1 + 3 * chance[1], 0.5 + chance[2]).log()
    known = of_the_class & (chance[3] < share_known)
    first = torch.zeros(len(s), dtype=torch.long)
    left = 400 - known[:, 1:].sum(dim=1)  # the N of each anchor
    for floor in FLOORS:
        loss = debiased_contrastive_loss(
            s, first, 0.2, math.sqrt(2), known_mates=known, floor=floor, reduction="none"
        )
        g = loss.expm1() * s[:, 0].exp() / left
        assert g.mean().item() == pytest.approx(1, rel=0.02), floor


def test_weight_of_zero_is_deletion_of_the_column() -> None:
    s = (3 * cosines(4, 9)).requires_grad_()
    weights = torch.ones(4, 9, dtype=torch.float64)
    weights[:, [5, 7]] = 0
    kept = [0, 1, 2, 3, 4, 6, 8]
    for eta in (0.0, 0.15):
        removed = debiased_contrastive_loss(s, None, eta, math.sqrt(3), weights=weights)
        deleted = debiased_contrastive_loss(s[:, kept], None, eta, math.sqrt(3))
        assert_same(removed, deleted, s, atol=1e-14)


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("argument", ["", "known_positives", "known_mates"])
def test_gradient_is_the_derivative(floor: str, argument: str) -> None:
    s = (2 * cosines(7, 9)).requires_grad_()
    of_the_class = torch.rand(7, 9, generator=torch.Generator().manual_seed(1)) < 0.2
    eta = torch.linspace(0, 0.4, 7, dtype=torch.float64)
    arguments = {"positive": None, "eta": eta, "gamma": math.sqrt(2)}
    if argument:
        arguments[argument] = of_the_class
    terms = debiased_terms(s, **arguments)
    assert 0 < (terms.ell <= terms.phi).sum() < 7
    loss = partial(debiased_contrastive_loss, **arguments, floor=floor, reduction="none")
    assert torch.autograd.gradcheck(loss, (s,))


@pytest.mark.parametrize("gamma_squared", [2, 14, 100])
def test_float32_agrees_with_float64_at_every_scale(gamma_squared: int) -> None:
    exact = (gamma_squared * cosines(64)).requires_grad_()
    single = exact.detach().float().requires_grad_()
    eta = torch.linspace(0, 0.2, 64)
    expected = debiased_contrastive_loss(exact, None, eta, math.sqrt(gamma_squared))
    loss = debiased_contrastive_loss(single, None, eta, math.sqrt(gamma_squared))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=2e-6)
    torch.testing.assert_close(
        gradient(loss, single).double(), gradient(expected, exact), atol=2e-6, rtol=0
    )


def test_loss_is_float32_under_autocast_and_for_half_inputs() -> None:
    s = (14 * cosines(16)).float()
    expected = debiased_contrastive_loss(s, None, 0.1, math.sqrt(14))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = debiased_contrastive_loss(s, None, 0.1, math.sqrt(14))
    assert torch.equal(inside, expected)
    half = debiased_contrastive_loss(s.bfloat16(), None, 0.1, math.sqrt(14))
    assert half.dtype == torch.float32
    rounded = debiased_contrastive_loss(s.bfloat16().float(), None, 0.1, math.sqrt(14))
    assert torch.equal(half, rounded)


@pytest.mark.parametrize("where", ["positive", "negative"])
def test_not_a_number_is_passed_on(where: str) -> None:
    s = 4 * cosines(4)
    s[0, 0 if where == "positive" else 1] = math.nan
    for floor in FLOORS:
        assert debiased_contrastive_loss(s, None, 0.1, 2.0, floor=floor).isnan()


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eta": 1.0}, r"eta is 1, outside \[0, 1\).*cap it"),
        ({"eta": 1 - 1e-9}, "eta is 1, outside"),  # 1 in float32
        ({"eta": -0.1}, "eta is -0.1, outside"),
        ({"eta": math.nan}, "eta is nan, outside"),
        ({"eta": torch.tensor([0.1, 1.0, 0.2, 0.0])}, "eta is 1, outside"),
        ({"eta": torch.tensor([0.1, -0.5, 0.2, 0.0])}, "eta is -0.5, outside"),
        ({"eta": torch.tensor([0.1, math.nan, 0.2, 2.0])}, "eta is nan, outside"),
        ({"weights": torch.full((4, 4), -1.0)}, r"a weight is -1, outside \[0, inf\).*removes"),
        ({"weights": torch.full((4, 4), math.inf)}, "a weight is inf, outside"),
        ({"weights": torch.full((4, 4), math.nan)}, "a weight is nan, outside"),
        ({"eta": torch.zeros(5)}, "one an anchor"),
        ({"eta": torch.zeros(4, 1)}, "one an anchor"),
        ({"positive": torch.arange(3)}, "one column each"),
        ({"s": torch.zeros(4, 3)}, "diagonal"),
        ({"floor": "none"}, "floor is 'none'"),
        ({"reduction": "median"}, "reduction is 'median'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    arguments = {"s": torch.zeros(4, 4), "positive": None, "eta": 0.1, "gamma": 1.0} | change
    with pytest.raises(ObjectiveError, match=message):
        debiased_contrastive_loss(**arguments)


def test_error_of_the_estimate_falls_with_n_and_grows_with_wrong_eta() -> None:
    """Proposition 2.1 on five skewed classes of points on a circle, gamma = 1."""
    generator = torch.Generator().manual_seed(0)
    rho = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05], dtype=torch.float64)
    angles = torch.arange(5) * 2 * math.pi / 5

    def points(classes: torch.Tensor) -> torch.Tensor:
        spread = 0.3 * torch.randn(classes.shape, generator=generator, dtype=torch.float64)
        angle = angles[classes] + spread
        return torch.stack([angle.cos(), angle.sin()], dim=-1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.multinomial(rho, math.prod(shape), True, generator=generator).view(shape)

    anchors = 4000
    c = draw(anchors)
    x, mate = points(c), points(c)
    pool_class = draw(2000)
    pool = points(pool_class)
    foreign = pool_class[None] != c[:, None]
    ideal_mean = torch.where(foreign, (x @ pool.T).exp(), 0).sum(1) / foreign.sum(1)

    def error(N: int, eta: torch.Tensor) -> float:
        s = torch.einsum("ad,and->an", x, torch.cat([mate[:, None], points(draw(anchors, N))], 1))
        zeros = torch.zeros(anchors, dtype=torch.long)
        loss = debiased_contrastive_loss(s, zeros, eta, 1.0, reduction="none")
        ideal = torch.log1p(N * ideal_mean / s[:, 0].exp())
        drawn = math.sqrt(math.pi / (2 * N)) * (1 / (1 - rho[c])).mean()
        one_positive = math.sqrt(math.pi / 2) * (rho[c] / (1 - rho[c])).mean()
        wrong_eta = (1 / (1 - eta) - 1 / (1 - rho[c])).abs().mean()
        difference = (loss - ideal).mean().abs().item()
        assert difference <= 3 * math.e**2 * (drawn + one_positive + wrong_eta).item()
        return difference

    errors = {N: error(N, rho[c]) for N in (8, 64, 254)}
    assert errors[8] > max(errors[64], errors[254])
    assert error(254, (rho[c] - 0.15).clamp(min=0)) > 3 * errors[254]


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_weight_is_the_ratio_of_the_gradients_of_negatives_off_the_floor(share: float) -> None:
    s, eta = (4 * cosines(24)).requires_grad_(), torch.linspace(0.05, 0.3, 24).double()
    known = torch.rand(24, 24, generator=torch.Generator().manual_seed(0)) < share
    known |= torch.eye(24, dtype=torch.bool)
    loss = debiased_contrastive_loss(
        s, None, eta, 3.0, known_positives=known, floor="fallback", reduction="none"
    )
    # InfoNCE without the known ones: weight 0 for each.
    biased = info_nce_loss(s, weights=(~known).double(), reduction="none")
    line, first = torch.arange(24), (~known).int().argmax(dim=1)  # any negative of the row
    corrected, plain = (gradient(each.sum(), s)[line, first] for each in (loss, biased))
    off = corrected / plain > 1 + 1e-9
    gauges = debiasing_gauges(s, None, eta, 3.0, known_positives=known)
    ratio = (corrected / plain)[off].mean()
    assert gauges["mean_weight"].item() == pytest.approx(ratio.item(), rel=1e-9)
    assert gauges["frac_floor"].item() == pytest.approx(1 - off.double().mean().item())
    assert 0 < gauges["frac_floor"] < 1


def test_gauges_are_means_of_what_is_left_to_expect_over_anchors_that_have_a_negative():
    s = torch.zeros(2, 5)
    alone = torch.tensor([[False] * 5, [True] * 5])  # the second has class-mates alone
    expected = {
        "frac_floor": 0,
        "mean_weight": 1 / 0.8,
        "mean_eta": 0.2,
        "expected_false_negatives": 0.8,
        "uncorrected_loss": math.log(5),
    }
    for rows, known in ((s[:1], None), (s, alone)):
        gauges = debiasing_gauges(rows, None, 0.2, 3.0, known_positives=known)
        assert {name: value.item() for name, value in gauges.items()} == pytest.approx(expected)
    nobody = debiasing_gauges(torch.zeros(1, 1), None, 0.2, 3.0)
    assert nobody.pop("frac_floor").item() == 1
    assert {value.item() for value in nobody.values()} == {0.0}
    mates = torch.zeros(2, 11, dtype=torch.bool)
    mates[0, 2:4] = True  # two of three that are expected among ten
    gauges = debiasing_gauges(torch.zeros(2, 11), None, 0.3, 3.0, known_mates=mates)
    assert gauges["mean_eta"].item() == pytest.approx((1 / 8 + 3 / 10) / 2)
    assert gauges["expected_false_negatives"].item() == pytest.approx((1 + 3) / 2)
    s = (2 * cosines(4)).requires_grad_()
    terms = debiased_terms(s, None, 0.1, torch.tensor(2.0))  # as the trainer takes them
    assert terms.A.requires_grad
    assert not any(value.requires_grad or value.ndim for value in terms.gauges().values())


def test_every_module_is_in_the_table_of_the_page() -> None:
    modules = {path.name for path in README.parent.glob("*.py")} - {"__init__.py"}
    assert modules == set(re.findall(r"^- `(\w+\.py)`", TEXT, re.M))


EXAMPLES = [code for code in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "loss = " in code]


@pytest.mark.parametrize("code", EXAMPLES, ids=["clip", "sentences"])
def test_example_of_the_page_runs_and_gives_a_loss(code: str) -> None:
    names: dict[str, torch.Tensor] = {}
    exec(code, names)
    assert 0 < names["loss"].item() < math.inf


@pytest.mark.parametrize(
    ("count", "log", "cells"), re.findall(r"^\| (\d+) \| ([\d.]+) \| (.*) \|$", TEXT, re.M)
)
def test_floor_table_of_the_page_is_computed(count: str, log: str, cells: str) -> None:
    N = int(count)
    assert float(log) == pytest.approx(math.log(N + 1), abs=0.006)
    for eta, cell in zip((0.01, 0.05, 0.2), cells.split(" | "), strict=True):
        edge, largest = map(float, cell.split(", "))
        assert edge == pytest.approx(math.log1p(N * eta), abs=0.006)
        assert largest == pytest.approx((1 + N * eta) / (1 - eta), rel=0.04)
