"""What a chart says is text, whatever the names of findings are."""

import pytest

from pipelines.report import charts
from pipelines.report.charts import Labels, Series

LABELS = Labels(alt="a chart", x="$x_{$", y="$y")


@pytest.mark.parametrize("name", ["$\\frac$", "5 $ and 6 $"])
def test_a_name_is_no_formula(name: str) -> None:
    lines = [Series(name, [0, 1], [0, 1]), Series("other", [0, 1], [1, 0])]
    chart = charts.draw_lines(lines, LABELS)
    assert f">{name}<" in chart
    assert ">$x_{$<" in chart
