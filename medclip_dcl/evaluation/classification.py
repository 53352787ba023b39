"""Which findings images show, each by its prompt pair.

A finding's score is the difference of two scores, of the sentence that asserts it and of the one
that denies it. A model that hardly tells the two apart scores them alike: they rise and fall
together over images, and the little that is left of the difference can have either sign. Such a
pair does not decide, and is warned of.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int8

from medclip_dcl.core.plugins import METRICS
from medclip_dcl.evaluation import metrics
from medclip_dcl.evaluation.evaluated_model import EncodedImages, EvaluatedModel
from medclip_dcl.evaluation.results import EvalResult, Rows
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.inference.zero_shot import softmax_scores

Truth = Int8[np.ndarray, "findings images"]  # 1 present, 0 absent, `UNKNOWN` not known

Matrix = Float[np.ndarray, "findings images"]

UNKNOWN = -1  # truth of a finding that is not known

CORRELATION_LIMIT = 0.97
"""Correlation of a finding's two scores over images above which the pair does not decide."""
# From first trials on real studies: models that inverted a finding had .98 to 1.00, others at most
# .94. With text pairs as close as .98 the AUC of one finding was .17 or .85, by the seed.

CHANCE_AUC = 0.5  # AUC below which a finding is read upside down

LEAST_IMAGES = 10  # images below which no correlation is given: of two it is always 1 or -1

REMEDY = (  # what helps a finding that is warned of
    "train with objective.relation: claims, or ask in other words in the prompts file "
    "(evaluate.prompts)"
)

CORRELATION_FIGURE = "prompt_correlation"  # name of the figure in the results of each finding

_MEANS = ("mean_auc", "mean_balanced_accuracy", "mean_balanced_accuracy_offset")

Levels = Sequence[float | None]
"""Level of each finding's margin, above which it is decided to be present; None: not known."""

Values = Float[np.ndarray, " images"]
IsPositive = Bool[np.ndarray, " images"]
Metric = Callable[[Values, IsPositive, float | None, metrics.Weights], dict[str, metrics.Samples]]
"""Margins and truth of a finding's images, its level, weights of images -> figures by name."""


def exact_truth(
    findings: Sequence[Finding], image_ids: Sequence[str], types_of: Mapping[str, Collection[str]]
) -> Truth:
    """Read off which findings images show, where a generator knows the types of each image.

    A finding that no image shows stays unknown, and so does an image not in `types_of`.
    """
    truth = np.full((len(findings), len(image_ids)), UNKNOWN, dtype=np.int8)
    types = frozenset[str]().union(*types_of.values())
    for index, finding in enumerate(findings):
        for image, image_id in enumerate(image_ids):
            if finding.name in types and image_id in types_of:
                truth[index, image] = finding.name in types_of[image_id]
    return truth


def labelled_truth(
    findings: Sequence[Finding], study_ids: Sequence[str], labels: Sequence[Mapping[str, Any]]
) -> Truth:
    """Read off which findings images show from the labels of their studies.

    Source: Wang et al. 2023 leave open what becomes of uncertain and blank; ours: dropped.
    """
    of_study = {row["study_id"]: row for row in labels}
    truth = np.full((len(findings), len(study_ids)), UNKNOWN, dtype=np.int8)
    for index, finding in enumerate(findings):
        for image, study_id in enumerate(study_ids):
            label = of_study.get(study_id, {}).get(finding.label)
            if label in {0, 1}:
                truth[index, image] = label
    return truth


def known_images(
    truth: Int8[np.ndarray, " images"], subjects: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return which images have a known truth; of those the truth, as bool, and the patients."""
    labelled = truth != UNKNOWN
    return labelled, truth[labelled] == 1, [*compress(subjects, labelled)]


def evaluate_findings(
    model: EvaluatedModel,
    images: EncodedImages,
    findings: Sequence[Finding],
    truth: Truth,
    bootstrap: metrics.BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    """Ask for findings by prompt pairs; rows of `results.SCORES` by finding, then image.

    Source: Wang et al. 2023, Section 3.2 and Table 2.
    """
    sides = model.side_scores(images.regions, findings)
    margin = sides[0::2] - sides[1::2]
    scores = sides.cpu().numpy().astype(np.float64)
    positive, negative = scores[0::2], scores[1::2]
    offsets = model.offsets_of(findings)
    score = softmax_scores(margin, torch.tensor(model.gamma_squared).sqrt()).cpu().numpy()
    margins = margin.cpu().numpy().astype(np.float64)
    groups = {
        finding.name: figures_of(
            ranking, margins[row], truth[row], images.subject_ids, offsets[row], bootstrap
        )
        | {CORRELATION_FIGURE: pair_figure(positive[row], negative[row], images.subject_ids)}
        for row, finding in enumerate(findings)
    }
    mean_figures = mean_finding_figures(margins, truth, images.subject_ids, bootstrap, offsets)
    rows = [
        {
            **images.ids_of(image),
            "finding": finding.name,
            "positive": float(positive[row, image]),
            "negative": float(negative[row, image]),
            "margin": float(margins[row, image]),
            "offset": offsets[row],
            "threshold": None,
            "score": float(score[row, image]),
            "probability": None,
            "truth": None if truth[row, image] == UNKNOWN else int(truth[row, image]),
        }
        for row, finding in enumerate(findings)
        for image in range(len(images.image_ids))
    ]
    absent = "no image has a label" if (truth == UNKNOWN).all() else ""
    pool = {"images": len(images.image_ids), "findings": len(findings)}
    chance = dict.fromkeys(_MEANS, 0.5)
    return EvalResult(absent, pool, chance, mean_figures, groups), rows


def figures_of(
    metric: Metric,
    margins: Values,
    truth: Int8[np.ndarray, " images"],
    subjects: Sequence[str],
    level: float | None,
    bootstrap: metrics.BootstrapOptions,
    undefined: str | Mapping[str, str] = "no image of one of the two classes",
) -> dict[str, metrics.Figure]:
    """Estimate a metric of one finding over the images whose truth is known; see `estimate`."""
    labelled, positive, owners = known_images(truth, subjects)
    margin = margins[labelled]
    return metrics.estimate(
        lambda weights: metric(margin, positive, level, weights), owners, bootstrap, undefined
    )


def pair_figure(positive: Values, negative: Values, subjects: Sequence[str]) -> metrics.Figure:
    """Correlate the scores of a finding's two prompts over all images, or say why not."""
    value, reason = pair_correlation(positive, negative), ""
    if value is None:
        few = len(subjects) < LEAST_IMAGES
        reason = f"fewer than {LEAST_IMAGES} images" if few else "a prompt scores all images alike"
    return metrics.Figure(value, len(subjects), len(set(subjects)), reason=reason)


def mean_finding_figures(
    margins: Matrix,
    truth: Truth,
    subjects: Sequence[str],
    bootstrap: metrics.BootstrapOptions,
    offsets: Levels | None = None,
) -> dict[str, metrics.Figure]:
    """Estimate the figures of `ranking`, averaged over findings."""
    levels = offsets or [None] * len(truth)
    return metrics.estimate(
        lambda weights: mean_over_findings(ranking, margins, truth, levels, weights),
        subjects,
        bootstrap,
        "no finding has images of both classes",
    )


def mean_over_findings(
    metric: Metric, margins: Matrix, truth: Truth, levels: Levels, weights: metrics.Weights
) -> dict[str, metrics.Samples]:
    """Average a metric, as `mean_NAME`, over the findings with both classes that define it."""
    parts: dict[str, list[metrics.Samples]] = defaultdict(list)
    for margin, state, level in zip(margins, truth, levels, strict=True):
        labelled = state != UNKNOWN
        positive, own = state[labelled] == 1, weights[:, labelled]
        has_both = (own @ positive > 0) & (own @ ~positive > 0)
        for name, values in metric(margin[labelled], positive, level, own).items():
            parts[name].append(np.where(has_both, values, np.nan))
    return {f"mean_{name}": metrics.mean_of(each) for name, each in parts.items()}


def ranking(
    margins: Values, positive: IsPositive, offset: float | None, weights: metrics.Weights
) -> dict[str, metrics.Samples]:
    """Measure AUC, the decision at a margin of 0 and at the offset, and the metrics of plugins."""
    figures = {
        "auc": metrics.roc_auc(margins, positive, weights),
        "balanced_accuracy": metrics.balanced_accuracy(margins, positive, weights),
    }
    if offset is not None:
        figures["balanced_accuracy_offset"] = metrics.balanced_accuracy(
            margins - offset, positive, weights
        )
    return figures | {name: own(margins, positive, weights) for name, own in METRICS.items()}


@dataclass(frozen=True)
class PairWarning:
    """A finding whose answer should not be read, and why."""

    finding: str
    """Name of the finding."""
    correlation: float | None
    """Of the two scores over the images; None: undefined."""
    auc: float | None
    """Of their difference; None: undefined, or of too few images."""
    reason: str
    """The values and the rules that they break."""
    message: str
    """The finding, the reason and the remedy."""


def pair_correlation(positive: Values, negative: Values) -> float | None:
    """Correlate the scores of a finding's two prompts over images, in [-1, 1].

    None of fewer than `LEAST_IMAGES`, and where a prompt scores all images alike.
    """
    enough = len(positive) >= LEAST_IMAGES
    return metrics.pearson_correlation(positive, negative) if enough else None


def check_pair(finding: str, correlation: float | None, auc: float | None) -> PairWarning | None:
    """Warn of a finding whose pair does not decide, or that is read upside down; None: neither."""
    reasons = []
    if correlation is not None and correlation > CORRELATION_LIMIT:
        reasons.append(
            f"its two prompts do not decide: over images their scores have a correlation of "
            f"{correlation:.3f}, above {CORRELATION_LIMIT}, so which is higher is chance"
        )
    if auc is not None and auc < CHANCE_AUC:
        reasons.append(
            f"it is read upside down: its AUC is {auc:.3f}, below {CHANCE_AUC}, so images with it "
            "score lower than images without it"
        )
    if not reasons:
        return None
    reason = "; ".join(reasons)
    message = f"{finding}: {reason}; {REMEDY}"
    return PairWarning(finding, correlation, auc, reason, message)


def check_pairs(groups: Mapping[str, Mapping[str, metrics.Figure]]) -> list[PairWarning]:
    """Check every finding by its figures `prompt_correlation` and `auc`."""
    checked = (
        check_pair(finding, figures[CORRELATION_FIGURE].value, figures["auc"].value)
        for finding, figures in groups.items()
    )
    return [warning for warning in checked if warning is not None]
