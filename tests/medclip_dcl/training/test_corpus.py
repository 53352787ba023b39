from pathlib import Path

import numpy as np
import pytest
import torch

from medclip_dcl.likelihood.masked_lm import load_language_model
from medclip_dcl.training.corpus import TokenTable
from tests.support.corpus import read_tiny_corpus


def test_a_corpus_holds_one_split_and_no_patient_of_another(work: Path) -> None:
    train, validate = read_tiny_corpus(work), read_tiny_corpus(work, "validate")
    assert len(train.study_ids) == 24
    assert len(validate.study_ids) == 8
    assert set(train.subject_ids).isdisjoint(validate.subject_ids)
    assert len(train.images.sizes) == 24
    assert train.images.sizes.tolist() == [2, 1, 1, 1] * 6
    assert len(train.texts) == len(set(train.text_keys)) == 8
    assert train.eta.tolist() == pytest.approx([0.05] * 8)


def test_sentences_are_padded_to_the_longest_of_the_batch_and_no_further(work: Path) -> None:
    tokenizer = load_language_model(work / "language_model").tokenizer
    texts = ["the heart is enlarged", "pneumonia on the left side", "the"]
    table = TokenTable(tokenizer, texts, 32)
    ids, mask = table.padded(np.array([2, 0]))
    expected = tokenizer(["the", "the heart is enlarged"], padding=True, return_tensors="pt")
    assert torch.equal(ids, expected["input_ids"])
    assert torch.equal(mask, expected["attention_mask"])
    assert TokenTable(tokenizer, texts, 8).padded(np.array([1]))[0].shape[1] <= 8
