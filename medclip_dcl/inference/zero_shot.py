"""Zero-shot scores: the prompt that fits the image better decides.

A finding that has no negative prompt is compared with what its positive prompts score on average:
their level over a bank of images.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from medclip_dcl.core.errors import QueryError
from medclip_dcl.inference.model_package import FindingCalibration, ScoreCalibration
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.schemas import Code, FindingAnswer

OTHER_PROMPTS = "the model is calibrated for the findings and prompts of its card alone"
UNCALIBRATED = "no calibration was fitted for this model"


def prompt_texts(findings: Sequence[Finding]) -> list[str]:
    """List the prompts as `margins` expects: of each finding the positive, then the negative."""
    return [text for finding in findings for text in (*finding.positive, *finding.negative)]


def side_scores(
    scores: Float[Tensor, "prompts images"],
    findings: Sequence[Finding],
    levels: Sequence[float] | None = None,
) -> Float[Tensor, "sides images"]:
    """Average the scores of `prompt_texts` by side: of each finding positive, then negative.

    `levels` stand in the place of the negative of findings that have none; None: 0, which changes
    no order of images.
    """
    sides = [len(side) for finding in findings for side in (finding.positive, finding.negative)]
    means = torch.stack([part.mean(dim=0) for part in torch.split_with_sizes(scores, sides)])
    for row, finding in enumerate(findings):
        if not finding.negative:
            means[2 * row + 1] = 0.0 if levels is None else levels[row]
    return means


def margins(
    scores: Float[Tensor, "prompts images"],
    findings: Sequence[Finding],
    levels: Sequence[float] | None = None,
) -> Float[Tensor, "findings images"]:
    """Subtract the negative prompts' mean score from the positive prompts'.

    Args:
        scores: image-sentence scores f of `prompt_texts`, in [-1, 1].
        findings: the findings, in the same order.
        levels: as in `side_scores`.

    Returns:
        f(positive) - f(negative), in [-2, 2].

    Source: Wang et al. 2023, Table 2, with one prompt a side; ours: several prompts
        are averaged by their scores.
    """
    sides = side_scores(scores, findings, levels)
    return sides[0::2] - sides[1::2]


def prompt_offset(scores: Float[Tensor, "prompts images"]) -> Float[Tensor, " prompts"]:
    """Return the level of each prompt over a bank of images, b(q) = log mean_f e^{s(q, f)}.

    A prompt's level, which a loss with texts alone as anchors leaves open, says nothing of an
    image: two prompts are compared by s - b. The offset repairs decisions alone; rankings of
    sentences and heatmaps need the level as it is.

    Args:
        scores: scaled scores s = gamma**2 f; of several prompts a side their mean.

    Returns:
        b, in the unit of the scores: the mean of e^{s - b} over the bank is 1.
    """
    return torch.logsumexp(scores.double(), dim=1) - math.log(scores.shape[1])


def prompt_levels(
    model: DualEncoder,
    bank: Float[Tensor, "images rows columns dim"],
    prompts: Float[Tensor, "prompts dim"],
    findings: Sequence[Finding],
) -> Float[Tensor, "findings 2"]:
    """Return `prompt_offset` of each finding's positive and negative prompts over a bank of images.

    `prompts` are the vectors of `prompt_texts`. Without a negative both are that of the positive:
    a prompt that scores every image alike has its score as level.
    """
    scaled = model.gamma.detach().double() ** 2 * model.score(bank, prompts).double()
    levels = prompt_offset(side_scores(scaled, findings)).reshape(-1, 2)
    alone = [row for row, finding in enumerate(findings) if not finding.negative]
    levels[alone, 1] = levels[alone, 0]
    return levels


Levels = list[tuple[float, float] | None]
"""Usual score of each finding's positive and negative prompts; None: not known."""


def offsets_of_levels(levels: Levels) -> list[float | None]:
    """Return the level of each finding's margin; None where it is not known."""
    return [None if level is None else level[0] - level[1] for level in levels]


def required_levels(findings: Sequence[Finding], levels: Levels) -> list[float]:
    """Return the scores that stand in the place of missing negative prompts, for `side_scores`.

    Raises:
        QueryError: a finding without a negative prompt has no level.
    """
    for number, (finding, level) in enumerate(zip(findings, levels, strict=True)):
        if not finding.negative and level is None:
            raise QueryError(
                f"finding {number} has no negative prompt, and this model no level for its "
                "positive: it was published without its bank of images; give a negative prompt"
            )
    return [0.0 if level is None else level[1] for level in levels]


def softmax_scores(
    margin: Float[Tensor, "findings images"], gamma: Float[Tensor, ""]
) -> Float[Tensor, "findings images"]:
    """Return the share of the positive prompt, in [0, 1], in a softmax of scores times gamma**2."""
    # exp(p) / (exp(p) + exp(n)) = 1 / (1 + exp(n - p))
    return torch.sigmoid(gamma**2 * margin)


def calibrations_of(
    findings: Sequence[Finding], own: Sequence[Finding], calibration: ScoreCalibration | None
) -> list[FindingCalibration | str]:
    """Find the calibration of each finding that is asked for, or why none was tried.

    Args:
        findings: the findings asked for.
        own: those that the model was published with: a curve holds for the very prompts that
            it was fitted with.
        calibration: of the model; None: it has none.
    """
    if calibration is None:
        return [UNCALIBRATED for _ in findings]
    fitted = [calibration.of(item.name) if item in own else None for item in findings]
    return [OTHER_PROMPTS if item is None else item for item in fitted]


def finding_scores(
    margin: Float[Tensor, "findings images"],
    gamma: Float[Tensor, ""],
    findings: Sequence[Finding],
    calibrations: Sequence[FindingCalibration | str],
    offsets: Sequence[float | None],
    bank: Float[Tensor, "findings banked"] | None = None,
) -> list[list[FindingAnswer]]:
    """Turn `margins` into one list per image, with one answer per finding, in the rows' order.

    A probability is made from the margin as it is: its curve was fitted to that, and absorbs an
    offset. `bank` has the margins of the model's bank, to rank the images among.
    """
    score = softmax_scores(margin, gamma)
    levels = margin.new_tensor([[0.0 if offset is None else offset] for offset in offsets])
    threshold = softmax_scores(levels, gamma)
    present = margin > levels
    refused = [not isinstance(item, str) and item.is_refused for item in calibrations]
    logits = (gamma**2 * margin).double().cpu().numpy()
    shares = None if bank is None else percentiles(margin, bank)
    calibrated = [_probabilities(row, own) for row, own in zip(logits, calibrations, strict=True)]
    return [
        [
            FindingAnswer(
                name=finding.name,
                score=float(score[row, image]),
                margin=float(margin[row, image]),
                decision=None if refused[row] else bool(present[row, image]),
                offset=offsets[row],
                threshold=float(threshold[row]),
                percentile=None if shares is None else float(shares[row, image]),
                probability=calibrated[row][0][image],
                probability_note=calibrated[row][1],
                code=None if finding.code is None else Code(**vars(finding.code)),
            )
            for row, finding in enumerate(findings)
        ]
        for image in range(margin.shape[1])
    ]


def percentiles(
    values: Float[Tensor, "rows images"], bank: Float[Tensor, "rows banked"]
) -> Float[Tensor, "rows images"]:
    """Return the share of a bank's values, in %, below each value of the same row."""
    return 100 * (bank[:, None] < values[..., None]).double().mean(dim=-1)


def _probabilities(
    logits: Float[np.ndarray, " images"], calibration: FindingCalibration | str
) -> tuple[list[float | None], str]:
    if isinstance(calibration, str) or calibration.curve is None:
        reason = calibration if isinstance(calibration, str) else calibration.reason
        return [None] * len(logits), reason
    return calibration.curve.probabilities(logits).tolist(), ""
