"""Units of work: the same bits wherever they are scored, and no process left behind."""

import dataclasses
from pathlib import Path

import pytest

from medclip_dcl.errors import CheckpointError, ScoreError
from medclip_dcl.likelihood.language_model import save_language_model
from medclip_dcl.likelihood.pll import pseudo_log_likelihood
from medclip_dcl.likelihood.scorer import Recipe, Unit, score_units
from tests.synthetic.bert import SENTENCES, tiny_bert, tiny_tokenizer

UNITS = [
    Unit("a", ("k0", "k1"), SENTENCES[:2]),
    Unit("b", ("k2", "k3"), SENTENCES[2:4]),
    Unit("c", ("k4", "k5"), SENTENCES[4:]),
]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    save_language_model(tiny_bert(), tiny_tokenizer(), tmp_path)
    return Recipe(tmp_path, "original", "float32", 64)


def test_workers_give_the_bits_of_one_process_and_those_are_the_scores(recipe):
    alone = {scores.name: scores for scores in score_units(recipe, UNITS, 1)}
    shared = {scores.name: scores for scores in score_units(recipe, UNITS, 2)}
    assert shared == alone
    expected = pseudo_log_likelihood(tiny_bert(), tiny_tokenizer(), SENTENCES).tolist()
    got = [value for name in "abc" for value in alone[name].pll_nats]
    assert got == pytest.approx(expected, abs=2e-4)
    assert alone["a"].tokens == (6, 5)


def test_an_overlong_sentence_is_cut_to_what_the_model_reads(recipe):
    (scores,) = score_units(recipe, [Unit("a", ("k",), ("no " * 200,))], 1)
    assert scores.tokens == (62,)


def test_faults_in_a_worker_reach_the_caller(recipe):
    with pytest.raises(ScoreError, match="no word piece"):
        list(score_units(recipe, [Unit("a", ("k",), (" ",)), UNITS[0]], 2))
    (recipe.folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        list(score_units(recipe, UNITS, 2))


def test_a_worker_that_dies_is_an_error_and_not_a_wait(recipe):
    broken = dataclasses.replace(recipe, dtype="no_such_dtype")
    with pytest.raises(ScoreError, match="ended with code 1"):
        list(score_units(broken, UNITS, 2))


def test_nothing_to_score_starts_nothing(tmp_path):
    assert list(score_units(Recipe(tmp_path / "none", "original", "float32", 64), [], 2)) == []
