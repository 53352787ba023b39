"""Region and sentence vectors of every process -> the loss of this process's anchors.

Axes
    batch  places in the global batch
    local  places of this process

Each process scores all sentences against its own films, and the columns of scores are
gathered: batch x batch numbers travel, instead of every region of every film. Anchors
stay local and the loss is their mean, so that gradients averaged over processes are
those of one process with the whole batch.
"""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from medclip_dcl.config.objective import ObjectiveConfig
from medclip_dcl.model.dual_encoder import DualEncoder
from medclip_dcl.model.text_encoder import TextEncoder
from medclip_dcl.objective.build import ObjectiveInputs, ObjectiveOutput, build_objective, mean_of
from medclip_dcl.objective.gather import gather_constant, gather_with_grad
from medclip_dcl.objective.relations import relation_gauges, relation_matrix
from medclip_dcl.training.augment import jitter
from medclip_dcl.training.draws import Stream, torch_generator_for
from medclip_dcl.training.pairs import PairBatch


class Contrast(nn.Module):
    """The configured loss over a global batch.

    Args:
        settings: the objective.
        seed: seed of negatives that are drawn.
        encoder: the model before its first step; its text encoder is copied and frozen
            where the objective compares texts.
    """

    def __init__(self, settings: ObjectiveConfig, seed: int, encoder: DualEncoder) -> None:
        super().__init__()
        self._settings, self._seed = settings, seed
        self._objective = build_objective(settings)
        self.frozen_text: TextEncoder | None = None
        if settings.negatives.endswith("_similar"):
            self.frozen_text = copy.deepcopy(encoder.text).eval().requires_grad_(False)

    def read(self, network: nn.Module, encoder: DualEncoder, batch: PairBatch) -> ObjectiveOutput:
        """Run the model on a batch and compute the loss of this process's anchors.

        Args:
            network: the model as it is called: itself, or in its distributed wrapper.
            encoder: the model itself, for its similarity and gamma.
            batch: the batch, on the model's device.

        Returns:
            Mean loss of the local anchors, and gauges.
        """
        pixels = jitter(batch.crops, batch.brightness, batch.contrast)
        regions, sentences = network(pixels, batch.input_ids, batch.attention_mask)
        output: ObjectiveOutput = self(encoder, regions, sentences, batch)
        return output

    def forward(
        self,
        encoder: DualEncoder,
        regions: Float[Tensor, "local rows columns dim"],
        sentences: Float[Tensor, "local dim"],
        batch: PairBatch,
    ) -> ObjectiveOutput:
        """Compute the loss of this process's anchors.

        Args:
            encoder: the model, for its similarity and gamma.
            regions: unit vectors of this process's films.
            sentences: unit vectors of this process's sentences.
            batch: where they stand in the global batch, and what is known of it.

        Returns:
            Mean loss of the local anchors, and gauges.
        """
        all_sentences = gather_with_grad(sentences)
        columns = encoder.score(regions, all_sentences)  # (batch, local)
        s = encoder.gamma**2 * gather_with_grad(columns.T).T  # (batch, batch)
        similarity = self._text_similarity(batch)
        outputs = []
        if self._settings.directions != "i2t":
            outputs.append(self._direction(encoder, s, batch, similarity, from_text=True))
        if self._settings.directions != "t2i":
            outputs.append(self._direction(encoder, s.T, batch, similarity, from_text=False))
        return mean_of(outputs)

    def _direction(
        self,
        encoder: DualEncoder,
        s: Float[Tensor, "batch batch"],
        batch: PairBatch,
        similarity: Tensor | None,
        *,
        from_text: bool,
    ) -> ObjectiveOutput:
        mine = batch.mine
        positive = torch.arange(mine.start, mine.stop, device=s.device)
        inputs = ObjectiveInputs(
            s=s[mine],
            positive=positive,
            eta=batch.eta[mine],
            gamma=encoder.gamma,
            relation=_relation(batch, from_text=from_text),
            text_similarity=similarity,
            label_overlap=_label_overlap(batch),
            generator=torch_generator_for(
                self._seed, Stream.NEGATIVES, batch.step, mine.start, int(from_text)
            ),
        )
        output = self._objective(inputs)
        if inputs.relation is not None and batch.sentence_codes is not None:
            known = relation_gauges(inputs.relation, batch.sentence_codes[mine], positive)
            output.gauges.update(known)
        return output

    @torch.no_grad()
    def _text_similarity(self, batch: PairBatch) -> Float[Tensor, "local batch"] | None:
        if self.frozen_text is None:
            return None
        vectors = self.frozen_text(batch.input_ids, batch.attention_mask).float()
        vectors = functional.normalize(vectors, dim=-1)
        return vectors @ gather_constant(vectors).T


def _relation(batch: PairBatch, *, from_text: bool) -> Tensor | None:
    if batch.sentence_codes is None or batch.report_codes is None:
        return None
    if from_text:
        return relation_matrix(batch.sentence_codes[batch.mine], batch.report_codes)
    return relation_matrix(batch.sentence_codes, batch.report_codes[batch.mine]).T


def _label_overlap(batch: PairBatch) -> Tensor | None:
    if batch.labels is None:
        return None
    present = batch.labels.float()
    return present[batch.mine] @ present.T > 0
