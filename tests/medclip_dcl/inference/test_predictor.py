"""Models that answer in Python: what is loaded, how they are asked, and what answers show."""

import hashlib
import io
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydicom import dcmread

from medclip_dcl.core.errors import (
    ArtifactCorrupt,
    CheckpointError,
    ConfigError,
    ImageError,
    QueryError,
)
from medclip_dcl.data.grayscale import grey_of_array
from medclip_dcl.data.images import open_any, open_image
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.inference.model_package import (
    BANK_FILE,
    OFFSETS_FILE,
    read_bank,
    read_model_package,
)
from medclip_dcl.inference.predictor import Predictor, build_predictor, load
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.likelihood.pll import encode_sentences
from medclip_dcl.schemas import ClassifyAnswer, RefusedImage
from tests.support.bert import tiny_tokenizer
from tests.support.dicom import dicom_bytes, ramp, raster_bytes
from tests.support.published import SENTENCES, add_heads, publish, random_range
from tests.support.tiny_models import random_images

HEART = Finding("heart", ("The heart is enlarged.",), ("Normal.",))
GREY = np.asarray(Image.fromarray(random_images(1)[0]).resize((48, 72)))
BEYOND = dicom_bytes(ramp(96, 64))
SETTINGS = ImagesConfig(size_px=64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """A model with heads and a range of images, without offsets."""
    folder = tmp_path_factory.mktemp("models") / "model"
    return load(add_heads(publish(folder, known=random_range(), centred=True), 16).path, "cpu")


@pytest.fixture(scope="module")
def levelled(tmp_path_factory) -> Predictor:
    """A model with a bank of six images."""
    folder = tmp_path_factory.mktemp("levelled") / "model"
    return load(publish(folder, bank=random_images(6, 64)).path, "cpu")


def rebuilt(model: Predictor, folder: Path, name: str, content: bytes | None = None) -> Predictor:
    """Build a model again in a folder, with other content of a file, or without the file."""
    shutil.copytree(model.folder, folder)
    saved = replace(read_model_package(folder), artifact=None)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    return build_predictor(saved, torch.device("cpu"))


def levels(predictor: Predictor, prompts: tuple[str, ...]) -> torch.Tensor:
    """Of each prompt the logarithm of the mean e^s over the bank, in units of scores."""
    scale, bank = float(predictor.model.gamma) ** 2, read_bank(predictor.folder).float()
    scores = predictor.model.score(bank, predictor.embed_sentences(prompts))
    return (scale * scores.double()).exp().mean(dim=1).log() / scale


def test_the_loaded_weights_are_the_published_ones_also_by_the_folder_of_a_run(model):
    stored = read_model_package(model.folder).weights()
    torch.testing.assert_close(model.model.state_dict(), stored, atol=0, rtol=0)
    assert load(str(model.folder.parent), "cpu").digest == model.digest


def test_sentences_come_in_any_series_and_keep_their_order_whatever_their_length(model):
    texts = [*SENTENCES, *SENTENCES[::-1]]
    texts += ["pleural " * (number % 9 + 1) + str(number) for number in range(150)]  # two passes
    together = model.embed_sentences(texts)
    for index in (0, 5, 13, 100, 163):
        (alone,) = model.embed_sentences([texts[index]])
        assert torch.allclose(together[index], alone, atol=1e-3)  # others are 0.28 apart
    (expected, _) = model.embed_sentences(["Edema", "No edema."])
    series = ("Edema",), np.array(["Edema"]), np.str_("Edema"), {"Edema": 1}, iter(["Edema"])
    for texts in series:
        assert torch.allclose(model.embed_sentences(texts)[0], expected, atol=1e-3), type(texts)


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
def test_what_is_no_sentence_is_refused_by_its_place(model, texts, rule):
    asked = model.embed_sentences, model.encode_text, lambda given: model.ground(GREY, given)
    for question in asked:
        with pytest.raises(QueryError, match=rule):
            question(texts)
    if "string" in rule:
        with pytest.raises(QueryError, match=rule):
            encode_sentences(tiny_tokenizer(), texts)


def test_classify_compares_the_two_prompts_and_without_offsets_decides_at_zero(model):
    answers = model.classify(GREY).findings
    regions = model.embed_images(model.square(GREY)[None])
    prompts = model.embed_sentences(["Pleural effusion", "No pleural effusion"])
    positive, negative = model.model.score(regions, prompts)[:, 0]
    assert answers[0].name == "effusion"
    assert answers[0].margin == pytest.approx(float(positive - negative), abs=1e-4)
    gamma_squared = float(model.model.gamma) ** 2
    assert model.offsets is None
    for answer in answers:
        assert answer.score == pytest.approx(1 / (1 + np.exp(-gamma_squared * answer.margin)))
        assert (answer.offset, answer.threshold) == (None, 0.5)
        assert answer.decision is (answer.margin > 0)


def test_the_package_keeps_the_levels_of_its_prompts_and_what_they_were_fitted_to(levelled):
    offsets, bank = levelled.offsets, read_bank(levelled.folder)
    assert (offsets.split, offsets.images) == ("validate", 6)
    names = "".join(f"image-{number}\n" for number in range(6))
    assert offsets.digest == hashlib.sha256(names.encode()).hexdigest()
    assert [item.finding for item in offsets.findings] == ["effusion", "pneumonia"]
    assert (bank.dtype, tuple(bank.shape)) == (torch.float16, (6, 4, 4, 16))
    level = offsets.findings[0]
    expected = levels(levelled, ("Pleural effusion", "No pleural effusion"))
    scaled = float(levelled.model.gamma) ** 2 * expected
    assert [level.positive, level.negative] == pytest.approx(scaled.tolist(), abs=1e-5)
    threshold = float(expected[0] - expected[1])
    assert levelled.offsets_of(levelled.findings)[0] == pytest.approx(threshold, abs=1e-6)
    for answer in levelled.classify(GREY).findings:
        assert answer.decision is (answer.margin > answer.offset)


def test_a_free_prompt_is_levelled_over_the_kept_bank_alone(levelled, tmp_path):
    own = levelled.offsets_of(levelled.findings)
    answers = levelled.classify(GREY, [*levelled.findings, HEART]).findings
    assert [item.offset for item in answers[:2]] == pytest.approx(own)
    positive, negative = levels(levelled, (*HEART.positive, *HEART.negative))
    assert answers[2].offset == pytest.approx(float(positive - negative), abs=1e-6)
    bare = rebuilt(levelled, tmp_path / "bare", BANK_FILE)
    assert bare.offsets_of([*bare.findings, HEART]) == [*own, None]


def test_without_a_negative_prompt_the_level_of_the_positive_decides(levelled, tmp_path):
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
    bare = rebuilt(levelled, tmp_path / "bare", BANK_FILE)
    with pytest.raises(QueryError, match="finding 0 has no negative prompt, and this model no"):
        bare.classify(GREY, [heart])


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
def test_offsets_that_cannot_be_read_are_named(levelled, tmp_path, name, content):
    with pytest.raises(CheckpointError, match=f"{name} of .* rerun train"):
        rebuilt(levelled, tmp_path / "damaged", name, content)


def test_ground_answers_in_pixels_of_the_original_image(model):
    grounded = model.ground(GREY, ["Pleural effusion", "Pneumonia"])  # 48 x 72 pixels
    assert len(grounded.phrases) == 2
    for grounding in grounded.phrases:
        row, column = np.unravel_index(np.array(grounding.grid).argmax(), (4, 4))
        assert (grounding.peak.x, grounding.peak.y) == ((column + 0.5) * 12, (row + 0.5) * 18)
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


def test_a_package_without_prompts_or_of_another_size_is_refused(model):
    published = read_model_package(model.folder)
    card = {name: fact for name, fact in published.card.items() if name != "prompts"}
    with pytest.raises(CheckpointError, match="no valid prompts"):
        build_predictor(replace(published, card=card), torch.device("cpu"))
    tree = published.config.model_dump()
    tree["model"]["similarity"]["dim"] = 32
    wider = replace(published, config=type(published.config).model_validate(tree))
    with pytest.raises(CheckpointError, match="do not fit"):
        build_predictor(wider, torch.device("cpu"))


@pytest.mark.parametrize("word", ["[MASK]", "[SEP]", "[PAD]", "[UNK]"])
def test_a_special_token_in_a_prompt_is_plain_text(model, word):
    plain = model.embed_sentences([f"effusion {word.lower()} left"])
    assert torch.equal(model.embed_sentences([f"effusion {word} left"]), plain)


def test_texts_that_are_cut_are_counted_once(model, caplog):
    predictor = load(model.folder, "cpu")
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


def test_any_form_of_an_image_is_the_same_image(tmp_path):
    data, path = raster_bytes(GREY, "PNG"), tmp_path / "image.png"
    path.write_bytes(data)
    expected, tensor = open_any(data, SETTINGS), torch.from_numpy(GREY.copy())
    for given in (
        path,
        np.str_(path),
        bytearray(data),
        io.BytesIO(data),
        Image.open(io.BytesIO(data)),
        GREY,
        GREY / 255.0,
        tensor.to(torch.bfloat16).requires_grad_(),
        tensor[None],  # of one channel
        open_image(data),
        expected,
    ):
        image = open_any(given, SETTINGS)
        assert np.array_equal(image.pixels, expected.pixels), type(given)
        assert (image.height_px, image.width_px) == (72, 48), type(given)


def test_colours_are_those_of_a_file():
    colours = np.stack([GREY, 255 - GREY, GREY // 2], axis=-1)
    expected = open_image(raster_bytes(colours, "PNG")).pixels
    for array in (colours, np.moveaxis(colours, -1, 0)):
        assert np.array_equal(grey_of_array(array).pixels, expected)
    turned = Image.Exif()
    turned[274] = 6  # orientation: a quarter turn
    data = raster_bytes(colours, "JPEG", exif=turned)
    opened = open_any(Image.open(io.BytesIO(data)), SETTINGS)
    assert np.array_equal(opened.pixels, open_any(data, SETTINGS).pixels)
    assert (opened.height_px, opened.width_px) == (48, 72)


@pytest.mark.parametrize(
    "mode", ["1", "LA", "La", "RGBA", "RGBa", "P", "CMYK", "YCbCr", "I;16", "I;16B", "I", "F"]
)
def test_every_mode_of_a_pillow_image_is_read(mode):
    wide = {"I;16": "<u2", "I;16B": ">u2"}.get(mode)
    image = Image.fromarray(GREY if wide is None else (GREY * np.uint16(257)).astype(wide))
    for step in {"La": ("LA", mode), "RGBa": ("RGBA", mode)}.get(mode, () if wide else (mode,)):
        image = image.convert(step)
    assert image.mode == mode
    pixels, expected = (open_any(item, SETTINGS).pixels for item in (image, GREY))
    assert pixels.std() > 10
    assert mode == "1" or abs(pixels.mean() - expected.mean()) < 3


def test_a_data_set_is_read_as_its_file_and_stays_as_it_was():
    data = dicom_bytes(ramp(), photometric="MONOCHROME1")
    data_set = dcmread(io.BytesIO(data))
    before = str(data_set)
    opened, expected = (open_any(one, SETTINGS) for one in (data_set, data))
    assert np.array_equal(opened.pixels, expected.pixels)
    assert (opened.source, opened.inverted, str(data_set)) == ("dicom", True, before)
    del data_set.file_meta
    with pytest.raises(ImageError, match="unreadable: the data set cannot be written as a file"):
        open_any(data_set, SETTINGS)


URL = r"a URL \(https:\), and none is fetched; download it"
NONE, EMPTY = "is not an image: give a path", "there is no image"


@pytest.mark.parametrize(
    ("given", "error", "rule"),
    [
        ("https://example.org/chest.png", QueryError, URL),
        ("s3://bucket/chest.dcm", QueryError, r"a URL \(s3:\)"),
        ("data:image/png;base64,AAAA", QueryError, r"a URL \(data:image\)"),
        (Path(), QueryError, "a folder; give its files"),
        (7, QueryError, NONE),
        (None, QueryError, NONE),
        ({"image": 1}, QueryError, NONE),
        ([7], QueryError, NONE),
        (io.StringIO("text"), QueryError, NONE),
        ([], QueryError, EMPTY),
        ((), QueryError, EMPTY),
        (np.zeros((0, 1, 8, 8)), QueryError, EMPTY),
        (np.full((8, 8), np.nan), ImageError, "finite"),
        (np.array([[0, np.inf]]), ImageError, "finite"),
        (np.full((8, 8), "a"), ImageError, "numbers"),
        (np.zeros((5, 8, 8)), ImageError, r"shape \(5, 8, 8\) is not one image"),
        (np.zeros(8), ImageError, r"shape \(8,\) is not one image"),
        (torch.zeros(9000, 9000, 1), ImageError, "too_many_pixels"),
    ],
)
def test_what_is_no_image_is_refused_by_rule_and_remedy(model, given, error, rule):
    for question in (model.classify, model.encode):
        with pytest.raises(error, match=rule):
            question(given)


def test_vectors_have_unit_length_and_the_shape_of_the_question(model, caplog):
    one, several = model.encode(GREY), model.encode([GREY, GREY])
    assert (one.shape, several.shape, one.dtype) == ((16,), (2, 16), np.float32)
    assert np.linalg.norm(several, axis=1) == pytest.approx([1, 1], abs=1e-6)
    regions = model.embed_images(model.square(GREY)[None])[0].mean(dim=(0, 1)).numpy()
    assert one == pytest.approx(regions / np.linalg.norm(regions), abs=1e-6)
    assert model.encode_text("Effusion").shape == (16,)
    assert model.encode_text(["Effusion"]).shape == (1, 16)
    with caplog.at_level(logging.WARNING):
        model.encode(BEYOND)
    assert "1 of 1 images: the image is unlike those" in caplog.text
    with pytest.raises(ImageError, match="unknown_format: image 1, counted from 0"):
        model.encode([GREY, b"GIF89a"])
    with pytest.raises(ImageError, match="missing: image 0, counted"):  # paths, as of a column
        model.encode(np.array(["a.png", "b.png"]))
    images = random_images(3, 64)
    for axis in (1, 3):
        vectors = model.encode(np.expand_dims(images, axis))
        assert np.allclose(vectors, [model.encode(image) for image in images], atol=1e-5)


@pytest.mark.parametrize(
    "asked", [{"device": "gpu"}, {"device": ""}, {"engine": "onnx"}, {"precision": "bf16"}]
)
def test_what_a_model_cannot_run_on_is_refused_in_words(model, asked):
    with pytest.raises(ConfigError, match=f"{next(iter(asked))} '.*devices are cpu and"):
        load(model.folder, **asked)


def test_out_of_range_no_probability_is_given_and_the_table_says_so(model, levelled):
    assert not levelled.is_out_of_range(np.zeros((64, 64), dtype=np.uint8))  # it has no range
    inside, beyond = model.classify([random_images(1, 64)[0], BEYOND])
    assert (inside.image.is_out_of_range, beyond.image.is_out_of_range) == (False, True)
    assert 0 < inside["tuberculosis"].probability < 1
    assert {item.probability for item in (*beyond.findings, *beyond.heads)} == {None}
    assert beyond["effusion"].score > 0  # the scores stay, the flag says what they are worth
    assert "OUT OF RANGE: the image is unlike" in str(beyond)
    assert "OUT OF RANGE" in beyond._repr_html_()
    assert "OUT OF RANGE" not in str(inside)
    grounded = model.ground(BEYOND, "Effusion")
    assert grounded.image.is_out_of_range
    assert "OUT OF RANGE" in str(grounded)


def test_answers_are_those_of_their_schema(model):
    answer = model.classify(GREY, explain=True)
    assert ClassifyAnswer.model_validate_json(answer.model_dump_json()) == answer
    assert answer["effusion"] is answer.findings[0]
    with pytest.raises(KeyError, match=r"mass is not among the answers; choose of .*effusion"):
        answer["mass"]
    heat = np.array(answer["effusion"].heatmap)
    (found,) = model.ground(GREY, "Pleural effusion").phrases
    assert heat == pytest.approx(np.array(found.grid), abs=2e-5)


def test_several_images_have_an_answer_each_and_one_that_is_refused_its_place(model):
    images = [*random_images(17, 64), b"GIF89a"]  # more than go together
    answers = model.classify(iter(images), "effusion")
    assert isinstance(answers[17], RefusedImage)
    alone = model.classify(images[16], "effusion")
    assert answers[16]["effusion"].margin == pytest.approx(alone["effusion"].margin, abs=1e-5)
    rows = answers.rows()
    assert [row["image"] for row in rows] == [*np.repeat(range(17), 3), 17]
    assert rows[-1] == {"image": 17, "flags": "refused: unknown_format"}
    assert str(answers).splitlines()[-1].split(maxsplit=1)[1].startswith("refused: unknown_format")
    with pytest.raises(ImageError, match="unknown_format"):
        model.classify(b"GIF89a")


def test_answers_show_as_tables_and_pictures_and_escape_what_was_asked(model):
    html = model.ground([GREY], ["<b>effusion</b>", "Heart"])[0]._repr_html_()
    assert html.count('<img src="data:image/png;base64,') == 2
    assert "<td>&lt;b&gt;effusion&lt;/b&gt;</td>" in html
    many = model.classify([GREY] * 40, "effusion")
    assert "<img" in many[31]._repr_html_()
    assert "<img" not in many[32]._repr_html_()  # pictures of a long list would fill the memory
    assert many._repr_html_().count("<tr>") == 121  # two heads
    assert str(model.ground(GREY, SENTENCES[0])).splitlines()[2].startswith(SENTENCES[0])


def test_a_model_says_what_it_is(model):
    lines = repr(model).splitlines()
    assert lines[0] == f"model {model.digest[:12]}"
    facts = dict(line.strip().split(maxsplit=1) for line in lines[1:])
    assert facts["images"] == "resnet, 64 px, read at 64 px"
    assert facts["text"].startswith("bert, ")
    assert facts["space"].startswith("16 numbers")
    assert facts["findings"] == "effusion, pneumonia (0 calibrated)"
    assert facts["heads"] == "tuberculosis, tube"
    assert facts["runs"] == "torch float32 on cpu"


def test_what_is_no_package_says_what_to_do(tmp_path):
    for name in ("microsoft/BiomedVLP-BioViL-T", "nowhere"):
        with pytest.raises(ConfigError, match="OWNER/NAME@COMMIT; `medclip adopt` makes a model"):
            load(name)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a checkpoint, and no model package"):
        load(tmp_path)
