from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_sample_image

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.inference.input_range import describe_pixels, fit_input_range, is_out_of_range
from medclip_dcl.inference.model_package import (
    INPUT_RANGE_FILE,
    InputRange,
    read_input_range,
    write_input_range,
)
from medclip_dcl.inference.predictor import load
from medclip_dcl.synthetic.patients import NATURAL, draw_patient
from tests.support import unlike
from tests.support.published import publish
from tests.support.tiny_models import random_images

SIZE_PX = 96


def generated(patients: range) -> tuple[list[npt.NDArray[np.uint8]], list[str]]:
    images, names = [], []
    for number in patients:
        patient = draw_patient(NATURAL, number, 11)
        pixels = next(patient.items()).draw(SIZE_PX).pixels
        grey = Image.fromarray(np.rint(pixels / pixels.max() * 255).astype(np.uint8))
        images.append(np.asarray(grey.resize((SIZE_PX, SIZE_PX))))
        names.append(patient.subject_id)
    return images, names


@pytest.fixture(scope="module")
def images() -> tuple[list[npt.NDArray[np.uint8]], list[str]]:
    return generated(range(120))


@pytest.fixture(scope="module")
def known(images: tuple[list[npt.NDArray[np.uint8]], list[str]]) -> InputRange:
    return fit_input_range(*images)


def test_held_out_images_are_flagged_at_about_the_stated_rate_and_other_pictures_nearly_always(
    images, known
):
    fitted = fit_input_range(images[0][:70], images[1][:70], rate=0.1)
    assert fitted.rate == 0.1
    flagged = [is_out_of_range(image, fitted) for image in images[0][70:]]
    assert len(flagged) == 50
    assert 0.01 <= np.mean(flagged) <= 0.25  # sd 0.04
    for name in ("china.jpg", "flower.jpg"):
        photograph = Image.fromarray(load_sample_image(name)).convert("L")
        assert is_out_of_range(np.asarray(photograph.resize((SIZE_PX, SIZE_PX))), known)
    noise = np.random.default_rng(0).integers(0, 256, (SIZE_PX, SIZE_PX), dtype=np.uint8)
    assert is_out_of_range(noise, known)
    assert is_out_of_range(np.full((SIZE_PX, SIZE_PX), 128, dtype=np.uint8), known)
    turned = [is_out_of_range(np.rot90(image).copy(), known) for image in images[0][:20]]
    assert np.mean(turned) > 0.9


@pytest.mark.parametrize("kind", unlike.KINDS)
def test_slices_and_screenshots_are_flagged(kind, known):
    for seed in range(5):
        other = Image.fromarray(unlike.KINDS[kind](seed)).resize((SIZE_PX, SIZE_PX))
        assert is_out_of_range(np.asarray(other), known)


def test_the_threshold_is_the_quantile_of_images_that_were_not_fitted_to() -> None:
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (64, 64), dtype=np.uint8) for _ in range(40)]
    names = [f"p{number:02d}" for number in range(40)]
    known = fit_input_range(images, names, rate=0.25)
    features, folds = np.stack([describe_pixels(image) for image in images]), np.arange(40) % 5
    held_back = [
        LedoitWolf().fit(features[folds != fold]).mahalanobis(features[folds == fold])
        for fold in range(5)
    ]
    assert known.threshold == sorted(np.concatenate(held_back))[30]  # the 31st: ceil(41 x 0.75)
    assert fit_input_range(images, names).rate == pytest.approx(1 / 41)


def test_features_of_a_ramp_are_edges_of_one_direction_everywhere() -> None:
    ramp = np.tile(np.arange(0, 192, 2, dtype=np.uint8), (96, 1))
    features = describe_pixels(ramp)
    edges = features[:96].reshape(16, 6)
    np.testing.assert_allclose(edges[:, 0], 1, atol=0.02)  # a sixteenth in each cell
    np.testing.assert_allclose(edges[:, 1:], 0)
    steps = np.exp(features[96:100]) - 1e-3
    np.testing.assert_allclose(steps, np.array([1, 2, 4, 8]) / 255, rtol=1e-6)
    np.testing.assert_allclose(features[103], 95 / 255)  # the median
    turned = describe_pixels(np.ascontiguousarray(ramp.T))[:96].reshape(16, 6)
    np.testing.assert_allclose(turned[:, 3], 1, atol=0.02)


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
