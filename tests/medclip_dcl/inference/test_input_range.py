from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from benchmarks.fixtures.published import publish
from benchmarks.fixtures.tiny_models import random_images
from medclip_dcl.data.synthetic.patients import NATURAL, draw_patient
from medclip_dcl.data.synthetic.settings import GenerateConfig
from medclip_dcl.errors import CheckpointError, QueryError
from medclip_dcl.inference import load
from medclip_dcl.input_range import describe_image, fit_input_range, is_out_of_range
from medclip_dcl.model_package import INPUT_RANGE_FILE, read_input_range, write_input_range

SIZE_PX = 96


def generated(patients: range) -> tuple[list[npt.NDArray[np.uint8]], list[str]]:
    images, names = [], []
    for number in patients:
        patient = draw_patient(NATURAL, number, 11, GenerateConfig())
        pixels = next(patient.items()).draw(SIZE_PX).pixels
        grey = Image.fromarray(np.rint(pixels / pixels.max() * 255).astype(np.uint8))
        images.append(np.asarray(grey.resize((SIZE_PX, SIZE_PX))))
        names.append(patient.subject_id)
    return images, names


@pytest.fixture(scope="module")
def images() -> tuple[list[npt.NDArray[np.uint8]], list[str]]:
    return generated(range(360))


def test_held_out_images_are_flagged_at_about_the_stated_rate(
    images: tuple[list[npt.NDArray[np.uint8]], list[str]],
) -> None:
    known = fit_input_range(images[0][:240], images[1][:240], rate=0.1)
    assert known.rate == 0.1
    flagged = [is_out_of_range(image, known) for image in images[0][240:]]
    assert len(flagged) > 100
    assert 0.01 <= np.mean(flagged) <= 0.25  # the threshold comes from 120 images: sd about 0.04


def test_photographs_noise_and_turned_images_are_flagged(
    images: tuple[list[npt.NDArray[np.uint8]], list[str]],
) -> None:
    known = fit_input_range(images[0], images[1])
    for name in ("china.jpg", "flower.jpg"):
        photograph = Image.fromarray(load_sample_image(name)).convert("L")
        assert is_out_of_range(np.asarray(photograph.resize((SIZE_PX, SIZE_PX))), known)
    noise = np.random.default_rng(0).integers(0, 256, (SIZE_PX, SIZE_PX), dtype=np.uint8)
    assert is_out_of_range(noise, known)
    assert is_out_of_range(np.full((SIZE_PX, SIZE_PX), 128, dtype=np.uint8), known)
    turned = [is_out_of_range(np.rot90(image).copy(), known) for image in images[0][:20]]
    assert np.mean(turned) > 0.9


def test_the_threshold_is_the_quantile_of_images_that_were_not_fitted_to() -> None:
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (64, 64), dtype=np.uint8) for _ in range(40)]
    names = [f"p{number:02d}" for number in range(40)]
    known = fit_input_range(images, names, rate=0.25)
    held_back = images[1::2]
    beyond = sum(is_out_of_range(image, known) for image in held_back)
    assert beyond == 4  # the 16th of 20 is the threshold: ceil(21 x 0.75) = 16
    assert fit_input_range(images, names).rate == pytest.approx(1 / 21)


def test_features_of_a_ramp_are_its_block_means_and_no_more_detail_than_it_has() -> None:
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))
    features = describe_image(ramp)
    np.testing.assert_allclose(features[:8], [(32 * block + 14) / 255 for block in range(8)])
    np.testing.assert_allclose(np.exp(features[64]) - 1e-3, 2 / 255, rtol=1e-6)


def test_one_patient_is_too_few() -> None:
    with pytest.raises(QueryError, match="two patients"):
        fit_input_range([np.zeros((64, 64), dtype=np.uint8)] * 3, ["one"] * 3)


def test_a_range_is_read_as_it_was_written_and_damage_is_named(tmp_path: Path) -> None:
    assert read_input_range(tmp_path) is None
    rng = np.random.default_rng(2)
    images = [rng.integers(0, 256, (64, 64), dtype=np.uint8) for _ in range(6)]
    known = fit_input_range(images, list("abcdef"))
    write_input_range(tmp_path, known)
    assert read_input_range(tmp_path) == known
    (tmp_path / INPUT_RANGE_FILE).write_text('{"mean": [1]}')
    with pytest.raises(CheckpointError, match="rerun train"):
        read_input_range(tmp_path)


def test_a_published_model_flags_what_its_range_leaves_out(tmp_path: Path) -> None:
    images = random_images(60)
    known = fit_input_range(list(images), [str(number) for number in range(60)])
    publish(tmp_path / "model", known=known)
    model = load(tmp_path / "model", "cpu")
    flat = np.zeros_like(images[0])
    assert model.is_out_of_range(flat)
    assert sum(model.is_out_of_range(image) for image in random_images(40, seed=9)) <= 8
    publish(tmp_path / "older")
    assert not load(tmp_path / "older", "cpu").is_out_of_range(flat)
