import numpy as np
import pytest

from medclip_dcl.core.errors import MetricError
from medclip_dcl.evaluation.heads import (
    PENALTIES,
    HeadRules,
    HeadSplits,
    Labelled,
    fit_chosen,
    fit_logistic,
    make_head,
)
from medclip_dcl.evaluation.metrics import BootstrapOptions, confusion_metrics, roc_auc, value_of
from medclip_dcl.inference.heads import Head, head_margins
from medclip_dcl.models.settings import HeadsConfig, ProbabilitiesConfig


@pytest.mark.parametrize("spread", [1, 60])
def test_validation_images_choose_the_penalty_that_generalises(spread):
    # Where one feature tells all, the small penalty; where each tells a little, the large one.
    rng = np.random.default_rng(0)
    labels = np.arange(1080, dtype=np.int64) % 2
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
    alike = Labelled(features[:9], np.zeros(9, dtype=np.int64), ["a"] * 9)
    assert fit_chosen(train, alike)[1] == PENALTIES[0]  # nothing to choose by: the strongest


RULES = HeadRules(HeadsConfig(), ProbabilitiesConfig(least_per_class=5), BootstrapOptions(20, 0))


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
    assert head.card.threshold in head.margins(
        SPLITS.validate.features
    )  # chosen on validation images alone
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
    lacking = HeadSplits(SPLITS.train, nothing, SPLITS.test).lacking
    assert lacking.startswith("0 validate images with it and 4 without")
    assert SPLITS.lacking == ""
    with pytest.raises(MetricError, match="one class alone"):
        fit_logistic(nothing, 1.0)
