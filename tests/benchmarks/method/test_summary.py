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
    Difference,
    Runs,
    compare,
    decisions,
    read_runs,
    show,
    styles,
    table,
)

PAGE = Path(__file__).parents[3] / "docs" / "results" / "real_studies.md"
PROSE = (
    # start ("today", "third": today's code, two seeds of InfoNCE or three), row, minus, figure: in
    # the order of the page
    *((start, "cross", "infonce", "auc_four") for start in ("random", "warm")),
    ("random", "cross", "cross_shuffled", "auc_four"),
    *(("random", "relations", "infonce", figure) for figure in ("auc_four", "auc_one")),
    *(
        ("random", "relations", other, "auc_four")
        for other in ("best_constant", "paper", "relations_shuffled")
    ),
    *(("random", "cross", "relations", figure) for figure in ("auc_four", "accuracy")),
    *(
        ("random", "relations", "ceiling", figure)
        for figure in ("auc_one", "auprc_one", "auc_six_one", "emphysema")
    ),
    ("random", "paper", "infonce_texts", "auc_one"),
    ("random", "paper", "eta_shuffled", "auc_four"),
    *(("today", "reader", other, "auc_four") for other in ("infonce", "mates")),
    *(("today", "mates", other, "auc_four") for other in ("infonce", "mates_shuffled")),
    ("today", "mates", "infonce", "auc_one"),
    ("third", "mates", "infonce", "auc_four"),
    *(
        ("today", row, "infonce", figure)
        for row in ("mates_cross", "cross")
        for figure in ("auc_four", "auc_one")
    ),
    ("third", "cross", "infonce", "auc_four"),
    ("today", "cross", "mates_cross", "auc_four"),
    ("today", "relations_no_atelectasis", "relations", "atelectasis"),
    *(
        ("today", "paper_4000", other, "auc_four")
        for other in ("infonce_texts_4000", "eta_shuffled_4000")
    ),
    ("today", "relations_dictated", "relations", "auc_four"),
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
    one = gap(runs, "one", "other")
    assert one.value == pytest.approx(0.2)
    assert (one.folds, one.ahead) == (1, 1)


def test_variance_of_folds_is_corrected() -> None:
    one = compare([0.3, 0.2, 0.1], [0.2, 0.0, 0.0])
    # gaps .1 .2 .1: mean .13333, variance .0033333; (1/3 + .2/.72) of it is .0020370, its root
    # .045134; t of two degrees of freedom at .975 is 4.30265
    assert one.value == pytest.approx(0.133333, abs=1e-6)
    assert one.low == pytest.approx(0.133333 - 4.30265 * 0.045134, abs=1e-5)
    assert one.high == pytest.approx(0.133333 + 4.30265 * 0.045134, abs=1e-5)
    assert one.ahead == one.folds == 3


def expected(runs: Runs, today: Runs) -> list[str]:
    by_start = {"today": today, "third": read_runs(TODAY, 3)}
    return [
        str(by_start[start].minus(row, other, figure))
        if start in by_start
        else str(runs.minus(row, other, figure, start))
        for start, row, other, figure in PROSE
    ]


def test_tables_of_the_page_are_those_of_the_kept_runs(runs: Runs, today: Runs, page: str) -> None:
    assert f"\n{table(runs, 'random', SHOWN, COLUMNS)}\n" in page
    assert f"\n{table(today, 'random', SHOWN_TODAY, COLUMNS)}\n" in page
    assert f"\n{decisions(today)}\n" in page
    assert f"\n{styles(today)}\n" in page


def test_every_difference_in_words_is_that_of_the_kept_runs(runs, today, page):
    prose = re.sub(r"\s+", " ", re.sub(r"^\|.*$", "", page, flags=re.MULTILINE))
    assert re.findall(r"[-+]\.\d+ \[[^\]]+\]", prose) == expected(runs, today)
    assert len(re.findall(r"\[[-+]\.", prose)) == len(PROSE)


def test_levels_and_ranks_in_words_are_those_of_the_kept_runs(runs, today, page):
    prose = re.sub(r"\s+", " ", page)

    def mean(start: str, row: str, figure: str) -> str:
        kept = today if start == "today" else runs
        return show(kept.mean("random" if start == "today" else start, row, figure), figure)

    rows = ("relations", "infonce")
    ranks = [mean(start, row, "rank") for start in ("random", "warm") for row in rows]
    for words in (
        "rank is {} where InfoNCE has {}.".format(mean("random", "cross", "rank"), ranks[1]),
        "rank is {} where that of InfoNCE is {}, and {} where it is {} from".format(*ranks),
        "first ten falls from {} to {}.".format(
            mean("random", "infonce", "recall"), mean("random", "relations", "recall")
        ),
        "image-to-report rank {}, InfoNCE's {}.".format(
            mean("today", "mates", "rank"), mean("today", "infonce", "rank")
        ),
        f"own pair, keep it ({mean('today', 'mates_cross', 'rank')}),",
        f"So is cross (rank {mean('today', 'cross', 'rank')}),",
    ):
        assert words in prose


def gap(runs: Runs, *given: str) -> Difference:
    difference = runs.minus(*given)
    assert isinstance(difference, Difference), given
    return difference


def test_what_the_page_says_of_rows_holds(runs: Runs) -> None:
    for start in ("random", "warm"):
        means = {row: runs.mean(start, row) or 0 for row in SHOWN}
        assert max(means, key=lambda row: means[row]) == "relations"
        gaps = [runs.minus(row, "infonce", start=start) for row in runs.rows(start)]
        judged = [each.p for each in gaps if each is not None and each.p < 1]
        assert min(judged) * len(judged) > 0.05  # Holm: the smallest is above its first step
        for row in ("relations", "cross"):
            assert gap(runs, row, "infonce", "auc_four", start).ahead == 5
        assert gap(runs, "relations", "infonce", "rank", start).low > 0  # in every fold: worse
        assert gap(runs, "relations", "infonce", "rank", start).ahead == 5
    assert gap(runs, "cross", "relations", "auc_four").high > 0  # not shown to differ
    assert gap(runs, "cross", "infonce", "rank").value < 10
    assert gap(runs, "paper", "infonce_texts", "auc_one").folds == 3
    for row in ("relations", "cross", "best_constant", "paper", "infonce"):
        gained = runs.gained(row, "warm")
        assert gained.low > 0 if gained else pytest.fail(row)


def test_the_outcomes_of_the_plan_follow_from_its_rules(today: Runs) -> None:
    for row in ("mates", "mates_cross", "cross", "relations"):
        ahead = gap(today, row, "infonce")
        assert (ahead.ahead, ahead.folds) == (5, 5)
        assert ahead.low > 0
    for row in ("mates_cross", "cross"):
        assert gap(today, row, "infonce", "auc_one").low > 0
        assert gap(today, row, "infonce", "rank").value < 10
    assert (
        gap(today, "mates", "mates_shuffled").low > 0 > gap(today, "mates_shuffled", "infonce").low
    )
    for row, other, figure in (
        ("mates", "infonce", "auc_one"),
        ("cross", "mates_cross", "auc_four"),
        ("mates_cross", "relations", "auc_four"),
        ("paper_4000", "infonce_texts_4000", "auc_four"),
        ("paper_4000", "eta_shuffled_4000", "auc_four"),
        ("paper_4000", "eta_reversed_4000", "auc_four"),
    ):
        not_shown = gap(today, row, other, figure)
        assert not_shown.low < 0 < not_shown.high
    assert gap(today, "reader", "relations").ahead == gap(today, "reader", "relations").folds
    for finding, stays in (("effusion", True), ("atelectasis", True), ("cardiomegaly", False)):
        unread = f"relations_no_{finding}"
        left = gap(today, unread, "infonce", finding).value
        gain = left - gap(today, unread, "relations", finding).value  # on the same folds
        assert (left > gain / 2) is stays
    sigmoid = gap(today, "sigmoid_relations", "relations")
    assert sigmoid.ahead < sigmoid.folds
    assert gap(today, "mates_head", "mates").value < 0.01
    assert abs(gap(today, "ramped_256", "ramped_256_shuffled").value) < 0.01
