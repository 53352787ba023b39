"""Calibration of a published model: how a score becomes a probability, finding by finding.

It lies in the model's own folder as `calibration.json`, so that whoever has the model has
it too, and is part of the model's digest.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

import numpy as np
from jaxtyping import Float
from pydantic import ValidationError, model_validator

from medclip_dcl.artifacts.files import write_text
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.config.probabilities import ProbabilitiesConfig
from medclip_dcl.config.section import Section
from medclip_dcl.errors import CheckpointError

FILE = "calibration.json"


class Curve(Section):
    """A rising map from the logit of a score to a probability."""

    slope: float = 0.0
    """Of the logit, where there are no steps; 1 / temperature."""
    intercept: float = 0.0
    """Log odds at a score of one half, where there are no steps."""
    logits: tuple[float, ...] = ()
    """Ascending places between which an isotonic curve is straight; empty: slope and intercept."""
    heights: tuple[float, ...] = ()
    """Probability at each of them."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if len(self.logits) != len(self.heights):
            raise ValueError("each place of a curve needs its height")
        pairs = (self.logits, self.heights)
        if any(list(values) != sorted(values) for values in pairs) or self.slope < 0:
            raise ValueError("a curve must rise")
        if any(not 0 <= height <= 1 for height in self.heights):
            raise ValueError("a probability lies between 0 and 1")
        return self

    def probabilities(self, logits: Float[np.ndarray, " films"]) -> Float[np.ndarray, " films"]:
        """Turn scores into probabilities.

        Args:
            logits: log odds of each film's score, gamma**2 times the margin.

        Returns:
            Probabilities in [0, 1].
        """
        if self.logits:
            between: np.ndarray = np.interp(logits, self.logits, self.heights)
            return between
        # the logistic function, without overflow on either side
        probability: np.ndarray = (1 + np.tanh((self.slope * logits + self.intercept) / 2)) / 2
        return probability


class FindingCalibration(Section):
    """Calibration of one finding, asked with the prompts that the model was published with."""

    finding: str
    """Name of the finding."""
    curve: Curve | None
    """None where the validation films do not suffice."""
    reason: str
    """Why there is no curve; empty where there is one."""
    films_with: int
    """Validation films with the finding."""
    films_without: int
    """Validation films without it."""
    patients: int
    """Patients of these films."""
    score_error: float | None
    """Expected calibration error of the score itself, on the same films; None: no film."""
    fitted_error: float | None
    """That of the probability on the films it was fitted to, and so too low; None: no curve."""


class ScoreCalibration(Section):
    """What `calibrate_scores` leaves in a model's folder."""

    format_version: Literal[1] = 1
    split: Literal["validate"] = "validate"
    """Split that it was fitted on; there is no other."""
    truth: Literal["exact", "labels", "none"]
    """Where the labels come from."""
    settings: ProbabilitiesConfig
    """How it was fitted."""
    inputs: dict[str, str]
    """Digests of what it was made from, by name."""
    findings: tuple[FindingCalibration, ...]
    """One entry per finding of the model."""

    def of(self, finding: str) -> FindingCalibration | None:
        """Find the calibration of a finding.

        Args:
            finding: its name.

        Returns:
            The calibration; None where the finding was not among the model's.
        """
        return next((item for item in self.findings if item.finding == finding), None)


def write_calibration(folder: Path, calibration: ScoreCalibration) -> None:
    """Write the calibration into a draft of a model.

    Args:
        folder: the draft's directory.
        calibration: the calibration.
    """
    write_text(folder / FILE, calibration.model_dump_json(indent=1) + "\n")


def read_calibration(model: Artifact) -> ScoreCalibration | None:
    """Read the calibration of an opened model.

    Args:
        model: the model.

    Returns:
        The calibration; None where it has none.

    Raises:
        CheckpointError: it cannot be read by this version.
    """
    files: Mapping[str, object] = model.files
    if FILE not in files:
        return None
    try:
        text = model.file(FILE).read_text(encoding="utf-8")
        return ScoreCalibration.model_validate_json(text)
    except (OSError, ValidationError, ValueError) as error:
        raise CheckpointError(
            f"calibration of model {model.digest[:12]} cannot be read by this version; rerun "
            "calibrate_scores"
        ) from error
