"""Answers in Python: any form of an image, any form of a question, and what they show."""

import io
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydicom import dcmread

from medclip_dcl.core.errors import ConfigError, ImageError, QueryError
from medclip_dcl.data.grayscale import grey_of_array
from medclip_dcl.data.images import open_any, open_image
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.inference.predictor import load
from medclip_dcl.schemas import ClassifyAnswer, RefusedImage
from tests.support.dicom import dicom_bytes, ramp, raster_bytes
from tests.support.published import SENTENCES, add_heads, publish, random_range
from tests.support.tiny_models import random_images

GREY = np.asarray(Image.fromarray(random_images(1)[0]).resize((48, 72)))
BEYOND = dicom_bytes(ramp(96, 64))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    return load(add_heads(publish(folder, known=random_range(), centred=True), 16).path, "cpu")


SETTINGS = ImagesConfig(size_px=64)


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
    assert (model.encode_text("Effusion").shape, model.encode_text(["Effusion"]).shape) == (
        (16,), (1, 16)
    )  # fmt: skip
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


def test_out_of_range_no_probability_is_given_and_the_table_says_so(model):
    inside, beyond = model.classify([random_images(1, 64)[0], BEYOND])
    assert (inside.image.is_out_of_range, beyond.image.is_out_of_range) == (False, True)
    assert inside["tuberculosis"].probability is not None
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
