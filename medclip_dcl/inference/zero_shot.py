"""Prompt pairs: how each finding is asked for in words.

Zero-shot findings: the prompt that fits the image better decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from jaxtyping import Float
from torch import Tensor

from medclip_dcl.errors import ConfigError, QueryError
from medclip_dcl.model_package import FindingCalibration, ScoreCalibration

_VERSION = 1
_KEYS = {"name", "label", "positive", "negative"}


@dataclass(frozen=True)
class Finding:
    """A finding and its prompts.

    Attributes:
        name: how it is called in answers.
        positive: sentences that assert it, at least one.
        negative: sentences that deny it, at least one.
        label: column of the label table that holds its truth; empty: none.
    """

    name: str
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    label: str = ""


def parse_prompts(tree: Any) -> tuple[Finding, ...]:
    """Turn a list of mappings into findings.

    Args:
        tree: a list; each entry has `name`, `positive` and `negative`, and may have
            `label`. A side is one sentence or a list of them.

    Returns:
        The findings, in the list's order.

    Raises:
        QueryError: an entry lacks a key, has an unknown one, an empty side, or a name
            that was used before. The message gives the entry's number, never its text.
    """
    if not isinstance(tree, list) or not tree:
        raise QueryError("findings must be a list with at least one entry")
    findings = tuple(_finding(entry, number) for number, entry in enumerate(tree))
    if len({finding.name for finding in findings}) < len(findings):
        raise QueryError("two findings bear the same name; give each its own")
    return findings


def read_prompts(path: Path) -> tuple[Finding, ...]:
    """Read a prompt file such as `configs/prompts/chex5.yaml`.

    Args:
        path: YAML file with `format_version: 1` and `findings`.

    Returns:
        The findings, in the file's order.

    Raises:
        ConfigError: the file cannot be read, is of another version, or an entry is malformed.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = type(error).__name__
        raise ConfigError(f"prompts {path} cannot be read ({reason}); give a YAML file") from error
    if not isinstance(tree, Mapping) or tree.get("format_version") != _VERSION:
        raise ConfigError(f"prompts {path} must say format_version: {_VERSION}")
    try:
        return parse_prompts(tree.get("findings"))
    except QueryError as error:
        raise ConfigError(f"prompts {path}: {error}") from error


def _finding(entry: Any, number: int) -> Finding:
    if not isinstance(entry, Mapping) or not set(entry) <= _KEYS:
        raise QueryError(f"finding {number} must be a mapping with keys among {sorted(_KEYS)}")
    name, label = entry.get("name"), entry.get("label", "")
    if not isinstance(name, str) or not name.strip() or not isinstance(label, str):
        raise QueryError(f"finding {number} needs a name, and a label that is text if any")
    positive = _side(entry.get("positive"), number)
    return Finding(name.strip(), positive, _side(entry.get("negative"), number), label)


def _side(value: Any, number: int) -> tuple[str, ...]:
    sentences = [value] if isinstance(value, str) else value
    if not isinstance(sentences, list | tuple) or not sentences:
        raise QueryError(f"finding {number} needs a positive and a negative prompt")
    if not all(isinstance(sentence, str) and sentence.strip() for sentence in sentences):
        raise QueryError(f"finding {number} has a prompt that is empty or no text")
    return tuple(" ".join(sentence.split()) for sentence in sentences)


OTHER_PROMPTS = "the model is calibrated for the findings and prompts of its card alone"
UNCALIBRATED = "no calibration was fitted for this model"


@dataclass(frozen=True)
class FindingScore:
    """What the model says about one finding on one image.

    Attributes:
        name: the finding.
        score: softmax over the two prompts' scaled scores, in [0, 1]; no probability.
        margin: score of the positive prompts minus that of the negative, in [-2, 2].
        is_present: whether the margin is above 0.
        probability: calibrated probability; None where the model has no calibration.
        note: why the probability is None, else empty.
    """

    name: str
    score: float
    margin: float
    is_present: bool
    probability: float | None = None
    note: str = UNCALIBRATED


def prompt_texts(findings: Sequence[Finding]) -> list[str]:
    """List the prompts of findings in the order that `margins` expects.

    Args:
        findings: the findings.

    Returns:
        For each finding its positive prompts, then its negative ones.
    """
    return [text for finding in findings for text in (*finding.positive, *finding.negative)]


def margins(
    scores: Float[Tensor, "prompts images"], findings: Sequence[Finding]
) -> Float[Tensor, "findings images"]:
    """Subtract the negative prompts' mean score from the positive prompts'.

    Args:
        scores: image-sentence scores f of `prompt_texts`, in [-1, 1].
        findings: the findings, in the same order.

    Returns:
        f(positive) - f(negative), in [-2, 2].

    Source: Wang et al. 2023, Table 2, with one prompt a side; ours: several prompts
        are averaged by their scores.
    """
    sides = [len(side) for finding in findings for side in (finding.positive, finding.negative)]
    means = torch.stack([part.mean(dim=0) for part in torch.split_with_sizes(scores, sides)])
    return means[0::2] - means[1::2]


def softmax_scores(
    margin: Float[Tensor, "findings images"], gamma: Float[Tensor, ""]
) -> Float[Tensor, "findings images"]:
    """Softmax over gamma**2-scaled positive and negative scores: the positive's share.

    Args:
        margin: from `margins`.
        gamma: the model's scale.

    Returns:
        Scores in [0, 1]; 0.5 where both prompts fit alike.
    """
    return torch.sigmoid(gamma**2 * margin)


def calibrations_of(
    findings: Sequence[Finding], own: Sequence[Finding], calibration: ScoreCalibration | None
) -> list[FindingCalibration | str]:
    """Find the calibration of each finding that is asked for.

    Args:
        findings: the findings asked for.
        own: those that the model was published with.
        calibration: of the model; None: it has none.

    Returns:
        A calibration with a curve each, or why there is none: a curve holds for the very
        prompts that it was fitted with.
    """
    if calibration is None:
        return [UNCALIBRATED for _ in findings]
    found = [calibration.of(item.name) if item in own else None for item in findings]
    return [OTHER_PROMPTS if item is None else item.reason or item for item in found]


def answers(
    margin: Float[Tensor, "findings images"],
    gamma: Float[Tensor, ""],
    findings: Sequence[Finding],
    calibrations: Sequence[FindingCalibration | str],
) -> list[list[FindingScore]]:
    """Put margins into words.

    Args:
        margin: from `margins`.
        gamma: the model's scale.
        findings: the findings, in the order of the rows.
        calibrations: of each of them, from `calibrations_of`.

    Returns:
        One list per image, with one answer per finding.
    """
    score = softmax_scores(margin, gamma)
    logits = (gamma**2 * margin).double().cpu().numpy()
    said = [_probabilities(row, own) for row, own in zip(logits, calibrations, strict=True)]
    return [
        [
            FindingScore(
                name=finding.name,
                score=float(score[row, image]),
                margin=float(margin[row, image]),
                is_present=bool(margin[row, image] > 0),
                probability=said[row][0][image],
                note=said[row][1],
            )
            for row, finding in enumerate(findings)
        ]
        for image in range(margin.shape[1])
    ]


def _probabilities(
    logits: Float[np.ndarray, " images"], calibration: FindingCalibration | str
) -> tuple[list[float | None], str]:
    if isinstance(calibration, str) or calibration.curve is None:
        reason = calibration if isinstance(calibration, str) else calibration.reason
        return [None] * len(logits), reason
    return calibration.curve.probabilities(logits).tolist(), ""
