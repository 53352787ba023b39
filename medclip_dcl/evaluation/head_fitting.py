"""Heads on frozen features: fitted on training patients, chosen on validation, measured on test.

A linear head is the probe's logistic regression with both classes at equal weight. Its penalty, and
the number of a `knn` head's neighbours, are those of the best AUC on the validation images, which
also give the threshold and the calibration. What fewer labels would have given is measured with
`linear_probe`, which sees no other label than those.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

from medclip_dcl.errors import ArtifactStale, MetricError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure
from medclip_dcl.evaluation.calibration import calibrate_finding, probability_figures
from medclip_dcl.evaluation.classification import finding_figures
from medclip_dcl.evaluation.metrics import roc_auc, value_of
from medclip_dcl.evaluation.operating_point import (
    ThresholdRule,
    choose_thresholds,
    decision_figures,
)
from medclip_dcl.evaluation.probe import PENALTIES, Labelled, fit_logistic, linear_probe
from medclip_dcl.inference.heads import (
    TEMPERATURE,
    FewShot,
    Head,
    HeadCard,
    HeadFigure,
    head_margins,
    unit_features,
)
from medclip_dcl.models.settings import HeadKind, HeadsConfig, ProbabilitiesConfig

SHOTS = (1, 4, 16, 64)
"""Images with the finding, and as many without it, of which few-shot figures are measured."""
DRAWS = 5
"""Draws of these images."""

NEIGHBOURS = (1, 5, 20, 50, 100)
"""Neighbours among which the validation images choose."""

_MOST_OF_A_CLASS = 2048  # vectors that a `knn` head keeps
_FEW = 20  # neighbours at most where few images are labelled, and none choose

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
        """Give what decides a head as plain values, to be kept with it."""
        return {
            **self.heads.model_dump(mode="json", include={"kind", "features"}),
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
    kind, train, validate = rules.heads.kind, splits.train, splits.validate
    arrays, chosen = fit_arrays(kind, train, validate)
    margins = head_margins(kind, arrays, chosen, validate.features)
    rule, owners = rules.threshold, validate.subject_ids
    (threshold,) = choose_thresholds(margins[None], _truth(validate)[None], owners, rule)
    assert threshold.value is not None
    calibration = calibrate_finding(
        name, margins, validate.labels == 1, len(set(owners)), rules.probabilities
    )
    judged = head_margins(kind, arrays, chosen, splits.test.features)
    figures = _figures(judged, splits.test, threshold, rules.bootstrap)
    if calibration.curve is not None:
        probability = calibration.curve.probabilities(judged)
        figures |= probability_figures(
            {"": probability}, _truth(splits.test), splits.test.subject_ids, rules.bootstrap
        )
    card = HeadCard(
        name=name,
        kind=kind,
        features=rules.heads.features,
        chosen=chosen,
        threshold=threshold.value,
        calibration=calibration,
        images_with=int(train.labels.sum()),
        images_without=int((1 - train.labels).sum()),
        patients=len(set(train.subject_ids)),
        figures={each: HeadFigure(**asdict(figure)) for each, figure in figures.items()},
        few_shot=tuple(few_shot(kind, train, splits.test, rules.bootstrap.seed)),
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


def fit_arrays(kind: str, train: Labelled, validate: Labelled) -> tuple[Arrays, float | None]:
    """Fit a head's arrays, and give the penalty or the number of neighbours that was chosen."""
    if kind == "prototypes":
        return _prototypes(train), None
    positive = validate.labels == 1
    if kind == "knn":
        arrays = _neighbours(train)
        counts = [float(count) for count in NEIGHBOURS if count <= len(arrays["labels"])]
        return arrays, _best(
            counts, lambda count: head_margins("knn", arrays, count, validate.features), positive
        )
    fitted = {penalty: fit_logistic(train, penalty) for penalty in PENALTIES}
    chosen = _best(
        PENALTIES,
        lambda penalty: head_margins("linear", fitted[penalty], None, validate.features),
        positive,
    )
    return fitted[chosen], chosen


def _best(
    candidates: Sequence[float],
    margins_of: Callable[[float], np.ndarray],
    positive: Bool[np.ndarray, " images"],
) -> float:
    # The first where several are as good: the strongest penalty, the fewest neighbours.
    aucs = [value_of(roc_auc(margins_of(each), positive)) or 0.0 for each in candidates]
    return float(candidates[int(np.argmax(aucs))])


def _prototypes(train: Labelled) -> Arrays:
    # cos(x, p) - cos(x, n) = x . (p - n), of unit vectors.
    unit = unit_features(train.features.astype(np.float64))
    sides = [unit_features(unit[train.labels == side].mean(axis=0)[None])[0] for side in (1, 0)]
    return {"weight": (sides[0] - sides[1]) / TEMPERATURE, "bias": np.zeros(1)}


def _neighbours(train: Labelled) -> Arrays:
    generator = np.random.default_rng(0)
    chosen = []
    for side in (0, 1):
        rows = np.flatnonzero(train.labels == side)
        chosen.append(np.sort(generator.permutation(rows)[:_MOST_OF_A_CLASS]))
    kept = train.take(np.concatenate(chosen))
    return {
        "vectors": unit_features(kept.features.astype(np.float32)).astype(np.float16),
        "labels": kept.labels.astype(np.int8),
    }


def few_shot(kind: HeadKind, train: Labelled, test: Labelled, seed: int) -> list[FewShot]:
    """Measure the AUC on test images of heads that were fitted to a few images of each class.

    Sizes of which there are not enough patients are left out.
    """
    positive = test.labels == 1
    found = []
    for shots in SHOTS:
        draws = [
            draw_shots(train, shots, np.random.default_rng([seed, shots, draw]))
            for draw in range(DRAWS)
        ]
        if any(len(rows) < 2 * shots for rows in draws):
            break
        aucs = [
            value_of(roc_auc(_few_margins(kind, train.take(rows), test), positive))
            for rows in draws
        ]
        found.append(FewShot(positives=shots, auc=tuple(aucs)))
    return found


def draw_shots(
    train: Labelled, shots: int, generator: np.random.Generator
) -> Int64[np.ndarray, " chosen"]:
    """Draw images of each class, each of another patient; fewer where there are not so many."""
    taken: set[str] = set()
    chosen: list[int] = []
    for side in (1, 0):
        count = 0
        for row in generator.permutation(np.flatnonzero(train.labels == side)).tolist():
            if count < shots and train.subject_ids[row] not in taken:
                taken.add(train.subject_ids[row])
                chosen.append(row)
                count += 1
    return np.array(sorted(chosen), dtype=np.int64)


def _few_margins(kind: HeadKind, known: Labelled, test: Labelled) -> Float[np.ndarray, " images"]:
    if kind == "linear":
        return linear_probe(known, test.features)[0]
    if kind == "prototypes":
        return head_margins(kind, _prototypes(known), None, test.features)
    count = min(_FEW, len(known.labels))
    return head_margins("knn", _neighbours(known), count, test.features)
