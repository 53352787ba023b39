"""Loss and metrics on studies that do not train: the same batches and images at each visit.

Axes
    findings  prompt pairs
    images    one image of each study
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from accelerate import Accelerator
from jaxtyping import Float, Int8

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.rng import RngStream, generator_for
from medclip_dcl.data.manifest import read_labels
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.evaluation.classification import UNKNOWN, labelled_truth
from medclip_dcl.evaluation.metrics import mean_of, roc_auc, value_of
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.inference.zero_shot import margins, prompt_texts
from medclip_dcl.models.dual_encoder import DualEncoder, evaluating
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.text.labeler.labels import FINDINGS, REPORT_CLAIMS
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.corpus import Corpus, TokenTable
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.settings import TrainConfig
from medclip_dcl.training.supervision import read_report_labels

MOST_BATCHES = 8  # in one validation loss: enough to compare steps, cheap next to training

_IMAGES_PER_PASS = 32


def validation_batch(studies: int, settings: TrainConfig) -> int:
    """Return the pairs of a validation batch: those of training, or what a smaller split has.

    Raises:
        ConfigError: the split has too few usable studies for one batch.
    """
    least = max(2, settings.processes)  # an anchor needs a negative, a process a pair
    if studies < least:
        raise ConfigError(
            f"the validation split has {studies} studies with an image and a usable sentence, and "
            f"a batch needs {least}; set train.validate_every_steps to 0, or raise "
            "source.validate_share"
        )
    return min(settings.global_batch, studies // settings.processes * settings.processes)


class ValidationMetrics:
    """Questions to a model in training; the same at each visit.

    They are about images of the validation split: a study's first, drawn by study; `rows` are
    theirs among the prepared ones. `truth` is that of the labels, `reported` what an image's own
    report says of a finding.

    Raises:
        ConfigError: the best model is to be chosen by findings, and no finding has images
            with and without it; or the split is empty.
    """

    def __init__(
        self,
        config: TrainingConfig,
        corpus: Corpus,
        manifest: Artifact,
        claims: Artifact | None,
        prepared: PreparedImages,
        findings: tuple[Finding, ...],
        tokens: Callable[[list[str]], TokenTable],
    ) -> None:
        # By study and seed: another launch, or another model of the seed, is asked the same.
        order = generator_for(config.seed, RngStream.VALIDATION).permutation(len(corpus.study_ids))
        # Sorted, as images are read from the memory map in this order.
        studies = np.sort(order[: config.train.validate_images])
        if not len(studies):
            raise ConfigError("the validation split has no image; set train.validate_images to 0")
        study_ids = [corpus.study_ids[study] for study in studies]
        table = read_labels(manifest)
        labels = table.filter(pc.is_in(table["study_id"], pa.array(study_ids))).to_pylist()
        # 0 picks the first image of each study.
        self.rows = corpus.image_rows[corpus.images.pick(studies, np.zeros(len(studies)))]
        self._prepared, self._input_px = prepared, config.model.image.input_px
        self._findings = findings
        self.truth = labelled_truth(findings, study_ids, labels)
        self.reported = _reported(findings, claims, study_ids)
        self.prompts = tokens(prompt_texts(findings))
        judges = {"validation_auc": self.truth, "validation_report_auc": self.reported}
        judge = judges.get(config.train.best_metric)
        if judge is not None and not ((judge == 0).any(axis=1) & (judge == 1).any(axis=1)).any():
            raise ConfigError(
                f"train.best_metric is {config.train.best_metric}, and no prompted finding has "
                "validation images with and without it; choose another metric or more "
                "train.validate_images"
            )

    def __call__(self, encoder: DualEncoder, device: torch.device) -> dict[str, float | None]:
        """Ask a model in eval mode: mean AUC of truth and of claims, None: one class."""
        ids, mask = self.prompts.padded(np.arange(len(prompt_texts(self._findings))))
        sentences = encoder.encode_sentences(ids.to(device), mask.to(device))
        scores = []
        for start in range(0, self.truth.shape[1], _IMAGES_PER_PASS):
            images = [
                self._prepared.pixels(row) for row in self.rows[start : start + _IMAGES_PER_PASS]
            ]
            pixels = to_input(np.stack(images), self._input_px)
            scores.append(encoder.score(encoder.encode_images(pixels.to(device)), sentences))
        # Autocast gives half precision; areas are of float32, as those of `evaluate`.
        margin = margins(torch.cat(scores, dim=1).float().cpu(), self._findings).numpy()
        return {
            "validation_auc": _mean_auc(margin, self.truth),
            "validation_report_auc": _mean_auc(margin, self.reported),
        }


def _mean_auc(
    margin: Float[np.ndarray, "findings images"], truth: Int8[np.ndarray, "findings images"]
) -> float | None:
    areas = [
        roc_auc(row[state != UNKNOWN], state[state != UNKNOWN] == 1)
        for row, state in zip(margin, truth, strict=True)
    ]
    return value_of(mean_of(areas))


def _reported(
    findings: tuple[Finding, ...], claims: Artifact | None, study_ids: Sequence[str]
) -> Int8[np.ndarray, "findings images"]:
    # What reports say of the findings that a label names; silence is absence.
    reported = np.full((len(findings), len(study_ids)), UNKNOWN, dtype=np.int8)
    if claims is None:
        return reported
    reports = read_report_labels(claims, REPORT_CLAIMS, "study_id", study_ids)
    for row, finding in enumerate(findings):
        if finding.label in FINDINGS:
            reported[row] = [
                UNKNOWN if finding.label in report.uncertain else finding.label in report.asserted
                for report in reports
            ]
    return reported


def validation_loss(
    accelerator: Accelerator,
    encoder: DualEncoder,
    objective: ContrastiveObjective,
    batches: Sequence[ImageTextBatch],
) -> dict[str, float]:
    """Measure the loss on this process's part of the validation batches, at least one.

    Returns:
        `validation_loss`, of the configured objective, and `validation_uncorrected_loss`,
        InfoNCE; means over batches and processes. The model is left as it was.
    """
    losses = []
    with evaluating(encoder):  # the model has been prepared: its forward pass is autocast
        for item in batches:
            batch = item.to(accelerator.device)
            output = objective.compute_loss(encoder, encoder, batch)
            losses.append(torch.stack([output.loss, output.gauges["uncorrected_loss"]]).float())
    mean = accelerator.reduce(torch.stack(losses).mean(dim=0), reduction="mean").tolist()
    return {"validation_loss": mean[0], "validation_uncorrected_loss": mean[1]}


@dataclass(frozen=True)
class Validation:
    """Measure of a run while it trains: by batches, and in the main process by metrics."""

    batches: Sequence[ImageTextBatch]
    metrics: ValidationMetrics | None = None

    def __call__(
        self, accelerator: Accelerator, encoder: DualEncoder, objective: ContrastiveObjective
    ) -> dict[str, float | None]:
        """Measure a model as it is; the main process alone knows every figure."""
        figures: dict[str, float | None] = {}
        figures |= validation_loss(accelerator, encoder, objective, self.batches)
        if self.metrics is not None:
            with evaluating(encoder), accelerator.autocast():
                figures |= self.metrics(encoder, accelerator.device)
        return figures
