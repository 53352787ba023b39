import pytest

from benchmarks.speed.scale import STAGES, Measured, growth_figures


def measured(start_s: float, row_s: float) -> list[Measured]:
    """What stages take whose time grows with the rows, next to a start."""
    return [
        Measured(kind, size, stage, start_s + row_s * size, 1, 1, 1)
        for kind, stages in STAGES.items()
        for stage in stages
        for size in (10, 100, 1000)
    ]


def test_growth_is_judged_where_rows_take_most_of_the_time() -> None:
    sizes = dict.fromkeys(STAGES, (10, 100, 1000))
    figures = growth_figures(measured(start_s=1, row_s=0.1), sizes)
    assert figures["growth_exponent"] == pytest.approx(1, abs=0.05)
    figures = growth_figures(measured(start_s=50, row_s=0.1), sizes)
    assert not [name for name in figures if name.endswith("exponent")]
