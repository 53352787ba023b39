"""Labels of real images: patients stay together, and a label that means nothing gives chance."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.method.real_images import labels
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.errors import QueryError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.inference.prompts import Finding
from testing.dicom import raster_bytes

TRUTH = np.arange(60) % 2
PATIENTS = [f"p{image}" for image in range(60)]


def folds() -> np.ndarray:
    return labels.split_patients(TRUTH, PATIENTS, np.random.default_rng(0))


def test_patients_stay_whole_and_classes_even() -> None:
    truth = np.repeat([0, 1], 40)
    subjects = [f"p{image // 2}" for image in range(80)]  # two images a patient
    found = labels.split_patients(truth, subjects, np.random.default_rng(1))
    assert (found[0::2] == found[1::2]).all()
    for label in (0, 1):
        assert np.bincount(found[truth == label]).tolist() == [8] * labels.FOLDS
    again = labels.split_patients(truth, subjects, np.random.default_rng(2))
    assert (found != again).any()


def test_label_that_the_features_hold_is_read_and_a_shuffled_one_is_not() -> None:
    noise = np.random.default_rng(0).normal(size=(60, 6))
    features = np.column_stack([TRUTH * 4.0 + noise[:, 0], noise[:, 1:]])
    found = labels.probed_auc(features, TRUTH, folds(), PATIENTS, BootstrapOptions(50, 0))
    assert found.value > 0.97
    assert (found.n, found.subjects) == (60, 60)
    dealt = labels.shuffled_aucs(features, TRUTH, folds(), 2, 0)
    assert dealt.shape == (2,)
    assert abs(dealt.mean() - 0.5) < 0.1
    assert dealt.max() < found.value


def test_images_that_fit_a_probe_never_judge_it() -> None:
    """A feature that names each image says nothing of another."""
    names = np.eye(60)
    found = labels.probed_auc(names, TRUTH, folds(), PATIENTS, BootstrapOptions(0, 0))
    assert found.value == pytest.approx(0.5)


def test_images_come_through_the_gate_with_their_labels(tmp_path: Path) -> None:
    bright = np.full((20, 40), 200, dtype=np.uint8)
    bright[:, :20] = 10
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(raster_bytes(bright, "png"))
    (tmp_path / "manifest.csv").write_text(
        "file,label,patient_id\na.png,normal,p1\nb.png,pneumonia,p2\n"
    )
    found = labels.read_labelled_images(tmp_path, ImagesConfig(size_px=64))
    assert found.labels.tolist() == [0, 1]
    assert found.subject_ids == ("p1", "p2")
    assert found.sizes_px == ((20, 40), (20, 40))
    assert (found.pixels.shape, found.thumbnails.shape) == ((2, 64, 64), (2, 1024))
    grey = found.thumbnails[0].reshape(32, 32)
    assert (grey[:, 0].max(), grey[:, -1].min()) == (0, 255)


def test_model_without_the_prompts_is_refused() -> None:
    effusion = Finding("effusion", ("a",), ("b",), "Pleural Effusion")
    assert labels.finding_of([effusion], "Pleural Effusion") is effusion
    with pytest.raises(QueryError, match="Pneumonia"):
        labels.finding_of([effusion], "Pneumonia")
