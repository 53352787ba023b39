import numpy as np
import pytest

from medclip_dcl.core.errors import ArtifactStale, MetricError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.head_fitting import (
    HeadRules,
    HeadSplits,
    make_head,
    refuse_shared_patients,
)
from medclip_dcl.evaluation.metrics import confusion_metrics, roc_auc, value_of
from medclip_dcl.evaluation.operating_point import ThresholdRule
from medclip_dcl.evaluation.probe import Labelled
from medclip_dcl.inference.heads import Head
from medclip_dcl.models.settings import HeadsConfig, ProbabilitiesConfig

RULES = HeadRules(
    HeadsConfig(), ProbabilitiesConfig(least_per_class=5), ThresholdRule(), BootstrapOptions(20, 0)
)


def labelled(count: int, seed: int, images_each: int = 1) -> Labelled:
    rng = np.random.default_rng(seed)
    labels = (np.arange(count) % 3 == 0).astype(np.int64)
    features = rng.normal(size=(count, 4)).astype(np.float32)
    features[:, 1] += labels
    return Labelled(features, labels, [f"{seed}-{row // images_each}" for row in range(count)])


SPLITS = HeadSplits(labelled(90, 1), labelled(60, 2), labelled(60, 3))


@pytest.fixture(scope="module")
def head() -> Head:
    return make_head("nodule", SPLITS, RULES, {"model": "digest"})


def test_figures_are_those_of_the_margins_on_test_images(head: Head) -> None:
    margins, positive = head.margins(SPLITS.test.features), SPLITS.test.labels == 1
    figures = head.card.figures
    assert figures["auc"].value == pytest.approx(value_of(roc_auc(margins, positive)))
    at = confusion_metrics(margins, positive, head.card.threshold)
    for name in ("sensitivity", "specificity", "ppv"):
        assert figures[name].value == pytest.approx(value_of(at[name]))
    assert figures["auc"].low is not None
    curve = head.card.calibration.curve
    said = curve.probabilities(margins)
    assert figures["brier"].value == pytest.approx(float(((said - positive) ** 2).mean()))
    known = head.margins(SPLITS.validate.features)
    assert head.card.threshold in known  # chosen on validation images alone
    assert (head.card.images_with, head.card.images_without, head.card.patients) == (30, 60, 90)


def test_test_labels_have_no_part_in_a_head(head: Head) -> None:
    turned = Labelled(SPLITS.test.features, 1 - SPLITS.test.labels, SPLITS.test.subject_ids)
    other = make_head("nodule", HeadSplits(SPLITS.train, SPLITS.validate, turned), RULES, {})
    assert other.card.threshold == head.card.threshold
    assert other.card.calibration == head.card.calibration
    assert np.array_equal(other.arrays["weight"], head.arrays["weight"])
    auc, turned_auc = (item.card.figures["auc"].value for item in (head, other))
    assert turned_auc == pytest.approx(1 - auc)


def test_what_a_head_lacks_is_named() -> None:
    nothing = Labelled(SPLITS.train.features[:4], np.zeros(4, np.int64), list("abcd"))
    with pytest.raises(MetricError, match="0 validate images with it and 4 without"):
        make_head("nodule", HeadSplits(SPLITS.train, nothing, SPLITS.test), RULES, {})


def test_patients_of_training_in_the_test_are_refused() -> None:
    refuse_shared_patients(["a", "b"], ["c"])
    with pytest.raises(ArtifactStale, match="1 of 2 test patients"):
        refuse_shared_patients(["a", "b"], ["b", "c", "c"])
    with pytest.raises(ArtifactStale, match="picture of 1 of 2 test images"):
        refuse_shared_patients(["a"], ["b", "c"], repeated=1)
