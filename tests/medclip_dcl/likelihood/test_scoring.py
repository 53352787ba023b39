"""Units of fixed sentences, the same bits wherever they are scored, whole parts or none."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from medclip_dcl.core.errors import CheckpointError, ScoreError
from medclip_dcl.likelihood import scoring
from medclip_dcl.likelihood.masked_lm import save_language_model
from medclip_dcl.likelihood.pll import pseudo_log_likelihood
from medclip_dcl.likelihood.scoring import ScoringOptions, read_parts, score_units, write_part
from tests.support.bert import SENTENCES, tiny_bert, tiny_tokenizer

TEXTS = (*SENTENCES, "no focal consolidation .", "No " * 40, "No " * 90)
LENGTHS = [8, 7, 11, 6, 7, 7, 6, 42, 64]
PIECES = [6, 5, 9, 4, 5, 5, 4, 40, 62]
KEYS = ["a" * 32, "b" * 32]


@pytest.mark.parametrize("least", [1, 50, 300, 10_000])
def test_units_are_of_like_length_and_of_about_one_cost(monkeypatch, least):
    monkeypatch.setattr(scoring, "_FEW_PIECES", least)
    plan = scoring.plan_units(tiny_tokenizer(), tiny_bert().config, TEXTS, "cpu")
    assert plan.pieces.tolist() == PIECES
    assert plan.cost.tolist() == [a * b for a, b in zip(LENGTHS, PIECES, strict=True)]
    assert plan.truncated == 1  # the model reads 64
    in_order = np.argsort(LENGTHS, kind="stable")
    assert (np.diff(plan.unit[in_order]) >= 0).all()
    size = max(least, sum(plan.cost) // 64)
    before = np.bincount(plan.unit, plan.cost) - plan.cost[in_order[-1]]
    assert before.max() <= size  # too much by its last sentence at most
    assert (len(set(plan.unit.tolist())) == 1) == (least == 10_000)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    for key in KEYS:
        write_part(tmp_path, [key], [-1.5])
    return tmp_path


def test_parts_are_read_back_and_leave_nothing_else(parts):
    table, damaged = read_parts(parts)
    assert sorted(table["text_key"].to_pylist()) == KEYS
    assert table["pll_nats"].to_pylist() == [-1.5, -1.5]
    assert (len(list(parts.iterdir())), damaged) == (2, 0)
    assert read_parts(parts / "absent")[0].num_rows == 0


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-20], lambda data: b"", lambda data: b"x" * 99]
)
def test_a_damaged_part_is_left_out_and_counted(parts, harm):
    target = next(parts.iterdir())
    target.write_bytes(harm(target.read_bytes()))
    table, damaged = read_parts(parts)
    assert (table.num_rows, damaged) == (1, 1)


UNITS = [SENTENCES[:2], SENTENCES[2:4], SENTENCES[4:]]


@pytest.fixture
def options(tmp_path: Path) -> ScoringOptions:
    save_language_model(tiny_bert(), tiny_tokenizer(), tmp_path)
    return ScoringOptions(tmp_path, "original", engine="torch")  # the other is converted first


def test_workers_give_the_bits_of_one_process_and_those_are_the_scores(options):
    options = dataclasses.replace(options, engine="auto")
    alone, shared = (dict(score_units(options, UNITS, workers)) for workers in (1, 2))
    assert shared == alone
    expected = pseudo_log_likelihood(tiny_bert(), tiny_tokenizer(), SENTENCES).tolist()
    got = [value for number in range(3) for value in alone[number]]
    assert got == pytest.approx(expected, abs=2e-4)


def test_an_overlong_sentence_is_cut_to_what_the_model_reads(options):
    scores = dict(score_units(options, [["no " * 200], ["no " * 62]], 1))
    assert scores[0] == scores[1]


def test_faults_and_deaths_of_a_worker_reach_the_caller(options):
    broken = dataclasses.replace(options, device="no_such_device")
    with pytest.raises(ScoreError, match="ended with code 1"):
        list(score_units(broken, UNITS, 2))
    with pytest.raises(ScoreError, match="no word piece"):
        list(score_units(options, [[" "], UNITS[0]], 2))
    (options.folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        list(score_units(options, UNITS, 2))
