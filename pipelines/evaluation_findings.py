"""What is asked of the findings beside their figures: probabilities, groups, other prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int8

from medclip_dcl.config import Config, resolve_path
from medclip_dcl.data.demographics import read_demographics
from medclip_dcl.errors import ConfigError
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.calibration import evaluate_probabilities
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.inputs import BootstrapOptions, EncodedImages, EvalResult
from medclip_dcl.evaluation.subgroups import evaluate_paraphrases, evaluate_subgroups
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.inference.zero_shot import Finding, read_prompts
from medclip_dcl.tables import TableFormat
from pipelines.evaluation_films import Rows, truth_of
from pipelines.job import Job

QUESTIONS = ("probabilities", "subgroups", "paraphrases")
"""Names of these questions among the results."""


@dataclass(frozen=True)
class Answered:
    """Images whose findings have been asked for."""

    model: EvaluatedModel
    images: EncodedImages
    listed: Rows
    """Rows of the manifest."""
    findings: Sequence[Finding]
    truth: Int8[np.ndarray, "findings images"]
    """Of all images."""
    drawn: Int8[np.ndarray, "findings images"]
    """Of the images that the figures rest on."""
    scores: list[dict[str, Any]]
    """Rows of `results.SCORES`, by finding, then image."""

    @property
    def margins(self) -> Float[np.ndarray, "findings images"]:
        """Margins of the findings."""
        margins = np.array([row["margin"] for row in self.scores], dtype=np.float64)
        return margins.reshape(len(self.findings), -1)


def question_files(config: Config) -> dict[str, Path]:
    """List the files that these questions read.

    Args:
        config: the configuration.

    Returns:
        Name among the inputs -> path.

    Raises:
        ConfigError: one is no file.
    """
    named = {
        "paraphrases": config.evaluate.paraphrases,
        "people": config.evaluate.demographics.table,
    }
    files = {name: resolve_path(path, config) for name, path in named.items() if path}
    for name, path in files.items():
        if not path.is_file():
            raise ConfigError(f"evaluate.{name} names {path}, which is no file")
    return files


def ask_further(
    job: Job, answered: Answered, bootstrap: BootstrapOptions
) -> tuple[dict[str, EvalResult], dict[TableFormat, Rows]]:
    """Put the further questions.

    Args:
        job: the job.
        answered: findings, and what the model said; its scores receive their `probability`.
        bootstrap: of the intervals.

    Returns:
        An outcome per question, and the rows behind them.

    Raises:
        ConfigError: a file that the recipe names cannot be read.
    """
    files = question_files(job.config)
    traits = {"view": [row["view"] for row in answered.listed]}
    demographics = job.config.evaluate.demographics
    if "people" in files:
        traits |= read_demographics(files["people"], demographics, answered.listed)
    outcomes = {
        "probabilities": _ask_probabilities(answered, bootstrap),
        "subgroups": evaluate_subgroups(
            answered.margins,
            answered.drawn,
            answered.images.subject_ids,
            traits,
            demographics.least_patients,
            bootstrap,
        ),
        "paraphrases": EvalResult("there are no paraphrases; set evaluate.paraphrases"),
    }
    rows: Rows = []
    if "paraphrases" in files:
        findings = read_prompts(files["paraphrases"])
        truth, _ = truth_of(job, answered.listed, findings)
        outcomes["paraphrases"], rows = evaluate_paraphrases(
            answered.model, answered.images, findings, truth, bootstrap
        )
    return outcomes, {results.PROMPTS: rows}


def _ask_probabilities(answered: Answered, bootstrap: BootstrapOptions) -> EvalResult:
    encoders = answered.model.encoders
    own = encoders if isinstance(encoders, Predictor) else None
    outcome, said = evaluate_probabilities(
        None if own is None else own.calibration,
        (answered.findings, () if own is None else own.findings),
        answered.model.gamma_squared * answered.margins,
        answered.truth,
        answered.images,
        bootstrap,
    )
    flat = [value for row in said for value in row]
    for row, value in zip(answered.scores, flat, strict=True):
        row["probability"] = value
    return outcome
