from pathlib import Path

import numpy as np
import pytest
import torch

from medclip_dcl.artifact import open_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.likelihood.masked_lm import load_language_model
from medclip_dcl.text.labeler import labels
from medclip_dcl.training.dataset import ImageTextDataset, TokenTable, read_supervision
from medclip_dcl.training.sampler import ImageTextSampler
from medclip_dcl.training.settings import ObjectiveConfig
from testing.corpus import KINDS, read_tiny_corpus, write_corpus


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("pairs") / "work")


def dataset_of(work: Path, mine: slice = slice(0, 8), seed: int | None = 0) -> ImageTextDataset:
    corpus = read_tiny_corpus(work)
    tokenizer = load_language_model(work / "language_model").tokenizer
    return ImageTextDataset(
        corpus=corpus,
        supervision=read_supervision(
            ObjectiveConfig(relation="claims", negatives="remove_labels"),
            corpus,
            open_artifact(manifest.ARTIFACT.at(work), manifest.ARTIFACT),
            open_artifact(labels.ARTIFACT.at(work), labels.ARTIFACT),
            None,
        ),
        prepared=PreparedImages(open_artifact(prepared.ARTIFACT.at(work), prepared.ARTIFACT)),
        tokens=TokenTable(tokenizer, corpus.texts, 32),
        sampler=ImageTextSampler(corpus.images, corpus.sentences, 8, 0, False),
        input_px=32,
        seed=seed,
        mine=mine,
    )


def test_a_corpus_holds_one_split_and_no_patient_of_another(work: Path) -> None:
    train, validate = read_tiny_corpus(work), read_tiny_corpus(work, "validate")
    assert len(train.study_ids) == 24
    assert len(validate.study_ids) == 8
    assert train.subject_ids.isdisjoint(validate.subject_ids)
    assert len(train.images.sizes) == 24
    assert train.images.sizes.tolist() == [2, 1, 1, 1] * 6
    assert len(train.texts) == len(set(train.text_keys)) == 8
    assert train.eta.tolist() == pytest.approx([0.05] * 8)


def test_image_sentence_and_evidence_of_a_place_belong_together(work: Path) -> None:
    tokenizer = load_language_model(work / "language_model").tokenizer
    texts = {text: kind for kind, (_, *said) in enumerate(KINDS) for text in said}
    for step in range(3):
        batch = dataset_of(work).batch(step)
        decoded = tokenizer.batch_decode(batch.input_ids, skip_special_tokens=True)
        kinds = [texts[text] for text in decoded]
        assert kinds == [int(study[1:]) % 4 for study in batch.study_ids]
        quarters = batch.crops[:, 0].float().unflatten(1, (2, 16)).unflatten(3, (2, 16))
        brightest = quarters.mean(dim=(2, 4)).flatten(1).argmax(dim=1)
        assert brightest.tolist() == kinds
        assert batch.sentence_codes is not None
        assert batch.labels is not None
        assert torch.equal(batch.sentence_codes, batch.report_codes)
        assert batch.labels.any(dim=1).tolist() == [kind < 3 for kind in kinds]


def test_processes_see_slices_of_one_and_the_same_batch(work: Path) -> None:
    whole = dataset_of(work).batch(5)
    left, right = (dataset_of(work, slice(at, at + 4)).batch(5) for at in (0, 4))
    assert torch.equal(whole.crops, torch.cat([left.crops, right.crops]))
    assert torch.equal(whole.brightness, torch.cat([left.brightness, right.brightness]))
    assert torch.equal(whole.eta, left.eta)
    assert torch.equal(whole.eta, right.eta)
    assert whole.study_ids == left.study_ids == right.study_ids


def test_sentences_are_padded_to_the_longest_of_the_batch_and_no_further(work: Path) -> None:
    tokenizer = load_language_model(work / "language_model").tokenizer
    texts = ["the heart is enlarged", "pneumonia on the left side", "the"]
    table = TokenTable(tokenizer, texts, 32)
    ids, mask = table.padded(np.array([2, 0]))
    expected = tokenizer(["the", "the heart is enlarged"], padding=True, return_tensors="pt")
    assert torch.equal(ids, expected["input_ids"])
    assert torch.equal(mask, expected["attention_mask"])
    assert TokenTable(tokenizer, texts, 8).padded(np.array([1]))[0].shape[1] <= 8
