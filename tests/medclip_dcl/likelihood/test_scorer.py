"""Tasks: the same bits wherever they are scored, and no process left behind."""

import dataclasses
from pathlib import Path

import pytest

from medclip_dcl.core.errors import CheckpointError, ScoreError
from medclip_dcl.likelihood.masked_lm import save_language_model
from medclip_dcl.likelihood.pll import pseudo_log_likelihood
from medclip_dcl.likelihood.scoring import ScoringOptions, Task, score_tasks
from tests.support.bert import SENTENCES, tiny_bert, tiny_tokenizer

TASKS = [Task(0, SENTENCES[:2]), Task(1, SENTENCES[2:4]), Task(2, SENTENCES[4:])]


@pytest.fixture
def options(tmp_path: Path) -> ScoringOptions:
    save_language_model(tiny_bert(), tiny_tokenizer(), tmp_path)
    return ScoringOptions(tmp_path, "original")


def test_workers_give_the_bits_of_one_process_and_those_are_the_scores(options):
    alone = {scores.number: scores for scores in score_tasks(options, TASKS, 1)}
    shared = {scores.number: scores for scores in score_tasks(options, TASKS, 2)}
    assert shared == alone
    expected = pseudo_log_likelihood(tiny_bert(), tiny_tokenizer(), SENTENCES).tolist()
    got = [value for number in range(3) for value in alone[number].pll_nats]
    assert got == pytest.approx(expected, abs=2e-4)


def test_an_overlong_sentence_is_cut_to_what_the_model_reads(options):
    long, cut = "no " * 200, "no " * 62
    tasks = [Task(0, (long,)), Task(1, (cut,))]
    scores = [item.pll_nats for item in score_tasks(options, tasks, 1)]
    assert scores[0] == scores[1]


def test_faults_in_a_worker_reach_the_caller(options):
    with pytest.raises(ScoreError, match="no word piece"):
        list(score_tasks(options, [Task(7, (" ",)), TASKS[0]], 2))
    (options.folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        list(score_tasks(options, TASKS, 2))


def test_a_worker_that_dies_is_an_error_and_not_a_wait(options):
    broken = dataclasses.replace(options, device="no_such_device")
    with pytest.raises(ScoreError, match="ended with code 1"):
        list(score_tasks(broken, TASKS, 2))
