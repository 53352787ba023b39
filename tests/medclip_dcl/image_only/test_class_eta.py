import pytest

from medclip_dcl.image_only.settings import ViewsConfig
from medclip_dcl.image_only.views import class_eta

THINNED = [True, False] * 5
PAPER = {
    0.05: (0.00952, 0.19048),
    0.1: (0.01818, 0.18182),
    0.25: (0.04, 0.16),
    0.5: (0.06667, 0.13333),
    0.75: (0.08571, 0.11429),
    0.9: (0.09474, 0.10526),
}


@pytest.mark.parametrize("r", PAPER)
def test_low_and_high_are_the_paper_s(r: float) -> None:
    counts = [round(1000 * r), 1000] * 5
    low, high = (
        class_eta(ViewsConfig(eta=name), counts, THINNED, r, 0.0)  # type: ignore[arg-type]
        for name in ("low", "high")
    )
    assert low.tolist() == pytest.approx([PAPER[r][0]] * 10, abs=1e-5)
    assert high.tolist() == pytest.approx([PAPER[r][1]] * 10, abs=1e-5)
    own = class_eta(ViewsConfig(eta="class_share"), counts, THINNED, r, 0.0)
    assert own.tolist() == pytest.approx(list(PAPER[r]) * 5, abs=1e-5)
    assert own.sum().item() == pytest.approx(1)


def test_a_constant_is_taken_as_it_is() -> None:
    eta = class_eta(ViewsConfig(eta="constant"), [10, 90], [False, False], 1.0, 0.07)
    assert eta.tolist() == pytest.approx([0.07, 0.07])
