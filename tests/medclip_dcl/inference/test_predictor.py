import hashlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from medclip_dcl.core.errors import ArtifactCorrupt, CheckpointError, QueryError
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.inference.model_package import (
    BANK_FILE,
    OFFSETS_FILE,
    SavedModel,
    read_bank,
    read_model_package,
)
from medclip_dcl.inference.predictor import Predictor, build_predictor, load
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.likelihood.pll import encode_sentences
from tests.support.bert import tiny_tokenizer
from tests.support.published import SENTENCES, publish
from tests.support.tiny_models import random_images

HEART = Finding("heart", ("The heart is enlarged.",), ("Normal.",))


@pytest.fixture(scope="module")
def predictor(tmp_path_factory) -> Predictor:
    return load(publish(tmp_path_factory.mktemp("models") / "model").path, "cpu")


@pytest.fixture(scope="module")
def levelled(tmp_path_factory) -> Predictor:
    """A model with a bank of six images."""
    folder = tmp_path_factory.mktemp("levelled") / "model"
    return load(publish(folder, bank=random_images(6, 64)).path, "cpu")


@pytest.fixture
def changed(levelled, tmp_path) -> Callable[[str, bytes | None], SavedModel]:
    """Return the model with a bank, with other content of a file, or without the file."""

    def change(name: str, content: bytes | None) -> SavedModel:
        folder = shutil.copytree(levelled.folder, tmp_path / "model")
        saved = replace(read_model_package(folder), artifact=None)
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        return saved

    return change


def levels(predictor: Predictor, prompts: tuple[str, ...]) -> torch.Tensor:
    """Of each prompt the logarithm of the mean e^s over the bank, in units of scores."""
    scale, bank = float(predictor.model.gamma) ** 2, read_bank(predictor.folder).float()
    scores = predictor.model.score(bank, predictor.embed_sentences(prompts))
    return (scale * scores.double()).exp().mean(dim=1).log() / scale


def image(height=50, width=80):
    pixels = np.random.default_rng(0).integers(0, 65536, (height, width)).astype(np.uint16)
    return GreyImage(pixels=pixels, bits_stored=16, source="png")


def test_the_loaded_weights_are_the_published_ones_also_by_the_folder_of_a_run(predictor):
    stored = read_model_package(predictor.folder).weights()
    for name, tensor in predictor.model.state_dict().items():
        assert torch.equal(tensor, stored[name]), name
    assert load(str(predictor.folder.parent), "cpu").digest == predictor.digest


def test_sentences_keep_their_order_whatever_their_length(predictor):
    texts = [*SENTENCES, *SENTENCES[::-1]]
    texts += ["pleural " * (number % 9 + 1) + str(number) for number in range(150)]  # two passes
    together = predictor.embed_sentences(texts)
    for index in (0, 5, 13, 100, 163):
        alone = predictor.embed_sentences([texts[index]])
        assert torch.allclose(together[index], alone[0], atol=1e-5)


def test_sentences_may_come_in_any_series(predictor):
    (expected, _) = predictor.embed_sentences(["Edema", "No edema."])
    series = ("Edema",), np.array(["Edema"]), np.str_("Edema"), {"Edema": 1}, iter(["Edema"])
    for texts in series:
        assert torch.allclose(predictor.embed_sentences(texts)[0], expected, atol=1e-6), type(texts)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("texts", "rule"),
    [
        (b"Edema", "text 0 is not a string; leave missing texts out"),
        (["Edema", None], "text 1 is not a string; leave missing texts out"),
        (["Edema", float("nan")], "text 1 is not a string"),
        (["Edema", 7], "text 1 is not a string"),
        (None, "text 0 is not a string"),
        ([["Edema"]], "text 0 is not a string"),
        (7, "text 0 is not a string"),
        ("\ud800x", "text 0 is not a string"),
        ([], "a sentence is empty"),
        (" ", "a sentence is empty"),
        (["Edema", ""], "a sentence is empty"),
    ],
)
def test_what_is_no_sentence_is_refused_by_its_place(predictor, texts, rule):
    for question in (
        predictor.embed_sentences,
        predictor.encode_text,
        lambda given: predictor.ground(image(), given),
    ):
        with pytest.raises(QueryError, match=rule):
            question(texts)
    if "string" in rule:
        with pytest.raises(QueryError, match=rule):
            encode_sentences(tiny_tokenizer(), texts)


def test_classify_compares_the_two_prompts_and_without_offsets_decides_at_zero(predictor):
    picture = image()
    answers = predictor.classify(picture).findings
    regions = predictor.embed_images(predictor.square(picture)[None])
    positive, negative = predictor.model.score(
        regions, predictor.embed_sentences(["Pleural effusion", "No pleural effusion"])
    )[:, 0]
    assert answers[0].name == "effusion"
    assert answers[0].margin == pytest.approx(float(positive - negative), abs=1e-6)
    gamma_squared = float(predictor.model.gamma) ** 2
    assert predictor.offsets is None
    for answer in answers:
        assert answer.score == pytest.approx(1 / (1 + np.exp(-gamma_squared * answer.margin)))
        assert (answer.offset, answer.threshold) == (None, 0.5)
        assert answer.decision is (answer.margin > 0)


def test_a_model_that_was_published_without_a_range_flags_nothing(predictor):
    assert not predictor.is_out_of_range(np.zeros((64, 64), dtype=np.uint8))


def test_the_package_keeps_the_levels_of_its_prompts_and_what_they_were_fitted_to(levelled):
    offsets, bank = levelled.offsets, read_bank(levelled.folder)
    assert (offsets.split, offsets.images) == ("validate", 6)
    names = "".join(f"image-{number}\n" for number in range(6))
    assert offsets.digest == hashlib.sha256(names.encode()).hexdigest()
    assert [item.finding for item in offsets.findings] == ["effusion", "pneumonia"]
    assert (bank.dtype, tuple(bank.shape)) == (torch.float16, (6, 4, 4, 16))
    level = offsets.findings[0]
    expected = levels(levelled, ("Pleural effusion", "No pleural effusion"))
    gamma_squared = float(levelled.model.gamma) ** 2
    assert level.positive / gamma_squared == pytest.approx(float(expected[0]), abs=1e-6)
    assert level.negative / gamma_squared == pytest.approx(float(expected[1]), abs=1e-6)
    threshold = float(expected[0] - expected[1])
    assert levelled.offsets_of(levelled.findings)[0] == pytest.approx(threshold, abs=1e-6)
    for answer in levelled.classify(image()).findings:
        assert answer.decision is (answer.margin > answer.offset)


def test_a_free_prompt_is_levelled_over_the_kept_bank_alone(levelled, changed):
    own = levelled.offsets_of(levelled.findings)
    answers = levelled.classify(image(), [*levelled.findings, HEART]).findings
    assert [item.offset for item in answers[:2]] == pytest.approx(own)
    positive, negative = levels(levelled, (*HEART.positive, *HEART.negative))
    assert answers[2].offset == pytest.approx(float(positive - negative), abs=1e-6)
    bare = build_predictor(changed(BANK_FILE, None), torch.device("cpu"))
    assert bare.offsets_of([*bare.findings, HEART]) == [*own, None]


def test_without_a_negative_prompt_the_level_of_the_positive_decides(levelled, changed):
    heart = Finding("heart", HEART.positive)
    level = float(levels(levelled, heart.positive)[0])
    regions = levelled.embed_images(random_images(6, 64))
    scores = levelled.model.score(regions, levelled.embed_sentences(heart.positive))[0]
    answers = [found for (found,) in levelled.classify_regions(regions, [heart])]
    assert [item.margin for item in answers] == pytest.approx((scores - level).tolist(), abs=1e-6)
    assert [item.decision for item in answers] == (scores > level).tolist()
    assert {(item.offset, item.threshold) for item in answers} == {(0.0, 0.5)}
    assert levelled.margins(regions, [heart])[0].tolist() == [item.margin for item in answers]
    grids = levelled.finding_grids(regions[:1], [heart])
    ((found,), _) = levelled.phrase_grids(regions[:1], heart.positive)[0]
    assert grids[0, 0] == pytest.approx(found, abs=1e-5)
    bare = build_predictor(changed(BANK_FILE, None), torch.device("cpu"))
    with pytest.raises(QueryError, match="finding 0 has no negative prompt, and this model no"):
        bare.classify(image(), [heart])


def test_an_image_is_ranked_among_those_of_the_bank(levelled):
    bank = read_bank(levelled.folder).float()
    for findings in (levelled.findings, (HEART,)):
        margins = levelled.margins(bank, findings)
        for image, own in enumerate(levelled.classify_regions(bank, findings)):
            lower = (margins < margins[:, image : image + 1]).sum(dim=1)
            assert [item.percentile for item in own] == pytest.approx((lower / 0.06).tolist())
    phrase = levelled.model.score(bank, levelled.embed_sentences(HEART.positive))[0]
    best = int(phrase.argmax())
    (grids,) = levelled.phrase_grids(bank[best][None], HEART.positive)
    assert grids.percentiles[0] >= 100 * 5 / 6 - 0.01  # its own copy may differ by rounding


@pytest.mark.parametrize(("name", "content"), [(OFFSETS_FILE, b"{}"), (BANK_FILE, b"nothing")])
def test_offsets_that_cannot_be_read_are_named(changed, name, content):
    with pytest.raises(CheckpointError, match=f"{name} of .* rerun train"):
        build_predictor(changed(name, content), torch.device("cpu"))


def test_ground_answers_in_pixels_of_the_original_image(predictor):
    found = predictor.ground(image(height=50, width=80), ["Pleural effusion", "Pneumonia"])
    assert len(found.phrases) == 2
    for grounding in found.phrases:
        row, column = np.unravel_index(np.array(grounding.grid).argmax(), (4, 4))
        assert (grounding.peak.x, grounding.peak.y) == ((column + 0.5) * 20, (row + 0.5) * 12.5)
        assert -1 <= grounding.peak.score <= 1


@pytest.mark.parametrize("name", ["mean", "spread", "input_px", "prepared_px", "voi", "equalize"])
def test_images_prepared_otherwise_than_in_training_are_refused(tmp_path, name):
    publish(tmp_path / "model", preprocessing={name: None})
    with pytest.raises(CheckpointError, match=f"preprocessing {name} = None"):
        load(tmp_path / "model", "cpu")


FILES = ("model.safetensors", "text/tokenizer.json", "text/config.json", BANK_FILE, OFFSETS_FILE)


@pytest.mark.parametrize("name", FILES)
def test_what_is_replaced_after_its_check_is_never_loaded(levelled, tmp_path, name):
    one = shutil.copytree(levelled.folder, tmp_path / "live")
    published = read_model_package(one)
    before = (one / name).read_bytes()
    (one / name).write_bytes(before + b" ")
    with pytest.raises(ArtifactCorrupt, match=f"{name} .* was replaced while model"):
        build_predictor(published, torch.device("cpu"))
    (one / name).write_bytes(before)  # taken back: the first model's files again
    assert build_predictor(published, torch.device("cpu")).digest == published.digest


def test_a_package_without_prompts_or_of_another_size_is_refused(predictor):
    published = read_model_package(predictor.folder)
    card = {name: fact for name, fact in published.card.items() if name != "prompts"}
    with pytest.raises(CheckpointError, match="no valid prompts"):
        build_predictor(replace(published, card=card), torch.device("cpu"))
    tree = published.config.model_dump()
    tree["model"]["similarity"]["dim"] = 32
    wider = replace(published, config=type(published.config).model_validate(tree))
    with pytest.raises(CheckpointError, match="do not fit"):
        build_predictor(wider, torch.device("cpu"))


@pytest.mark.parametrize("word", ["[MASK]", "[SEP]", "[PAD]", "[UNK]"])
def test_a_special_token_in_a_prompt_is_plain_text(predictor, word):
    plain = predictor.embed_sentences([f"effusion {word.lower()} left"])
    assert torch.equal(predictor.embed_sentences([f"effusion {word} left"]), plain)


def test_texts_that_are_cut_are_counted_once(predictor, caplog):
    predictor = load(predictor.folder, "cpu")
    limit = predictor.config.model.text.max_tokens
    long = [f"{'effusion ' * limit}{end}" for end in ("left", "right")]
    with caplog.at_level(logging.WARNING):
        predictor.embed_sentences(["Effusion", "effusion " * (limit - 2)])
        assert not caplog.records
        one, two = predictor.embed_sentences(long)
        predictor.embed_sentences(long)
    assert torch.equal(one, two)
    (record,) = caplog.records
    assert f"2 of 2 texts are longer than the {limit} word pieces" in record.getMessage()
    assert "effusion" not in record.getMessage()
