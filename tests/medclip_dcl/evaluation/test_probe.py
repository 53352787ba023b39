import numpy as np
import pytest
import torch
from sklearn.metrics import matthews_corrcoef

from medclip_dcl.core.errors import MetricError
from medclip_dcl.evaluation.classification import UNKNOWN
from medclip_dcl.evaluation.evaluated_model import EncodedImages
from medclip_dcl.evaluation.metrics import BootstrapOptions, confusion_metrics, roc_auc, value_of
from medclip_dcl.evaluation.probe import (
    PENALTIES,
    HeadRules,
    Labelled,
    evaluate_probe,
    fit_chosen,
    fit_logistic,
    make_head,
)
from medclip_dcl.evaluation.results import PROBES
from medclip_dcl.inference.heads import Head, head_margins
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.models.settings import ProbabilitiesConfig

FINDINGS = (Finding("fluid", ("Fluid.",), ("Normal.",)), Finding("cyst", ("Cyst.",), ("Normal.",)))


def images(count, seed):
    """Images whose first axis grows with `fluid`; `cyst` cannot be seen."""
    generator = np.random.default_rng(seed)
    truth = np.stack([np.arange(count) % 2, generator.permutation(np.arange(count) % 2)])
    vectors = 0.3 * generator.standard_normal((count, 2, 2, 5))
    vectors[..., 0] += truth[0][:, None, None]
    names = tuple(f"image-{seed}-{number}" for number in range(count))
    shown = EncodedImages(names, names, ((10, 10),) * count, torch.from_numpy(vectors).float())
    return shown, truth.astype(np.int8)


@pytest.fixture(scope="module")
def probed():
    splits = [images(100, 0), images(50, 2), images(40, 3)]
    return evaluate_probe(splits, FINDINGS, BootstrapOptions(20, 0))


def test_a_probe_finds_what_features_hold_and_no_more(probed):
    _, _, rows = probed
    assert set(rows[0]) == set(PROBES.schema.names)
    assert len(rows) == 50 * 2  # images x findings
    for name, least, most in (("fluid", 1.0, 1.0), ("cyst", 0.2, 0.8)):
        right = [(row["margin"] > 0) == row["truth"] for row in rows if row["finding"] == name]
        assert least <= np.mean(right) <= most
    figure = probed[0].figures["mean_auc"]
    assert 0.6 < figure.value < 0.85  # one finding at 1, the other by chance
    assert figure.low <= figure.value <= figure.high
    assert probed[0].chance["mean_auc"] == 0.5


def test_decisions_of_a_probe_are_those_of_its_rows(probed):
    _, decisions, rows = probed
    rows = [row for row in rows if row["finding"] == "fluid"]
    called = [row["margin"] >= row["threshold"] for row in rows]
    expected = matthews_corrcoef([row["truth"] for row in rows], called)
    assert decisions.groups["fluid"]["mcc"].value == pytest.approx(expected, abs=1e-9)
    assert decisions.groups["fluid"]["threshold"].value == rows[0]["threshold"]
    assert decisions.groups["fluid"]["threshold"].n == 40


def test_a_finding_that_lacks_a_class_anywhere_is_left_out():
    splits = [images(60, 0), images(50, 2), images(0, 3)]
    splits[1][1][1] = UNKNOWN
    splits[1][1][0, 0] = UNKNOWN  # one image, which leaves the finding both classes
    _, decisions, rows = evaluate_probe(splits, FINDINGS, BootstrapOptions(0, 0))
    assert [row["finding"] for row in rows] == ["fluid"] * 49
    assert {row["threshold"] for row in rows} == {None}  # no validation image
    assert decisions.groups["fluid"]["mcc"].reason.startswith("0 validation images with")
    splits[1][1][0] = 1
    outcome, _, rows = evaluate_probe(splits, FINDINGS, BootstrapOptions(0, 0))
    assert "no finding has images of both classes" in outcome.absent
    assert rows == []


@pytest.mark.parametrize("spread", [1, 60])
def test_validation_images_choose_the_penalty_that_generalises(spread):
    # Where one feature tells all, the small penalty; where each tells a little, the large one.
    rng = np.random.default_rng(0)
    labels = np.arange(1080, dtype=np.int8) % 2
    features = rng.standard_normal((1080, 60))
    features[:, :spread] += 3 / spread**0.5 * labels[:, None]
    every = Labelled(features, labels, [str(image) for image in range(1080)])
    train, validate = every.take(np.arange(80)), every.take(np.arange(80, 1080))
    aucs = {}
    for penalty in PENALTIES:
        margins = head_margins(fit_logistic(train, penalty), validate.features)
        aucs[penalty] = value_of(roc_auc(margins, validate.labels == 1))
    arrays, chosen = fit_chosen(train, validate)
    assert chosen == max(aucs, key=aucs.get)
    assert (chosen < 0.1) == (spread == 1)
    assert np.array_equal(arrays["weight"], fit_logistic(train, chosen)["weight"])
    alike = Labelled(features[:9], np.zeros(9, dtype=np.int8), ["a"] * 9)
    assert fit_chosen(train, alike)[1] == PENALTIES[0]  # nothing to choose by: the strongest


RULES = HeadRules(ProbabilitiesConfig(least_per_class=5), BootstrapOptions(20, 0))


def labelled(count: int, seed: int) -> Labelled:
    rng = np.random.default_rng(seed)
    labels = (np.arange(count) % 3 == 0).astype(np.int8)
    features = rng.normal(size=(count, 4)).astype(np.float32)
    features[:, 1] += labels
    return Labelled(features, labels, [f"{seed}-{row}" for row in range(count)])


TRAIN, VALIDATE, TEST = labelled(90, 1), labelled(60, 2), labelled(60, 3)


@pytest.fixture(scope="module")
def head() -> Head:
    return make_head("nodule", (TRAIN, VALIDATE, TEST), RULES, {"model": "digest"})


def test_figures_are_those_of_the_margins_on_test_images(head: Head) -> None:
    margins, positive = head.margins(TEST.features), TEST.labels == 1
    figures = head.card.figures
    assert figures["auc"].value == pytest.approx(value_of(roc_auc(margins, positive)))
    at = confusion_metrics(margins, positive, head.card.threshold)
    for name in ("sensitivity", "specificity", "ppv"):
        assert figures[name].value == pytest.approx(value_of(at[name]))
    assert figures["auc"].low is not None
    curve = head.card.calibration.curve
    said = curve.probabilities(margins)
    assert figures["brier"].value == pytest.approx(float(((said - positive) ** 2).mean()))
    assert head.card.threshold in head.margins(VALIDATE.features)  # chosen on them alone
    assert (head.card.images_with, head.card.images_without, head.card.patients) == (30, 60, 90)


def test_test_labels_have_no_part_in_a_head(head: Head) -> None:
    turned = Labelled(TEST.features, 1 - TEST.labels, TEST.subject_ids)
    other = make_head("nodule", (TRAIN, VALIDATE, turned), RULES, {})
    assert other.card.threshold == head.card.threshold
    assert other.card.calibration == head.card.calibration
    assert np.array_equal(other.arrays["weight"], head.arrays["weight"])
    auc, turned_auc = (item.card.figures["auc"].value for item in (head, other))
    assert turned_auc == pytest.approx(1 - auc)


def test_one_class_fits_no_head() -> None:
    nothing = Labelled(TRAIN.features[:4], np.zeros(4, np.int8), list("abcd"))
    with pytest.raises(MetricError, match="one class alone"):
        fit_logistic(nothing, 1.0)
