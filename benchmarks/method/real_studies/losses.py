"""What rows train with that no setting has: a control, a classifier, a finding that is not read."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.method.labeler import concepts_found
from benchmarks.method.real_studies.questions import QUESTIONS
from benchmarks.method.real_studies.studies import Fold
from medclip_dcl.losses.relations import relation_matrix
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.text.labeler.labels import FINDINGS, read_report
from medclip_dcl.training.dataset import ImageTextBatch, jitter
from medclip_dcl.training.objective import ContrastiveObjective, ObjectiveOutput
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


class Classifier(ContrastiveObjective):
    """No contrast: a linear layer on the tower's mean feature learns what our reader reads."""

    labels: Mapping[str, Float[Tensor, " findings"]]

    def compute_loss(
        self, _network: nn.Module, encoder: DualEncoder, batch: ImageTextBatch
    ) -> ObjectiveOutput:
        """Compute the classifier's binary cross entropy."""
        maps = encoder.image(jitter(batch.crops, batch.brightness, batch.contrast))
        shown = torch.stack([self.labels[study] for study in batch.study_ids])
        logits = encoder.get_submodule("findings")(maps.mean(dim=(2, 3)))
        loss = functional.binary_cross_entropy_with_logits(logits, shown)
        names = ("uncorrected_loss", "frac_floor")  # that the log prints of any loss
        return ObjectiveOutput(loss, dict.fromkeys(names, loss.detach()))


def shuffled(setup: TrainSetup, _fold: Fold) -> TrainSetup:
    """Train by `ShuffledRelations`."""
    return replace(setup, objective=ShuffledRelations(setup))


def classifier(setup: TrainSetup, fold: Fold) -> TrainSetup:
    """Train by `Classifier`."""
    names = [finding.name for finding in QUESTIONS]
    objective = Classifier(setup.config.objective, setup.config.seed)
    objective.labels = {}
    for patient in fold.training:
        read = concepts_found(read_report(f"{patient.findings}\n\n{patient.impression}"))
        objective.labels[patient.uid] = torch.tensor([float(name in read) for name in names])
    torch.manual_seed(setup.config.seed)
    setup.encoder.add_module("findings", nn.Linear(setup.encoder.image.width, len(names)))
    return replace(setup, objective=objective)


def unread(setup: TrainSetup, _fold: Fold, finding: str) -> TrainSetup:
    """Take a finding out of what sentences and reports are read to say, as if no word named it."""
    supervision = setup.data.dataset.supervision
    for codes in (supervision.of_texts["sentence_codes"], supervision.of_studies["report_codes"]):
        codes[:, FINDINGS.index(finding)] = 0
    return setup


def other_eta(setup: TrainSetup, _fold: Fold, order: str) -> TrainSetup:
    """Control: deal the etas out to other sentences, at random or the highest to the lowest."""
    corpus = setup.data.corpus
    eta = np.random.default_rng(setup.config.seed).permutation(corpus.eta)
    if order == "reversed":
        eta[np.argsort(corpus.eta, kind="stable")] = np.sort(corpus.eta)[::-1]
    corpus.eta[:] = eta
    return setup


CHANGES: dict[str, Callable[..., TrainSetup]] = {
    "shuffled": shuffled,
    "classifier": classifier,
    "unread": unread,
    "other_eta": other_eta,
}
"""Name in rows.yaml -> what it makes of a run's setup before the first step."""
