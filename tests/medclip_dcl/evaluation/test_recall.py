import numpy as np
import pytest
from sklearn.metrics import label_ranking_average_precision_score

from medclip_dcl.errors import MetricError
from medclip_dcl.evaluation.metrics import best_ranks, chance_recall, median_rank, recall_at

SCORES = np.array([[0.9, 0.1, 0.5], [0.2, 0.8, 0.3], [0.7, 0.6, 0.1]])
DIAGONAL = np.eye(3, dtype=bool)


def test_ranks_of_a_literal_matrix():
    assert best_ranks(SCORES, DIAGONAL).tolist() == [1, 1, 3]


def test_any_correct_item_answers_a_query():
    correct = np.array([[0, 1, 1], [1, 0, 0], [0, 1, 0]], dtype=bool)
    # best correct: .5 behind .9; .2 behind .8 and .3; .6 behind .7
    assert best_ranks(SCORES, correct).tolist() == [2, 3, 2]


def test_identical_scores_rank_last():
    assert best_ranks(np.zeros((2, 5)), np.eye(2, 5, dtype=bool)).tolist() == [5, 5]


def test_a_query_without_an_answer_is_refused():
    with pytest.raises(MetricError, match="1 queries have no correct item"):
        best_ranks(SCORES, np.array([[1, 0, 0], [0, 0, 0], [0, 0, 1]], dtype=bool))


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(MetricError, match="not finite"):
        best_ranks(np.full((1, 1), np.nan), np.ones((1, 1), dtype=bool))


def test_recall_and_median_by_hand():
    ranks = np.array([1, 1, 3, 10])
    assert [recall_at(ranks, k) for k in (1, 2, 3, 10)] == [0.5, 0.5, 0.75, 1.0]
    assert median_rank(ranks) == 2.0


def test_recall_grows_with_k():
    ranks = np.random.default_rng(3).integers(1, 50, 200)
    values = [recall_at(ranks, k) for k in range(1, 51)]
    assert values == sorted(values)
    assert values[-1] == 1.0


def test_no_queries_have_no_figures():
    none = best_ranks(np.zeros((0, 4)), np.zeros((0, 4), dtype=bool))
    assert recall_at(none, 5) is None
    assert median_rank(none) is None
    assert chance_recall(np.zeros((0, 4), dtype=bool), 5) is None


def test_chance_with_one_correct_item_is_k_of_n():
    assert chance_recall(np.eye(46, dtype=bool), 5) == pytest.approx(5 / 46)
    assert chance_recall(np.eye(1448, dtype=bool), 100) == pytest.approx(0.069, abs=5e-4)


def test_chance_with_several_correct_items_is_hypergeometric():
    # 2 of 4 correct, list of 2: 1 - C(2,2)/C(4,2) = 5/6; a list longer than the pool finds all.
    correct = np.array([[1, 1, 0, 0]], dtype=bool)
    assert chance_recall(correct, 2) == pytest.approx(5 / 6)
    assert chance_recall(correct, 9) == 1.0


def test_random_scores_reach_k_of_n_within_the_interval():
    queries, items = 4000, 50
    correct = np.arange(queries)[:, None] % items == np.arange(items)[None, :]
    ranks = best_ranks(np.random.default_rng(4).random((queries, items)), correct)
    for k in (1, 5, 10):
        share = k / items
        assert chance_recall(correct, k) == pytest.approx(share, abs=1e-9)
        assert abs(recall_at(ranks, k) - share) < 2.58 * np.sqrt(share * (1 - share) / queries)


def test_ranks_agree_with_scikit_learn_where_one_item_is_correct():
    # With one correct item per query the mean reciprocal rank is the label ranking precision.
    generator = np.random.default_rng(5)
    scores = generator.random((40, 12))
    correct = np.eye(12, dtype=bool)[generator.integers(12, size=40)]
    expected = label_ranking_average_precision_score(correct, scores)
    assert (1 / best_ranks(scores, correct)).mean() == pytest.approx(expected, abs=1e-9, rel=0)
