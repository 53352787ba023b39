import hashlib
import logging
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from medclip_dcl.core.errors import ArtifactCorrupt, CheckpointError, QueryError
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.inference.model_package import (
    BANK_FILE,
    OFFSETS_FILE,
    read_bank,
    read_model_package,
)
from medclip_dcl.inference.predictor import build_predictor, load
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.likelihood.pll import encode_sentences
from tests.support.bert import tiny_tokenizer
from tests.support.published import SENTENCES, publish
from tests.support.tiny_models import random_images


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return publish(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def predictor(artifact):
    return load(artifact.path, "cpu")


def image(height=50, width=80):
    pixels = np.random.default_rng(0).integers(0, 65536, (height, width)).astype(np.uint16)
    return GreyImage(pixels=pixels, bits_stored=16, source="png")


def test_the_loaded_weights_are_the_published_ones_also_by_the_folder_of_a_run(artifact, predictor):
    stored = read_model_package(artifact.path).weights()
    for name, tensor in predictor.model.state_dict().items():
        assert torch.equal(tensor, stored[name]), name
    assert load(str(artifact.path.parent), "cpu").digest == predictor.digest


def test_an_image_s_vectors_do_not_depend_on_its_batch(predictor):
    images = random_images(5)
    together = predictor.embed_images(images)
    alone = torch.cat([predictor.embed_images(image[None]) for image in images])
    assert together.shape == (5, 4, 4, 16)
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(together.norm(dim=-1), torch.ones(5, 4, 4), atol=1e-5)


def test_sentences_keep_their_order_whatever_their_length(predictor):
    texts = [*SENTENCES, *SENTENCES[::-1]]
    texts += ["pleural " * (number % 9 + 1) + str(number) for number in range(150)]  # two passes
    together = predictor.embed_sentences(texts)
    for index in (0, 5, 13, 100, 163):
        alone = predictor.embed_sentences([texts[index]])
        assert torch.allclose(together[index], alone[0], atol=1e-5)


@pytest.mark.parametrize(
    "texts",
    [("Edema",), np.array(["Edema"]), np.str_("Edema"), {"Edema": 1}, iter(["Edema"])],
    ids=lambda texts: type(texts).__name__,
)
def test_sentences_may_come_in_any_series(predictor, texts):
    (expected,) = predictor.embed_sentences(["Edema", "No edema."])[:1]
    assert torch.allclose(predictor.embed_sentences(texts)[0], expected, atol=1e-6)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    "texts", [b"Edema", ["Edema", None], ["Edema", float("nan")], None, [["Edema"]], 7]
)
def test_what_is_not_a_string_is_refused_by_its_place(predictor, texts):
    place = 1 if isinstance(texts, list) and len(texts) == 2 else 0
    with pytest.raises(QueryError, match=f"text {place} is not a string; leave missing texts out"):
        predictor.embed_sentences(texts)
    with pytest.raises(QueryError, match=f"text {place} is not a string"):
        encode_sentences(tiny_tokenizer(), texts)


def test_classify_compares_the_two_prompts(predictor):
    picture = image()
    answer = predictor.classify(picture).findings[0]
    regions = predictor.embed_images(predictor.square(picture)[None])
    positive, negative = predictor.model.score(
        regions, predictor.embed_sentences(["Pleural effusion", "No pleural effusion"])
    )[:, 0]
    assert answer.name == "effusion"
    assert answer.margin == pytest.approx(float(positive - negative), abs=1e-6)
    gamma_squared = float(predictor.model.gamma) ** 2
    assert answer.score == pytest.approx(1 / (1 + np.exp(-gamma_squared * answer.margin)))
    assert answer.decision is (answer.margin > 0)


@pytest.fixture(scope="module")
def levelled(tmp_path_factory):
    """A model with a bank of six images."""
    folder = tmp_path_factory.mktemp("levelled") / "model"
    publish(folder, bank=random_images(6, 64))
    return folder


def test_the_package_keeps_the_levels_of_its_prompts_and_what_they_were_fitted_to(levelled):
    predictor, model = load(levelled, "cpu"), read_model_package(levelled)
    offsets = predictor.offsets
    assert (offsets.split, offsets.images) == ("validate", 6)
    names = "".join(f"image-{number}\n" for number in range(6))
    assert offsets.digest == hashlib.sha256(names.encode()).hexdigest()
    assert [item.finding for item in offsets.findings] == ["effusion", "pneumonia"]
    bank = read_bank(model.path)
    assert (bank.dtype, tuple(bank.shape)) == (torch.float16, (6, 4, 4, 16))

    # "Pneumonia" and "Right lower lobe pneumonia": scores first averaged, then levelled
    texts = ["Pneumonia", "Right lower lobe pneumonia", "No signs of pneumonia"]
    gamma_squared = float(predictor.model.gamma) ** 2
    scores = predictor.model.score(bank.float(), predictor.embed_sentences(texts)).double()
    positive, negative = gamma_squared * scores[:2].mean(dim=0), gamma_squared * scores[2]
    level = offsets.findings[1]
    assert float((positive - level.positive).exp().mean()) == pytest.approx(1, abs=1e-6)
    assert float((negative - level.negative).exp().mean()) == pytest.approx(1, abs=1e-6)
    threshold = (level.positive - level.negative) / gamma_squared
    assert predictor.offsets_of(predictor.findings)[1] == pytest.approx(threshold, rel=1e-6)
    answer = predictor.classify(image()).findings[1]
    assert answer.offset == pytest.approx(threshold, rel=1e-6)
    assert answer.decision is (answer.margin > threshold)


def test_a_free_prompt_is_levelled_over_the_kept_bank_alone(levelled, tmp_path):
    predictor = load(levelled, "cpu")
    known = predictor.classify(image()).findings
    asked = [*predictor.findings, Finding("heart", ("The heart is enlarged.",), ("Normal.",))]
    answers = predictor.classify(image(), asked).findings
    assert [item.offset for item in answers[:2]] == pytest.approx([item.offset for item in known])
    bank = read_bank(levelled).float()
    scores = predictor.model.score(
        bank, predictor.embed_sentences(["The heart is enlarged.", "Normal."])
    )
    gamma_squared = float(predictor.model.gamma) ** 2
    levels = (gamma_squared * scores.double()).exp().mean(dim=1).log() / gamma_squared
    assert answers[2].offset == pytest.approx(float(levels[0] - levels[1]), abs=1e-6)
    shutil.copytree(levelled, tmp_path / "model")
    (tmp_path / "model" / BANK_FILE).unlink()
    model = replace(read_model_package(levelled), path=tmp_path / "model", artifact=None)
    predictor = build_predictor(model, torch.device("cpu"))
    other = Finding("heart", ("The heart is enlarged.",), ("Normal.",))
    own = load(levelled, "cpu").offsets_of(predictor.findings)
    assert predictor.offsets_of([*predictor.findings, other]) == [*own, None]


def test_without_a_negative_prompt_the_level_of_the_positive_decides(levelled, tmp_path):
    predictor = load(levelled, "cpu")
    heart = Finding("heart", ("The heart is enlarged.",))
    gamma_squared = float(predictor.model.gamma) ** 2
    bank, texts = read_bank(levelled).float(), predictor.embed_sentences(heart.positive)
    scaled = gamma_squared * predictor.model.score(bank, texts)[0].double()
    level = float(scaled.exp().mean().log()) / gamma_squared
    regions = predictor.embed_images(random_images(6, 64))
    scores = predictor.model.score(regions, texts)[0]
    answers = [found for (found,) in predictor.classify_regions(regions, [heart])]
    assert [item.margin for item in answers] == pytest.approx((scores - level).tolist(), abs=1e-6)
    assert [item.decision for item in answers] == (scores > level).tolist()
    assert {(item.offset, item.threshold) for item in answers} == {(0.0, 0.5)}
    assert predictor.margins(regions, [heart])[0].tolist() == [item.margin for item in answers]
    grids = predictor.finding_grids(regions[:1], [heart])
    ((found,), _) = predictor.phrase_grids(regions[:1], heart.positive)[0]
    assert grids[0, 0] == pytest.approx(found, abs=1e-5)

    shutil.copytree(levelled, tmp_path / "model")
    (tmp_path / "model" / BANK_FILE).unlink()
    model = replace(read_model_package(levelled), path=tmp_path / "model", artifact=None)
    with pytest.raises(QueryError, match="finding 0 has no negative prompt, and this model no"):
        build_predictor(model, torch.device("cpu")).classify(image(), [heart])


def test_an_image_is_ranked_among_those_of_the_bank(levelled):
    predictor = load(levelled, "cpu")
    bank = read_bank(levelled).float()
    asked = (Finding("heart", ("The heart is enlarged.",), ("Heart size is normal.",)),)
    for findings in (predictor.findings, asked):
        margins = predictor.margins(bank, findings)
        scores = predictor.classify_regions(bank, findings)
        for image, own in enumerate(scores):
            for row, score in enumerate(own):
                lower = (margins[row] < margins[row, image]).sum()
                assert score.percentile == pytest.approx(100 * float(lower) / 6)
    vectors = predictor.embed_sentences(["The heart is enlarged."])
    phrase = predictor.model.score(bank, vectors)[0]
    best = int(phrase.argmax())
    (grids,) = predictor.phrase_grids(bank[best][None], ["The heart is enlarged."])
    assert grids.percentiles[0] >= 100 * 5 / 6 - 0.01  # its own copy may differ by rounding


def test_a_model_that_was_published_without_offsets_decides_at_zero(predictor):
    assert predictor.offsets is None
    for answer in predictor.classify(image()).findings:
        assert (answer.offset, answer.threshold) == (None, 0.5)
        assert answer.decision is (answer.margin > 0)


@pytest.mark.parametrize(("name", "content"), [(OFFSETS_FILE, b"{}"), (BANK_FILE, b"nothing")])
def test_offsets_that_cannot_be_read_are_named(levelled, tmp_path, name, content):
    shutil.copytree(levelled, tmp_path / "model")
    (tmp_path / "model" / name).unlink()
    (tmp_path / "model" / name).write_bytes(content)
    model = replace(read_model_package(levelled), path=tmp_path / "model", artifact=None)
    with pytest.raises(CheckpointError, match=f"{name} of .* rerun train"):
        build_predictor(model, torch.device("cpu"))


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
    one = shutil.copytree(levelled, tmp_path / "live")
    published = read_model_package(one)
    before = (one / name).read_bytes()
    (one / name).write_bytes((one / name).read_bytes() + b" ")
    with pytest.raises(ArtifactCorrupt, match=f"{name} .* was replaced while model"):
        build_predictor(published, torch.device("cpu"))
    (one / name).write_bytes(before)  # taken back: the first model's files again
    assert build_predictor(published, torch.device("cpu")).digest == published.digest


def test_a_package_without_prompts_or_of_another_size_is_refused(artifact):
    published = read_model_package(artifact.path)
    card = {name: fact for name, fact in published.card.items() if name != "prompts"}
    bare = type(published)(**{**vars(published), "card": card})
    with pytest.raises(CheckpointError, match="no valid prompts"):
        build_predictor(bare, torch.device("cpu"))
    model = published.config.model
    wider = model.model_copy(update={"similarity": model.similarity.model_copy(update={"dim": 32})})
    other = published.config.model_copy(update={"model": wider})
    with pytest.raises(CheckpointError, match="do not fit"):
        build_predictor(
            type(published)(**{**vars(published), "config": other}), torch.device("cpu")
        )


@pytest.mark.parametrize("word", ["[MASK]", "[SEP]", "[PAD]", "[UNK]"])
def test_a_special_token_in_a_prompt_is_plain_text(predictor, word):
    plain = predictor.embed_sentences([f"effusion {word.lower()} left"])
    assert torch.equal(predictor.embed_sentences([f"effusion {word} left"]), plain)


def test_texts_that_are_cut_are_counted_once(artifact, caplog):
    predictor = load(artifact.path, "cpu")
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
