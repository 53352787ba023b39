"""The page on real studies states what the kept runs give, by statistics held by hand."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.method.real_studies.summary import (
    COLUMNS,
    SHOWN,
    SHOWN_TODAY,
    TODAY,
    Runs,
    compare,
    read_runs,
    show,
    table,
)

PAGE = Path(__file__).parents[3] / "docs" / "results" / "real_studies.md"
PROSE_TODAY = (
    # row, minus, figure: in the order of the page, before the next ones
    ("reader", "infonce", "auc_four"),
    ("reader", "mates", "auc_four"),
    ("mates", "infonce", "auc_four"),
    ("mates", "infonce", "auc_one"),
    ("mates", "mates_shuffled", "auc_four"),
    ("mates_cross", "infonce", "auc_four"),
)
PROSE = (
    # start, row, minus, figure: in the order of the page
    *(("random", "relations", "infonce", figure) for figure in ("auc_four", "auc_one")),
    *(("warm", "relations", "infonce", figure) for figure in ("auc_four", "auc_one")),
    ("random", "relations", "best_constant", "auc_four"),
    ("random", "relations", "paper", "auc_four"),
    ("random", "relations", "relations_shuffled", "auc_four"),
    *(
        ("random", "relations", "ceiling", figure)
        for figure in ("auc_one", "auprc_one", "auc_six_one", "emphysema")
    ),
    ("random", "cross", "cross_shuffled", "auc_four"),
    ("random", "paper", "infonce_texts", "auc_one"),
    ("random", "paper", "eta_shuffled", "auc_four"),
)


@pytest.fixture(scope="module")
def runs() -> Runs:
    return read_runs()


@pytest.fixture(scope="module")
def today() -> Runs:
    return read_runs(TODAY)


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def line(row: str, fold: int, seed: int, auc: float) -> dict[str, Any]:
    run = {"start": "random", "row": row, "fold": fold, "seed": seed}
    return {"run": run, "figures": {"several_prompts": {"mean_auc": auc}}}


def test_seeds_of_a_fold_are_averaged_before_rows_are_compared() -> None:
    lines = [line("one", 0, 0, 0.6), line("one", 0, 1, 0.8), line("one", 1, 0, 0.9)]
    lines += [line("other", 0, 0, 0.5), line("other", 2, 0, 0.5)]
    runs = Runs(lines)
    assert runs.by_fold("random", "one") == {0: pytest.approx(0.7), 1: 0.9}
    gap = runs.minus("one", "other")
    assert gap is not None
    assert (gap.value, gap.folds, gap.ahead) == (pytest.approx(0.2), 1, 1)


def test_variance_of_folds_is_corrected() -> None:
    gap = compare([0.3, 0.2, 0.1], [0.2, 0.0, 0.0])
    # gaps .1 .2 .1: mean .13333, variance .0033333; (1/3 + .2/.72) of it is .0020370, its root
    # .045134; t of two degrees of freedom at .975 is 4.30265
    assert gap.value == pytest.approx(0.133333, abs=1e-6)
    assert gap.low == pytest.approx(0.133333 - 4.30265 * 0.045134, abs=1e-5)
    assert gap.high == pytest.approx(0.133333 + 4.30265 * 0.045134, abs=1e-5)
    assert gap.ahead == gap.folds == 3


def test_tables_of_the_page_are_those_of_the_kept_runs(runs: Runs, today: Runs, page: str) -> None:
    assert f"\n{table(runs, 'random', SHOWN, COLUMNS)}\n" in page
    assert f"\n{table(today, 'random', SHOWN_TODAY, COLUMNS)}\n" in page


def test_every_difference_in_words_is_that_of_the_kept_runs(
    runs: Runs, today: Runs, page: str
) -> None:
    prose = re.sub(r"\s+", " ", re.sub(r"^\|.*$", "", page, flags=re.MULTILINE))
    expected = [str(today.minus(*each)) for each in PROSE_TODAY]
    expected += [str(runs.minus(one, other, figure, start)) for start, one, other, figure in PROSE]
    assert re.findall(r"[-+]\.\d+ \[[^\]]+\]", prose) == expected
    assert len(re.findall(r"\[[-+]\.", prose)) == len(expected)


def test_levels_and_ranks_in_words_are_those_of_the_kept_runs(
    runs: Runs, today: Runs, page: str
) -> None:
    prose = re.sub(r"\s+", " ", page)

    def mean(start: str, row: str, figure: str) -> str:
        return show(runs.mean(start, row, figure), figure)

    rows = ("relations", "infonce")
    ranks = [mean(start, row, "rank") for start in ("random", "warm") for row in rows]
    assert (
        "rank is {} where that of InfoNCE is {}, and {} where it is {} from".format(*ranks) in prose
    )
    mates, plain = (show(today.mean("random", row, "rank"), "rank") for row in ("mates", "infonce"))
    assert f"image-to-report rank {mates}, InfoNCE's {plain}" in prose
    tens = [mean("random", row, "recall") for row in reversed(rows)]
    assert "first ten falls from {} to {}.".format(*tens) in prose
    for start in ("random", "warm"):
        rank = runs.minus(*rows, "rank", start)
        assert rank is not None
        assert (rank.ahead, rank.low > 0) == (5, True)


def test_what_the_page_says_of_rows_holds(runs: Runs) -> None:
    for start in ("random", "warm"):
        means = {row: runs.mean(start, row) or 0 for row in SHOWN}
        assert max(means, key=lambda row: means[row]) == "relations"
        gaps = [runs.minus(row, "infonce", start=start) for row in runs.rows(start)]
        judged = [gap.p for gap in gaps if gap is not None and gap.p < 1]
        assert min(judged) * len(judged) > 0.05  # Holm: the smallest is above its first step
    for other in ("infonce", "best_constant", "paper"):
        gap = runs.minus("relations", other)
        assert gap is not None
        assert gap.ahead == gap.folds == 5
    for row in ("relations", "cross", "best_constant", "paper", "infonce"):
        gained = runs.gained(row, "warm")
        assert gained is not None
        assert gained.low > 0
    texts = runs.minus("paper", "infonce_texts", "auc_one")
    assert texts is not None
    assert (texts.ahead, texts.folds) == (3, 3)
    six = runs.minus("relations", "ceiling", "auc_six_one")
    assert six is not None
    assert six.ahead == 0
