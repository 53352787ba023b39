from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_sample_image

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.inference import model_package
from medclip_dcl.inference.input_range import describe_pixels, fit_input_range, is_out_of_range
from medclip_dcl.synthetic.patients import draw_patient
from tests.support import unlike

SIZE_PX = 96


def resized(grey: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(grey).resize((SIZE_PX, SIZE_PX)))


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    """One image of each of 120 generated patients."""
    drawn = [draw_patient(number, 11)[0].draw(SIZE_PX).pixels for number in range(120)]
    return [resized(np.rint(pixels / pixels.max() * 255).astype(np.uint8)) for pixels in drawn]


def fitted(images: Sequence[np.ndarray], **settings: float) -> model_package.InputRange:
    """Fit to images of a patient each."""
    return fit_input_range(list(images), [f"p{row:03d}" for row in range(len(images))], **settings)


@pytest.fixture(scope="module")
def known(images: list[np.ndarray]) -> model_package.InputRange:
    return fitted(images)


def noise(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 64, 64), dtype=np.uint8)


def test_held_out_images_are_flagged_at_the_stated_rate_and_others_nearly_always(images, known):
    most = fitted(images[:70], rate=0.1)
    assert most.rate == 0.1
    flagged = [is_out_of_range(image, most) for image in images[70:]]
    assert len(flagged) == 50
    assert 0.01 <= np.mean(flagged) <= 0.25  # sd 0.04
    photographs = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    others = [np.asarray(Image.fromarray(photograph).convert("L")) for photograph in photographs]
    others += [noise(1, 0)[0], np.full((SIZE_PX, SIZE_PX), 128, dtype=np.uint8)]
    assert all(is_out_of_range(resized(other), known) for other in others)
    turned = [is_out_of_range(np.rot90(image).copy(), known) for image in images[:20]]
    assert np.mean(turned) > 0.9


@pytest.mark.parametrize("draw", [unlike.ct_slice, unlike.screenshot])
def test_slices_and_screenshots_are_flagged(draw, known):
    assert all(is_out_of_range(resized(draw(seed)), known) for seed in range(5))


def test_the_threshold_is_the_quantile_of_images_that_were_not_fitted_to() -> None:
    images = noise(40, 1)
    features, folds = np.stack([describe_pixels(image) for image in images]), np.arange(40) % 5
    held_back = [
        LedoitWolf().fit(features[folds != fold]).mahalanobis(features[folds == fold])
        for fold in range(5)
    ]
    # the 31st: ceil(41 x 0.75)
    assert fitted(images, rate=0.25).threshold == sorted(np.concatenate(held_back))[30]
    assert fitted(images).rate == pytest.approx(1 / 41)


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
    assert model_package.read_input_range(tmp_path) is None
    known = fitted(noise(6, 2))
    model_package.write_input_range(tmp_path, known)
    assert model_package.read_input_range(tmp_path) == known
    (tmp_path / model_package.INPUT_RANGE_FILE).write_text('{"mean": [1]}')
    with pytest.raises(CheckpointError, match="rerun train"):
        model_package.read_input_range(tmp_path)
