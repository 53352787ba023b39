"""What is asked of the findings beside their figures: probabilities, groups, other prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int8

from medclip_dcl.config import Config, resolve_path
from medclip_dcl.data.demographics import read_people
from medclip_dcl.errors import ConfigError
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.calibration import examine_probabilities
from medclip_dcl.evaluation.evaluated_model import Examinee
from medclip_dcl.evaluation.inputs import Films, Outcome, Sampling
from medclip_dcl.evaluation.subgroups import examine_paraphrases, examine_subgroups
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.inference.zero_shot import Finding, read_prompts
from medclip_dcl.tables import TableFormat
from pipelines.evaluation_films import Rows, truth_of
from pipelines.job import Job

QUESTIONS = ("probabilities", "subgroups", "paraphrases")
"""Names of these questions among the results."""


@dataclass(frozen=True)
class Answered:
    """Films whose findings have been asked for."""

    model: Examinee
    films: Films
    listed: Rows
    """Rows of the manifest."""
    findings: Sequence[Finding]
    truth: Int8[np.ndarray, "findings films"]
    """Of all films."""
    drawn: Int8[np.ndarray, "findings films"]
    """Of the films that the figures rest on."""
    scores: list[dict[str, Any]]
    """Rows of `results.SCORES`, by finding, then film."""

    @property
    def margins(self) -> Float[np.ndarray, "findings films"]:
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
        "people": config.evaluate.people.table,
    }
    files = {name: resolve_path(path, config) for name, path in named.items() if path}
    for name, path in files.items():
        if not path.is_file():
            raise ConfigError(f"evaluate.{name} names {path}, which is no file")
    return files


def ask_further(
    job: Job, answered: Answered, sampling: Sampling
) -> tuple[dict[str, Outcome], dict[TableFormat, Rows]]:
    """Put the further questions.

    Args:
        job: the job.
        answered: findings, and what the model said; its scores receive their `probability`.
        sampling: of the intervals.

    Returns:
        An outcome per question, and the rows behind them.

    Raises:
        ConfigError: a file that the recipe names cannot be read.
    """
    files = question_files(job.config)
    traits = {"view": [row["view"] for row in answered.listed]}
    people = job.config.evaluate.people
    if "people" in files:
        traits |= read_people(files["people"], people, answered.listed)
    outcomes = {
        "probabilities": _ask_probabilities(answered, sampling),
        "subgroups": examine_subgroups(
            answered.margins,
            answered.drawn,
            answered.films.subject_ids,
            traits,
            people.least_patients,
            sampling,
        ),
        "paraphrases": Outcome("there are no paraphrases; set evaluate.paraphrases"),
    }
    rows: Rows = []
    if "paraphrases" in files:
        findings = read_prompts(files["paraphrases"])
        truth, _ = truth_of(job, answered.listed, findings)
        outcomes["paraphrases"], rows = examine_paraphrases(
            answered.model, answered.films, findings, truth, sampling
        )
    return outcomes, {results.PROMPTS: rows}


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
