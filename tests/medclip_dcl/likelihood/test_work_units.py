"""Units: every word piece scored once, fixed before the first result, none too large."""

import numpy as np
import pytest

from medclip_dcl.likelihood.pll import Variant, encode_sentences, score_encodings
from medclip_dcl.likelihood.work_units import part_of, plan_units, span_codes, units_of
from tests.support.bert import SENTENCES, tiny_bert, tiny_tokenizer

TEXTS = (*SENTENCES, "no focal consolidation .", "No " * 40, "No " * 90)
LIMIT = 64


def plan_of(unit_cost: int):
    config = tiny_bert().config
    assert config.max_position_embeddings == LIMIT
    keys = [f"{number:032d}" for number in range(len(TEXTS))]
    return plan_units(tiny_tokenizer(), config, keys, TEXTS, unit_pieces=unit_cost)


def test_sentences_of_equal_pieces_are_scored_once_and_long_ones_counted():
    plan = plan_of(10_000)
    assert plan.pieces.tolist() == [6, 5, 9, 4, 5, 5, 4, 40, 62]
    assert (plan.cost // (plan.last - plan.first)).tolist() == [6, 7, 7, 7, 8, 11, 42, 64]
    assert plan.twin.tolist() == [0, 1, 2, 3, 4, 5, 3, 7, 8]
    assert plan.truncated == 1
    order = plan.text_index.tolist()
    assert [order[0], *sorted(order[1:4]), *order[4:]] == [3, 1, 4, 5, 0, 2, 7, 8]
    assert plan.scored == 8
    assert plan.cost.sum() == 4 * 6 + 3 * 5 * 7 + 6 * 8 + 9 * 11 + 40 * 42 + 62 * 64
    assert plan.unit.tolist() == [0] * 8


@pytest.mark.parametrize("unit_cost", [1, 50, 100, 300, 2000])
def test_every_piece_falls_into_one_span_and_units_keep_to_their_cost(unit_cost):
    plan = plan_of(unit_cost)
    for index in set(plan.text_index.tolist()):
        own = plan.text_index == index
        spans = sorted(zip(plan.first[own], plan.last[own], strict=True))
        assert [first for first, _ in spans] == [0, *(last for _, last in spans[:-1])]
        assert spans[-1][1] == plan.pieces[index]
    assert len(set(plan.codes.tolist())) == len(plan.codes)
    costs = np.bincount(plan.unit, plan.cost)
    assert costs.max() <= max(2 * unit_cost, unit_cost + 3 * 64)  # `cardiomegaly` is three pieces
    units = list(units_of(plan, np.ones(len(plan.text_index), bool)))
    assert np.concatenate(units).tolist() == list(range(len(plan.text_index)))
    assert [len(set(plan.unit[rows])) for rows in units] == [1] * len(units)


def test_what_is_left_of_units_is_given_unit_by_unit():
    plan = plan_of(100)
    left = np.zeros(len(plan.text_index), bool)
    left[[1, 4, 5]] = True
    found = list(units_of(plan, left))
    assert np.concatenate(found).tolist() == [1, 4, 5]
    assert [plan.unit[rows[0]] for rows in found] == sorted(set(plan.unit[[1, 4, 5]]))
    assert list(units_of(plan, np.zeros(len(plan.text_index), bool))) == []


@pytest.mark.parametrize("variant", ["original", "within_word_l2r"])
def test_scores_of_spans_add_up_to_the_sentence(variant: Variant):
    model, tokenizer = tiny_bert(), tiny_tokenizer()
    whole = encode_sentences(tokenizer, TEXTS, LIMIT)
    expected = score_encodings(model, whole, tokenizer.mask_token_id, variant, 4096).numpy()
    plan = plan_of(50)
    assert len(plan.text_index) > plan.scored
    rows = zip(*(item.tolist() for item in (plan.text_index, plan.first, plan.last)), strict=True)
    parts = [part_of(whole[index], first, last) for index, first, last in rows]
    assert sum(part.tokens for part in parts) == plan.pieces[np.unique(plan.twin)].sum()
    scores = score_encodings(model, parts, tokenizer.mask_token_id, variant, 4096).numpy()
    sums = np.bincount(plan.text_index, scores, len(TEXTS))[plan.twin]
    assert sums == pytest.approx(expected, abs=2e-4)


def test_a_word_is_never_cut():
    plan = plan_of(1)
    spans = zip(plan.first[plan.text_index == 2], plan.last[plan.text_index == 2], strict=True)
    assert (1, 4) in set(spans)  # stable | cardio ##mega ##ly | with ...


def test_codes_tell_spans_apart():
    index, first, last = np.array([[0, 0, 1, 1], [0, 1, 0, 0], [5, 5, 5, 6]])
    assert len(set(span_codes(index, first, last).tolist())) == 4
