import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.likelihood.masked_lm import load_language_model
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.text.labeler import labels
from medclip_dcl.training.corpus import TokenTable
from medclip_dcl.training.dataset import ImageTextDataset, draw_crops, jitter, prefetch, slack_px
from medclip_dcl.training.sampler import ImageTextSampler
from medclip_dcl.training.settings import ObjectiveConfig
from medclip_dcl.training.supervision import read_supervision
from tests.support.corpus import KINDS, made, read_tiny_corpus
from tests.support.tiny_models import random_images


def dataset_of(work: Path, mine: slice = slice(0, 8), seed: int | None = 0) -> ImageTextDataset:
    corpus = read_tiny_corpus(work)
    tokenizer = load_language_model(work / "language_model").tokenizer
    objective = ObjectiveConfig(relation="claims", negatives="remove_labels")
    tables = (made(work, kind) for kind in (manifest.ARTIFACT, labels.ARTIFACT))
    return ImageTextDataset(
        corpus=corpus,
        supervision=read_supervision(objective, corpus, *tables),
        prepared=PreparedImages(made(work, prepared.ARTIFACT)),
        tokens=TokenTable(tokenizer, corpus.texts, 32),
        sampler=ImageTextSampler(corpus.images, corpus.sentences, 8, 0, False),
        input_px=32,
        seed=seed,
        mine=mine,
    )


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
        columns = batch.columns
        assert torch.equal(columns["sentence_codes"], columns["report_codes"])
        assert columns["labels"].any(dim=1).tolist() == [kind < 3 for kind in kinds]


def test_processes_see_slices_of_one_batch_and_validation_sees_images_as_they_are(work):
    whole = dataset_of(work).batch(5)
    left, right = (dataset_of(work, slice(at, at + 4)).batch(5) for at in (0, 4))
    assert torch.equal(whole.crops, torch.cat([left.crops, right.crops]))
    assert torch.equal(whole.brightness, torch.cat([left.brightness, right.brightness]))
    assert torch.equal(whole.eta, left.eta)
    assert torch.equal(whole.eta, right.eta)
    assert whole.study_ids == left.study_ids == right.study_ids
    batch = dataset_of(work, seed=None).batch(0)
    assert batch.brightness.eq(1).all()
    images = PreparedImages(made(work, prepared.ARTIFACT))
    middles = {images.pixels(row)[4:36, 4:36].tobytes() for row in range(len(images))}
    assert {crop.numpy().tobytes() for crop in batch.crops} <= middles  # 32 of 40 pixels
    assert torch.equal(batch.crops, dataset_of(work, seed=None).batch(0).crops)
    assert not torch.equal(batch.crops, dataset_of(work).batch(0).crops)


def test_reading_ahead_goes_on_and_ends_with_its_reader_and_passes_errors_on():
    asked = threading.Event()
    items = prefetch(lambda step: (step and asked.set(), step)[1], 0, 3)
    assert next(items) == 0
    assert asked.wait(5)
    assert list(items) == [1, 2]

    def make(step: int) -> int:
        if step == 3:
            raise ValueError("broken item")
        return step

    before = threading.active_count()
    batches = prefetch(make, 0, 100)
    assert [next(batches), next(batches), next(batches)] == [0, 1, 2]
    with pytest.raises(ValueError, match="broken item"):
        next(batches)
    stopped = prefetch(make, 4, 100)
    next(stopped)
    stopped.close()
    assert threading.active_count() == before


def test_jitter_is_brightness_then_contrast_and_of_ones_the_input_of_the_service():
    crop = torch.tensor([[[[100, 200]]]], dtype=torch.uint8)
    seen = jitter(crop, torch.tensor([1.1]), torch.tensor([0.8]))
    # 110, 220, mean 165: 165 - .8 * 55 = 121, 165 + .8 * 55 = 209
    expected = (torch.tensor([121.0, 209.0]) / 255 - 0.5) / 0.25
    torch.testing.assert_close(seen.flatten(), expected)
    crop = torch.tensor([[[[0, 255, 255, 255]]]], dtype=torch.uint8)
    seen = jitter(crop, torch.tensor([1.5]), torch.tensor([1.5]))
    assert seen.min() == -2.0
    assert seen.max() == 2.0
    given = random_images(4, 12)
    ones = torch.ones(4)
    ours = jitter(torch.from_numpy(given).unsqueeze(1), ones, ones)
    torch.testing.assert_close(ours, to_input(given, 12), rtol=0, atol=1e-6)


def test_crops_reach_every_corner_and_factors_fill_their_range():
    views = draw_crops(np.random.default_rng(0), 4000, 8)
    assert set(views.top.tolist()) == set(views.left.tolist()) == set(range(9))
    for factors in (views.brightness, views.contrast):
        assert 0.8 <= factors.min() < 0.81
        assert 1.19 < factors.max() <= 1.2
    assert views.brightness.dtype == np.float32


def test_an_input_that_would_show_small_parts_of_images_is_refused() -> None:
    assert slack_px(40, 32) == 8
    with pytest.raises(ConfigError, match=r"96 is less than 0\.8 of images\.size_px 144"):
        slack_px(144, 96)


def test_a_corpus_holds_one_split_and_no_patient_of_another(work: Path) -> None:
    train, validate = read_tiny_corpus(work), read_tiny_corpus(work, "validate")
    assert (len(train.study_ids), len(validate.study_ids)) == (24, 8)
    assert set(train.subject_ids).isdisjoint(validate.subject_ids)
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
