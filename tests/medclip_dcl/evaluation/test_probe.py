import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import matthews_corrcoef

from medclip_dcl.core.errors import MetricError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.classification import UNKNOWN
from medclip_dcl.evaluation.evaluated_model import EncodedImages
from medclip_dcl.evaluation.operating_point import ThresholdRule
from medclip_dcl.evaluation.probe import (
    Labelled,
    _folds,
    draw_labelled,
    evaluate_probe,
    linear_probe,
)
from medclip_dcl.evaluation.results import PROBES
from medclip_dcl.inference.prompts import Finding

FINDINGS = (Finding("fluid", ("Fluid.",), ("Normal.",)), Finding("cyst", ("Cyst.",), ("Normal.",)))
FRACTIONS = (0.1, 1.0)


def images(count, seed, noise=0.3):
    """Images whose first axis grows with `fluid`; `cyst` cannot be seen."""
    generator = np.random.default_rng(seed)
    truth = np.stack([np.arange(count) % 2, generator.permutation(np.arange(count) % 2)])
    vectors = noise * generator.standard_normal((count, 2, 2, 5))
    vectors[..., 0] += truth[0][:, None, None]
    names = tuple(f"image-{seed}-{number}" for number in range(count))
    shown = EncodedImages(names, names, ((10, 10),) * count, torch.from_numpy(vectors).float())
    return shown, truth.astype(np.int8)


@pytest.fixture(scope="module")
def probed():
    splits = [images(100, 0), images(50, 2), images(40, 3)]
    return evaluate_probe(splits, FINDINGS, FRACTIONS, BootstrapOptions(20, 0), ThresholdRule())


def test_a_probe_finds_what_features_hold_and_no_more(probed):
    outcome, _, rows = probed
    assert list(outcome.groups) == ["0.1", "1"]
    assert set(rows[0]) == set(PROBES.schema.names)
    assert len(rows) == 50 * 2 * (3 + 1)  # images x findings x draws
    drawn = {(row["fraction"], row["draw"]) for row in rows}
    assert drawn == {(0.1, 0), (0.1, 1), (0.1, 2), (1.0, 0)}
    by_finding = {
        name: [row for row in rows if (row["finding"], row["fraction"]) == (name, 1.0)]
        for name in ("fluid", "cyst")
    }
    right = {
        name: np.mean([(row["margin"] > 0) == row["truth"] for row in found])
        for name, found in by_finding.items()
    }
    assert right["fluid"] == 1.0
    assert 0.2 < right["cyst"] < 0.8


def test_the_figure_is_the_mean_over_findings_with_its_interval(probed):
    figure = probed[0].groups["1"]["mean_auc"]
    assert 0.6 < figure.value < 0.85  # one finding at 1, the other by chance
    assert figure.low <= figure.value <= figure.high
    assert probed[0].chance["0.1.mean_auc"] == 0.5


def test_decisions_of_a_probe_are_those_of_its_rows_with_all_labels(probed):
    _, decisions, rows = probed
    rows = [row for row in rows if (row["finding"], row["fraction"]) == ("fluid", 1.0)]
    called = [row["margin"] >= row["threshold"] for row in rows]
    expected = matthews_corrcoef([row["truth"] for row in rows], called)
    assert decisions.groups["fluid"]["mcc"].value == pytest.approx(expected, abs=1e-9)
    assert decisions.groups["fluid"]["threshold"].value == rows[0]["threshold"]
    assert decisions.groups["fluid"]["threshold"].n == 40


def test_a_finding_that_lacks_a_class_anywhere_is_left_out():
    splits = [images(60, 0), images(50, 2), images(0, 3)]
    splits[1][1][1] = UNKNOWN
    splits[1][1][0, 0] = UNKNOWN  # one image, which leaves the finding both classes
    _, decisions, rows = evaluate_probe(
        splits, FINDINGS, [1.0], BootstrapOptions(0, 0), ThresholdRule()
    )
    assert [row["finding"] for row in rows] == ["fluid"] * 49
    assert {row["threshold"] for row in rows} == {None}  # no validation image
    assert decisions.groups["fluid"]["mcc"].reason.startswith("0 validation images with")
    splits[1][1][0] = 1
    outcome, _, rows = evaluate_probe(
        splits, FINDINGS, FRACTIONS, BootstrapOptions(0, 0), ThresholdRule()
    )
    assert "no finding has images of both classes" in outcome.absent
    assert rows == []


def test_labels_are_drawn_class_by_class_and_of_each_at_least_one():
    labels = np.repeat(np.arange(3), (100, 10, 2)).astype(np.int64)
    rows = draw_labelled(labels, 0.2, np.random.default_rng(0))
    assert np.bincount(labels[rows]).tolist() == [20, 2, 1]
    assert draw_labelled(labels, 1.0, np.random.default_rng(0)).tolist() == list(range(112))


MIDDLES = np.array([[3.0, 0, 0], [0, 3.0, 0]])


def split(count, seed, noise=0.5, images_a_patient=1):
    """Two classes about two points."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int64) // images_a_patient % 2
    patients = [f"p{image // images_a_patient}" for image in range(count)]
    return Labelled(MIDDLES[labels] + noise * rng.standard_normal((count, 3)), labels, patients)


def test_classes_that_a_plane_parts_are_told_apart():
    test = split(60, 2)
    margins, _ = linear_probe(split(30, 0), test.features)
    assert ((margins > 0) == test.labels).all()


def test_a_fit_is_sklearn_s_with_the_penalty_per_image():
    train, test = (split(30, seed, noise=3.0) for seed in range(2))
    margins, penalty = linear_probe(train, test.features, [0.1])
    middle, spread = train.features.mean(axis=0), train.features.std(axis=0)
    model = LogisticRegression(C=1 / (0.1 * 30), max_iter=1000)
    model.fit((train.features - middle) / spread, train.labels)
    expected = model.decision_function((test.features - middle) / spread)
    assert margins == pytest.approx(expected, abs=1e-3)
    assert penalty == 0.1


@pytest.mark.parametrize("spread", [1, 60])
def test_cross_validation_chooses_the_penalty_that_generalises(spread):
    # Where one feature tells all, the small penalty; where each tells a little, the large one.
    rng = np.random.default_rng(0)
    labels = np.arange(1080, dtype=np.int64) % 2
    features = rng.standard_normal((1080, 60))
    features[:, :spread] += 3 / spread**0.5 * labels[:, None]
    known = Labelled(features[:80], labels[:80], [str(image) for image in range(80)])
    right = {}
    for penalty in (10.0, 1e-4):
        margins, _ = linear_probe(known, features[80:], [penalty])
        right[penalty] = np.mean((margins > 0) == labels[80:])
    best = max(right, key=right.get)
    assert best == {1: 1e-4, 60: 10.0}[spread]
    assert linear_probe(known, features[80:], [*right])[1] == best


def test_a_patient_is_in_one_fold_alone():
    known = split(60, 0, images_a_patient=3)
    for fitted, judged in _folds(known):
        owners = [{known.subject_ids[image] for image in part} for part in (fitted, judged)]
        assert not owners[0] & owners[1]
        assert len(owners[0] | owners[1]) == 20
        assert {0, 1} == set(known.labels[judged].tolist()) == set(known.labels[fitted].tolist())


def test_one_class_alone_teaches_nothing():
    one = Labelled(np.zeros((4, 3)), np.zeros(4, dtype=np.int64), "abcd")
    with pytest.raises(MetricError, match="one class alone"):
        linear_probe(one, one.features)
