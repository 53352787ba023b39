"""Heads on frozen features: fitted on training patients, chosen on validation, measured on test.

A head is the probe's logistic regression with both classes at equal weight. Its penalty is that of
the best AUC on the validation images, which also give the threshold and the calibration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float

from medclip_dcl.core.errors import ArtifactStale, MetricError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure
from medclip_dcl.evaluation.calibration import calibrate_finding, probability_figures
from medclip_dcl.evaluation.classification import finding_figures
from medclip_dcl.evaluation.metrics import roc_auc, value_of
from medclip_dcl.evaluation.operating_point import (
    ThresholdRule,
    choose_thresholds,
    decision_figures,
)
from medclip_dcl.evaluation.probe import PENALTIES, Labelled, fit_logistic
from medclip_dcl.inference.heads import (
    Head,
    HeadCard,
    HeadFigure,
    head_margins,
)
from medclip_dcl.models.settings import HeadsConfig, ProbabilitiesConfig

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class HeadSplits:
    """The labelled images of one finding, by split."""

    train: Labelled
    validate: Labelled
    test: Labelled

    @property
    def lacking(self) -> str:
        """Name what a head cannot do without; empty where nothing lacks."""
        for name, split in (("train", self.train), ("validate", self.validate)):
            present = int(split.labels.sum())
            absent = len(split.labels) - present
            if not present or not absent:
                return (
                    f"{present} {name} images with it and {absent} without; a head needs both "
                    "(source.validate_share, source.columns.split)"
                )
        return ""


@dataclass(frozen=True)
class HeadRules:
    """Settings that heads are fitted and measured by."""

    heads: HeadsConfig
    probabilities: ProbabilitiesConfig
    threshold: ThresholdRule
    bootstrap: BootstrapOptions

    def plain(self) -> dict[str, str | float | int]:
        """Return what decides a head as plain values, to be kept with it."""
        return {
            **self.heads.model_dump(mode="json", include={"features"}),
            **{f"probabilities.{k}": v for k, v in self.probabilities.model_dump().items()},
            **{f"threshold.{k}": v for k, v in asdict(self.threshold).items()},
            "bootstrap": self.bootstrap.samples,
        }


def refuse_shared_patients(
    trained: Sequence[str], tested: Sequence[str], repeated: int = 0
) -> None:
    """Refuse a test that holds patients, or pictures, of the heads' training.

    Raises:
        ArtifactStale: it does; `repeated` counts pictures.
    """
    shared = set(trained) & set(tested)
    if shared or repeated:
        raise ArtifactStale(
            f"{len(shared)} of {len(set(tested))} test patients, and the picture of {repeated} of "
            f"{len(tested)} test images, are in the heads' training; give each patient one split "
            "(source.columns.split), and take out repeated images"
        )


def make_head(name: str, splits: HeadSplits, rules: HeadRules, inputs: Mapping[str, str]) -> Head:
    """Fit a head to one finding, and measure it on the test images.

    Raises:
        MetricError: a split that it is fitted on lacks a class.
    """
    if splits.lacking:
        raise MetricError(f"{name}: {splits.lacking}")
    train, validate = splits.train, splits.validate
    arrays, chosen = _fit(train, validate)
    margins = head_margins(arrays, validate.features)
    rule, owners = rules.threshold, validate.subject_ids
    (threshold,) = choose_thresholds(margins[None], _truth(validate)[None], owners, rule)
    assert threshold.value is not None
    calibration = calibrate_finding(
        name, margins, validate.labels == 1, len(set(owners)), rules.probabilities
    )
    judged = head_margins(arrays, splits.test.features)
    figures = _figures(judged, splits.test, threshold, rules.bootstrap)
    if calibration.curve is not None:
        probability = calibration.curve.probabilities(judged)
        figures |= probability_figures(
            {"": probability}, _truth(splits.test), splits.test.subject_ids, rules.bootstrap
        )
    card = HeadCard(
        name=name,
        kind="linear",
        features=rules.heads.features,
        chosen=chosen,
        threshold=threshold.value,
        calibration=calibration,
        images_with=int(train.labels.sum()),
        images_without=int((1 - train.labels).sum()),
        patients=len(set(train.subject_ids)),
        figures={each: HeadFigure(**asdict(figure)) for each, figure in figures.items()},
        inputs=dict(inputs),
        settings=rules.plain(),
    )
    return Head(card, arrays)


def _truth(images: Labelled) -> np.ndarray:
    return images.labels.astype(np.int8)


def _figures(
    margins: Float[np.ndarray, " images"],
    images: Labelled,
    threshold: Figure,
    bootstrap: BootstrapOptions,
) -> dict[str, Figure]:
    truth, owners = _truth(images), images.subject_ids
    auc = finding_figures(margins, truth, owners, bootstrap)["auc"]
    return {"auc": auc} | decision_figures(margins, truth, owners, threshold, bootstrap)


def _fit(train: Labelled, validate: Labelled) -> tuple[Arrays, float]:
    # The arrays, and the penalty; where several are as good, the strongest.
    fitted = {penalty: fit_logistic(train, penalty) for penalty in PENALTIES}
    positive = validate.labels == 1
    aucs = [
        value_of(roc_auc(head_margins(arrays, validate.features), positive)) or 0.0
        for arrays in fitted.values()
    ]
    chosen = float(PENALTIES[int(np.argmax(aucs))])
    return fitted[chosen], chosen
