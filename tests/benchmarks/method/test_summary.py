"""The page on real studies states what the kept runs give, by statistics held by hand."""

import re
from typing import Any

import pytest

from benchmarks.method.real_studies import summary
from tests.support.processes import ROOT

PAGE = (ROOT / "docs/results/real_studies.md").read_text(encoding="utf-8")
PROSE = """
    random  cross                     infonce             auc_four
    warm    cross                     infonce             auc_four
    random  cross                     cross_shuffled      auc_four
    random  relations                 infonce             auc_four
    random  relations                 infonce             auc_one
    random  relations                 best_constant       auc_four
    random  relations                 paper               auc_four
    random  relations                 relations_shuffled  auc_four
    random  cross                     relations           auc_four
    random  cross                     relations           accuracy
    random  relations                 ceiling             auc_one
    random  relations                 ceiling             auprc_one
    random  relations                 ceiling             auc_six_one
    random  relations                 ceiling             emphysema
    random  paper                     infonce_texts       auc_one
    random  paper                     eta_shuffled        auc_four
    today   reader                    infonce             auc_four
    today   reader                    mates               auc_four
    today   mates                     infonce             auc_four
    today   mates                     mates_shuffled      auc_four
    today   mates                     infonce             auc_one
    third   mates                     infonce             auc_four
    today   mates_cross               infonce             auc_four
    today   mates_cross               infonce             auc_one
    today   cross                     infonce             auc_four
    today   cross                     infonce             auc_one
    third   cross                     infonce             auc_four
    today   cross                     mates_cross         auc_four
    today   relations_no_atelectasis  relations           atelectasis
    today   paper_4000                infonce_texts_4000  auc_four
    today   paper_4000                eta_shuffled_4000   auc_four
    today   relations_dictated        relations           auc_four
"""
"""Start ("today", "third": today's code, two seeds of InfoNCE or three), row, minus, figure: in the
order of the page."""
RUNS, TODAY = summary.read_runs(), summary.read_runs(summary.TODAY)


def line(row: str, fold: int, seed: int, auc: float) -> dict[str, Any]:
    run = {"start": "random", "row": row, "fold": fold, "seed": seed}
    return {"run": run, "figures": {"several_prompts": {"mean_auc": auc}}}


def test_seeds_of_a_fold_are_averaged_before_rows_are_compared() -> None:
    lines = [line("one", 0, 0, 0.6), line("one", 0, 1, 0.8), line("one", 1, 0, 0.9)]
    lines += [line("other", 0, 0, 0.5), line("other", 2, 0, 0.5)]
    runs = summary.Runs(lines)
    assert runs.by_fold("random", "one") == {0: pytest.approx(0.7), 1: 0.9}
    one = gap(runs, "one", "other")
    assert one.value == pytest.approx(0.2)
    assert (one.folds, one.ahead) == (1, 1)


def test_variance_of_folds_is_corrected() -> None:
    one = summary.compare([0.3, 0.2, 0.1], [0.2, 0.0, 0.0])
    # gaps .1 .2 .1: mean .13333, variance .0033333; (1/3 + .2/.72) of it is .0020370, its root
    # .045134; t of two degrees of freedom at .975 is 4.30265
    assert one.value == pytest.approx(0.133333, abs=1e-6)
    assert one.low == pytest.approx(0.133333 - 4.30265 * 0.045134, abs=1e-5)
    assert one.high == pytest.approx(0.133333 + 4.30265 * 0.045134, abs=1e-5)
    assert one.ahead == one.folds == 3


def gap(runs: summary.Runs, *given: str) -> summary.Difference:
    difference = runs.minus(*given)
    assert isinstance(difference, summary.Difference), given
    return difference


def test_tables_of_the_page_are_those_of_the_kept_runs() -> None:
    assert f"\n{summary.table(RUNS, 'random', summary.SHOWN, summary.COLUMNS)}\n" in PAGE
    assert f"\n{summary.table(TODAY, 'random', summary.SHOWN_TODAY, summary.COLUMNS)}\n" in PAGE
    assert f"\n{summary.decisions(TODAY)}\n" in PAGE
    assert f"\n{summary.styles(TODAY)}\n" in PAGE


def test_every_difference_in_words_is_that_of_the_kept_runs():
    prose = re.sub(r"\s+", " ", re.sub(r"^\|.*$", "", PAGE, flags=re.MULTILINE))
    kept = {"today": TODAY, "third": summary.read_runs(summary.TODAY, 3)}
    differences = [line.split() for line in PROSE.strip().splitlines()]
    expected = [
        str(kept[start].minus(*more) if start in kept else RUNS.minus(*more, start))
        for start, *more in differences
    ]
    assert re.findall(r"[-+]\.\d+ \[[^\]]+\]", prose) == expected
    assert len(re.findall(r"\[[-+]\.", prose)) == len(differences)


def test_levels_and_ranks_in_words_are_those_of_the_kept_runs():
    prose = re.sub(r"\s+", " ", PAGE)

    def mean(start: str, row: str, figure: str) -> str:
        kept = TODAY if start == "today" else RUNS
        return summary.show(kept.mean("random" if start == "today" else start, row, figure), figure)

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


def test_what_the_page_says_of_rows_holds() -> None:
    for start in ("random", "warm"):
        means = {row: RUNS.mean(start, row) or 0 for row in summary.SHOWN}
        assert max(means, key=lambda row: means[row]) == "relations"
        gaps = [RUNS.minus(row, "infonce", start=start) for row in RUNS.rows(start)]
        judged = [each.p for each in gaps if each is not None and each.p < 1]
        assert min(judged) * len(judged) > 0.05  # Holm: the smallest is above its first step
        for row in ("relations", "cross"):
            assert gap(RUNS, row, "infonce", "auc_four", start).ahead == 5
        assert gap(RUNS, "relations", "infonce", "rank", start).low > 0  # in every fold: worse
        assert gap(RUNS, "relations", "infonce", "rank", start).ahead == 5
    assert gap(RUNS, "cross", "relations", "auc_four").high > 0  # not shown to differ
    assert gap(RUNS, "cross", "infonce", "rank").value < 10
    assert gap(RUNS, "paper", "infonce_texts", "auc_one").folds == 3
    for row in ("relations", "cross", "best_constant", "paper", "infonce"):
        gained = RUNS.gained(row, "warm")
        assert gained.low > 0 if gained else pytest.fail(row)


def test_the_outcomes_of_the_plan_follow_from_its_rules() -> None:
    for row in ("mates", "mates_cross", "cross", "relations"):
        ahead = gap(TODAY, row, "infonce")
        assert (ahead.ahead, ahead.folds) == (5, 5)
        assert ahead.low > 0
    for row in ("mates_cross", "cross"):
        assert gap(TODAY, row, "infonce", "auc_one").low > 0
        assert gap(TODAY, row, "infonce", "rank").value < 10
    assert gap(TODAY, "mates", "mates_shuffled").low > 0
    assert gap(TODAY, "mates_shuffled", "infonce").low < 0
    for row, other, figure in (
        ("mates", "infonce", "auc_one"),
        ("cross", "mates_cross", "auc_four"),
        ("mates_cross", "relations", "auc_four"),
        ("paper_4000", "infonce_texts_4000", "auc_four"),
        ("paper_4000", "eta_shuffled_4000", "auc_four"),
        ("paper_4000", "eta_reversed_4000", "auc_four"),
    ):
        not_shown = gap(TODAY, row, other, figure)
        assert not_shown.low < 0 < not_shown.high
    assert gap(TODAY, "reader", "relations").ahead == gap(TODAY, "reader", "relations").folds
    for finding, stays in (("effusion", True), ("atelectasis", True), ("cardiomegaly", False)):
        unread = f"relations_no_{finding}"
        left = gap(TODAY, unread, "infonce", finding).value
        gain = left - gap(TODAY, unread, "relations", finding).value  # on the same folds
        assert (left > gain / 2) is stays
    sigmoid = gap(TODAY, "sigmoid_relations", "relations")
    assert sigmoid.ahead < sigmoid.folds
    assert gap(TODAY, "mates_head", "mates").value < 0.01
    assert abs(gap(TODAY, "ramped_256", "ramped_256_shuffled").value) < 0.01
