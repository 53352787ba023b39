"""What is asked of the findings beside their figures: probabilities, groups, other prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int8

from medclip_dcl.tasks.examinee import Examinee
from medclip_dcl.tasks.outcome import Films, Outcome, Sampling
from medclip_dcl.tasks.predictor import Predictor
from medclip_dcl.tasks.probabilities import examine_probabilities
from medclip_dcl.tasks.prompts import Finding

QUESTIONS = ("probabilities",)
"""Names of these questions among the results."""


@dataclass(frozen=True)
class Answered:
    """Films whose findings have been asked for."""

    model: Examinee
    films: Films
    findings: Sequence[Finding]
    truth: Int8[np.ndarray, "findings films"]
    """Of all films."""
    scores: list[dict[str, Any]]
    """Rows of `results.SCORES`, by finding, then film."""

    @property
    def margins(self) -> Float[np.ndarray, "findings films"]:
        """Margins of the findings."""
        margins = np.array([row["margin"] for row in self.scores], dtype=np.float64)
        return margins.reshape(len(self.findings), -1)


def ask_further(answered: Answered, sampling: Sampling) -> dict[str, Outcome]:
    """Put the further questions.

    Args:
        answered: findings, and what the model said; its rows receive their `probability`.
        sampling: of the intervals.

    Returns:
        An outcome per question.
    """
    return {"probabilities": _ask_probabilities(answered, sampling)}


def _ask_probabilities(answered: Answered, sampling: Sampling) -> Outcome:
    encoders = answered.model.encoders
    own = encoders if isinstance(encoders, Predictor) else None
    outcome, said = examine_probabilities(
        None if own is None else own.calibration,
        (answered.findings, () if own is None else own.findings),
        answered.model.gamma_squared * answered.margins,
        answered.truth,
        answered.films,
        sampling,
    )
    flat = [value for row in said for value in row]
    for row, value in zip(answered.scores, flat, strict=True):
        row["probability"] = value
    return outcome
