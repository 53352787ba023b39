"""What rows train with that no setting has: controls, rivals, and a classifier on the tower."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.method.labeler import concepts_found
from benchmarks.method.real_studies.questions import QUESTIONS
from benchmarks.method.real_studies.studies import Fold
from medclip_dcl.losses.info_nce import info_nce_loss
from medclip_dcl.losses.relations import SAME, UNCLEAR, relation_matrix
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.text.labeler.labels import FINDINGS, read_report
from medclip_dcl.training.dataset import ImageTextBatch, jitter
from medclip_dcl.training.objective import ContrastiveObjective, ObjectiveOutput
from medclip_dcl.training.settings import ObjectiveConfig
from medclip_dcl.training.setup import TrainSetup


class ShuffledRelations(ContrastiveObjective):
    """Control: relations to the report of another study, the same one in all steps."""

    def __init__(self, setup: TrainSetup) -> None:
        super().__init__(setup.config.objective, setup.config.seed)
        codes = setup.data.dataset.supervision.of_studies["report_codes"]
        cycle = np.random.default_rng(setup.config.seed).permutation(len(codes))
        other = np.empty_like(cycle)
        other[cycle] = np.roll(cycle, -1)
        studies = setup.data.corpus.study_ids
        self._codes = dict(zip(studies, codes[other], strict=True))

    def relation(self, batch: ImageTextBatch, *, from_text: bool) -> Tensor | None:
        """Relate the batch by other reports; studies that do not train by their own."""
        if not self._codes.keys() >= set(batch.study_ids):
            return super().relation(batch, from_text=from_text)
        reports = torch.stack([self._codes[study] for study in batch.study_ids])
        relation = relation_matrix(batch.columns["sentence_codes"], reports)
        return relation if from_text else relation.T


class SigmoidRelations(ContrastiveObjective):
    """Each pair judged alone, with a learned bias: SAME 1, DIFFERENT 0, UNCLEAR left out.

    Source: Zhai et al. 2023, Algorithm 1; relations are ours.
    """

    def contrast(self, s: Tensor, encoder: DualEncoder, batch: ImageTextBatch) -> ObjectiveOutput:
        """Judge all pairs of texts and images."""
        relation = self.relation(batch, from_text=True)
        assert relation is not None
        own = torch.eye(len(s), dtype=torch.bool)
        together = own | (relation == SAME)
        logits = s + encoder.get_parameter("bias")
        losses = -functional.logsigmoid(torch.where(together, logits, -logits))
        loss = losses.masked_fill((relation == UNCLEAR) & ~own, 0).sum(dim=1).mean()
        return _output(loss, s)


def _output(loss: Tensor, s: Tensor) -> ObjectiveOutput:
    plain = info_nce_loss(s.detach())  # in the log next to any loss
    return ObjectiveOutput(loss, {"uncorrected_loss": plain, "frac_floor": plain.new_zeros(())})


class ClassifierHead(ContrastiveObjective):
    """A linear layer on the tower's mean feature, by what our reader takes from the reports.

    `weight` of its cross entropy next to the contrast; None: it trains without any contrast.
    """

    def __init__(
        self,
        settings: ObjectiveConfig,
        seed: int,
        labels: dict[str, Float[Tensor, " findings"]],
        weight: float | None,
    ) -> None:
        super().__init__(settings, seed)
        self._labels, self._weight = labels, weight
        self.is_alone = weight is None

    def compute_loss(
        self, network: nn.Module, encoder: DualEncoder, batch: ImageTextBatch
    ) -> ObjectiveOutput:
        """Add the classifier's loss to that of the contrast, from one pass of the tower."""
        if not torch.is_grad_enabled():  # of studies that do not train
            return super().compute_loss(network, encoder, batch)
        maps: list[Tensor] = []
        if self.is_alone:
            maps.append(encoder.image(jitter(batch.crops, batch.brightness, batch.contrast)))
        else:
            hook = encoder.image.register_forward_hook(lambda *seen: maps.append(seen[2]))
            output = super().compute_loss(network, encoder, batch)
            hook.remove()
        shown = torch.stack([self._labels[study] for study in batch.study_ids])
        logits = encoder.get_submodule("findings")(maps[0].mean(dim=(2, 3)))
        loss = functional.binary_cross_entropy_with_logits(logits, shown)
        if self._weight is None:
            return _output(loss, torch.zeros(2, 2))
        gauges = output.gauges | {"head_loss": loss.detach()}
        return ObjectiveOutput(output.loss + self._weight * loss, gauges)


def shuffled(setup: TrainSetup, _fold: Fold) -> TrainSetup:
    """Train by `ShuffledRelations`."""
    return replace(setup, objective=ShuffledRelations(setup))


def sigmoid(setup: TrainSetup, _fold: Fold) -> TrainSetup:
    """Train by `SigmoidRelations`; at its start a pair counts as positive once in a batch."""
    bias = torch.tensor(-math.log(setup.config.train.global_batch - 1))
    setup.encoder.register_parameter("bias", nn.Parameter(bias))
    objective = SigmoidRelations(setup.config.objective, setup.config.seed)
    return replace(setup, objective=objective)


def head(setup: TrainSetup, fold: Fold, weight: float | None = None) -> TrainSetup:
    """Train by `ClassifierHead`."""
    names = [finding.name for finding in QUESTIONS]
    labels = {}
    for patient in fold.training:
        read = concepts_found(read_report(f"{patient.findings}\n\n{patient.impression}"))
        labels[patient.uid] = torch.tensor([float(name in read) for name in names])
    torch.manual_seed(setup.config.seed)
    setup.encoder.add_module("findings", nn.Linear(setup.encoder.image.width, len(names)))
    config = setup.config
    objective = ClassifierHead(config.objective, config.seed, labels, weight)
    return replace(setup, objective=objective)


def unread(setup: TrainSetup, _fold: Fold, finding: str) -> TrainSetup:
    """Take a finding out of what sentences and reports are read to say, as if no word named it."""
    supervision = setup.data.dataset.supervision
    for codes in (supervision.of_texts["sentence_codes"], supervision.of_studies["report_codes"]):
        codes[:, FINDINGS.index(finding)] = 0
    return setup


def other_eta(setup: TrainSetup, _fold: Fold, *, order: str) -> TrainSetup:
    """Control: deal the etas out to other sentences, at random or the highest to the lowest."""
    corpus = setup.data.corpus
    eta = np.random.default_rng(setup.config.seed).permutation(corpus.eta)
    if order == "reversed":
        eta[np.argsort(corpus.eta, kind="stable")] = np.sort(corpus.eta)[::-1]
    corpus.eta[:] = eta
    return setup


class RampedEta(ContrastiveObjective):
    """Eta rises from 0 to its own value over the first half of the steps."""

    steps = 1

    def __call__(
        self, encoder: DualEncoder, regions: Tensor, sentences: Tensor, batch: ImageTextBatch
    ) -> ObjectiveOutput:
        """Compute the loss with the eta of this step."""
        eta = batch.eta * min(1.0, 2 * batch.step / self.steps)
        return super().__call__(encoder, regions, sentences, replace(batch, eta=eta))


def ramped(setup: TrainSetup, fold: Fold, order: str = "") -> TrainSetup:
    """Train by `RampedEta`; with an order: by the etas of other sentences."""
    objective = RampedEta(setup.config.objective, setup.config.seed)
    objective.steps = setup.config.train.total_steps
    changed = replace(setup, objective=objective)
    return other_eta(changed, fold, order=order) if order else changed


CHANGES: dict[str, Callable[..., TrainSetup]] = {
    "shuffled": shuffled,
    "sigmoid": sigmoid,
    "head": head,
    "unread": unread,
    "other_eta": other_eta,
    "ramped": ramped,
}
"""Name in rows.yaml -> what it makes of a run's setup before the first step."""
