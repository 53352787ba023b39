"""The configured loss of a global batch, and its gauges.

Axes
    batch  slots of the global batch
    local  slots of this process

Each process scores all sentences against its own images, and the columns of scores are
gathered: batch x batch numbers travel, instead of every region of every image. Anchors
stay local and the loss is their mean, so that gradients averaged over processes are
those of one process with the whole batch.

`direction_loss` knows anchors and candidates, not texts and images: for both directions it
is called once with texts and once with images as anchors. An image anchor takes the eta of
its paired sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from medclip_dcl.errors import ObjectiveError
from medclip_dcl.losses import negatives
from medclip_dcl.losses.debiased import debiased_terms
from medclip_dcl.losses.gather import gather_with_grad
from medclip_dcl.losses.info_nce import info_nce_loss, sigmoid_loss
from medclip_dcl.losses.multi_positive import multi_positive_loss
from medclip_dcl.losses.place import place_loss, place_masks
from medclip_dcl.losses.relations import SAME, UNCLEAR, relation_gauges, relation_matrix
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.plugins import LOSSES
from medclip_dcl.rng import RngStream, torch_generator_for
from medclip_dcl.training.augment import jitter
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.settings import ObjectiveConfig

_TEXT_BETA, _HARD_BETA = 5.0, 1.0  # where `objective.beta` is not set


@dataclass(frozen=True)
class ObjectiveInputs:
    """One batch, as one direction sees it: local anchors, gathered candidates."""

    s: Float[Tensor, "anchors candidates"]
    """Similarities with their scale gamma**2."""
    positive: Int[Tensor, " anchors"]
    """Column of each anchor's positive."""
    eta: Float[Tensor, " anchors"]
    """Chance that a random candidate is of the anchor's class, in [0, 1)."""
    gamma: Float[Tensor, ""]
    """Root of the scale of s."""
    bias: Float[Tensor, ""] | None = None
    """Added to s by `sigmoid`, which needs it."""
    relation: Int8[Tensor, "anchors candidates"] | None = None
    """Codes of `relations`; needed where `objective.relation` is not `none`."""
    text_similarity: Float[Tensor, "anchors candidates"] | None = None
    """Cosine of the two texts, by `text_similarity`; needed by the `*_similar` negatives."""
    threshold: float = 1.0
    """Text similarity above which `remove_similar` drops a negative."""
    label_overlap: Bool[Tensor, "anchors candidates"] | None = None
    """Whether both have a finding in common; needed by `remove_labels`."""
    generator: torch.Generator | None = None
    """CPU generator; needed by `resample_similar`."""


@dataclass(frozen=True)
class ObjectiveOutput:
    """The loss, and what to log with it."""

    loss: Float[Tensor, ""]
    """Scalar with gradient, mean over anchors."""
    gauges: dict[str, Tensor]
    """Scalars without gradient: those of `debiasing_gauges` and `negative_gauges`."""


def direction_loss(settings: ObjectiveConfig, inputs: ObjectiveInputs) -> ObjectiveOutput:
    """Compute loss and gauges of one direction; what does not correct for eta reports an eta of 0.

    Raises:
        ObjectiveError: an input that the settings need is None, or shapes do not fit.
    """
    debiased = settings.kind == "debiased"
    same = unclear = None
    if settings.relation != "none":
        relation = _needed(inputs.relation, "relation")
        same, unclear = relation == SAME, relation == UNCLEAR
    weights = _weights(settings, inputs)
    terms = debiased_terms(
        inputs.s,
        inputs.positive,
        inputs.eta if debiased else 0.0,
        inputs.gamma,
        weights=_without(weights, unclear) if debiased else weights,
        known_mates=same if debiased else None,
    )
    if settings.kind == "multipositive":
        same = _needed(same, "relation")
        loss = multi_positive_loss(inputs.s, same, unclear, positive=inputs.positive)
    elif settings.kind == "sigmoid":
        loss = sigmoid_loss(inputs.s, inputs.positive, bias=_needed(inputs.bias, "bias"))
    elif settings.kind in LOSSES:
        loss = LOSSES[settings.kind](inputs)
    else:  # InfoNCE is the debiased loss with eta = 0; fallback has no floor to meet there
        loss = terms.loss(settings.floor if debiased else "fallback")
    known = None if same is None or unclear is None else same | unclear
    counts = negatives.negative_gauges(inputs.s, inputs.positive, weights, known)
    return ObjectiveOutput(loss, terms.gauges() | counts)


def _without(
    weights: Float[Tensor, "anchors candidates"] | None,
    unclear: Bool[Tensor, "anchors candidates"] | None,
) -> Float[Tensor, "anchors candidates"] | None:
    """Take candidates of which nothing is known out of the loss: they neither push nor pull."""
    if unclear is None:
        return weights
    return (~unclear).float() if weights is None else weights.masked_fill(unclear, 0.0)


def _weights(
    settings: ObjectiveConfig, inputs: ObjectiveInputs
) -> Float[Tensor, "anchors candidates"] | None:
    positive = inputs.positive
    if settings.negatives == "all":
        return None
    if settings.negatives == "hard":
        beta = _HARD_BETA if settings.beta is None else settings.beta
        return negatives.reweight_hard(inputs.s, positive, beta)
    if settings.negatives == "remove_labels":
        return negatives.remove_by_labels(_needed(inputs.label_overlap, "label_overlap"), positive)
    similarity = _needed(inputs.text_similarity, "text_similarity")
    if settings.negatives == "remove_similar":
        return negatives.remove_by_similarity(similarity, positive, inputs.threshold)
    beta = _TEXT_BETA if settings.beta is None else settings.beta
    if settings.negatives == "reweight_similar":
        return negatives.reweight_by_similarity(similarity, positive, beta)
    if inputs.generator is None:
        raise ObjectiveError("resample_similar draws at random; hand it a generator")
    return negatives.resample_by_similarity(
        similarity, positive, beta, 1 - settings.remove_share, inputs.generator
    )


def mean_output(outputs: Sequence[ObjectiveOutput]) -> ObjectiveOutput:
    """Join the outputs of several directions: mean loss and mean gauges."""
    count = len(outputs)
    return ObjectiveOutput(
        torch.stack([output.loss for output in outputs]).sum() / count,
        {
            name: torch.stack([output.gauges[name] for output in outputs]).sum() / count
            for name in outputs[0].gauges
        },
    )


def _needed(value: Tensor | None, name: str) -> Tensor:
    if value is None:
        raise ObjectiveError(f"the configured objective needs {name}, which is None; hand it in")
    return value


class ContrastiveObjective:
    """The configured loss over a global batch.

    `seed` is that of negatives that are drawn, `threshold` the text similarity above which
    `remove_similar` drops one. With a `chunk`, pairs are scored in blocks of so many, and a batch
    without gradients is encoded so.
    """

    def __init__(
        self, settings: ObjectiveConfig, seed: int, threshold: float = 1.0, chunk: int = 0
    ) -> None:
        self._settings, self._seed, self._threshold = settings, seed, threshold
        self._chunk = chunk

    def compute_loss(
        self, network: nn.Module, encoder: DualEncoder, batch: ImageTextBatch
    ) -> ObjectiveOutput:
        """Run the model on a batch and compute the mean loss of this process's anchors.

        `network` is what is called: the encoder itself, or its distributed wrapper.
        """
        parts = [batch]
        if self._chunk and not torch.is_grad_enabled():
            parts = batch.in_chunks(self._chunk)
        encoded = [self.encode(network, part) for part in parts]
        regions, sentences = encoded[0]
        if len(encoded) > 1:
            regions, sentences = (torch.cat(side) for side in zip(*encoded, strict=True))
        return self(encoder, regions, sentences, batch)

    @staticmethod
    def encode(network: nn.Module, batch: ImageTextBatch) -> tuple[Tensor, Tensor]:
        """Give the unit vectors of regions and sentences of this process's pairs."""
        if batch.image_features is None:
            pixels = jitter(batch.crops, batch.brightness, batch.contrast)
            found = network(pixels, batch.input_ids, batch.attention_mask)
        else:
            found = network(batch.image_features, batch.text_features)
        vectors: tuple[Tensor, Tensor] = found
        return vectors

    def __call__(
        self,
        encoder: DualEncoder,
        regions: Float[Tensor, "local rows columns dim"],
        sentences: Float[Tensor, "texts dim"],
        batch: ImageTextBatch,
    ) -> ObjectiveOutput:
        """Compute the mean loss of this process's anchors from unit vectors of both sides."""
        # Sentences travel to the images, and then one number a pair: regions are some hundred times
        # as large. With gradients, as a process's anchors push the images of all others too.
        columns = self._score(encoder, regions, gather_with_grad(sentences))  # (batch, local)
        s = encoder.gamma**2 * gather_with_grad(columns.T).T  # (batch, batch)
        output = self.contrast(s, encoder, batch)
        if not self._settings.place_weight:
            return output
        place = self._place(regions, sentences, encoder.gamma, batch)
        loss = output.loss + self._settings.place_weight * place.loss
        return ObjectiveOutput(loss, output.gauges | place.gauges)

    def _score(
        self,
        encoder: DualEncoder,
        regions: Float[Tensor, "local rows columns dim"],
        sentences: Float[Tensor, "batch dim"],
    ) -> Float[Tensor, "batch local"]:
        if not self._chunk:
            return encoder.score(regions, sentences)
        # Every pair has a number a region: of a large batch they fit block by block alone, and the
        # backward pass makes a block's again.
        blocks = [
            [
                checkpoint(encoder.score, images, texts, use_reentrant=False)
                for images in _chunks(regions, self._chunk)
            ]
            for texts in _chunks(sentences, self._chunk)
        ]
        return torch.cat([torch.cat(row, dim=1) for row in blocks])

    def contrast(self, s: Tensor, encoder: DualEncoder, batch: ImageTextBatch) -> ObjectiveOutput:
        """Contrast scaled scores (batch, batch), texts by images, without the place loss."""
        directions = self._settings.directions
        outputs = []
        if directions != "i2t":
            outputs.append(self._direction(s, encoder, batch, from_text=True))
        if directions == "both" and self._settings.image_anchor == "own":
            # Every sentence stays a candidate, false negatives too: they are what divides the
            # prior of a sentence out of its score, so that two sentences can be compared.
            images = info_nce_loss(s.T[batch.mine], _columns(batch, s.device))
            return replace(outputs[0], loss=(outputs[0].loss + images) / 2)
        if directions != "t2i":
            outputs.append(self._direction(s.T, encoder, batch, from_text=False))
        return mean_output(outputs)

    def _place(
        self, regions: Tensor, sentences: Tensor, gamma: Tensor, batch: ImageTextBatch
    ) -> ObjectiveOutput:
        codes = _needed(batch.sentence_codes, "sentence_codes")
        reports, zones = _needed(batch.report_codes, "report_codes"), _needed(batch.zones, "zones")
        places, grid = self._settings.places, (regions.shape[1], regions.shape[2])
        masks = place_masks(codes, reports, zones, grid, usual_places=places != "words")
        placed = masks.flatten(1).any(dim=1)
        if places == "shuffled":
            pairs = placed.nonzero().squeeze(1)
            masks[pairs] = masks[pairs.roll(1)]
        losses, fits = place_loss(regions, sentences, masks[batch.mine], gamma)
        # A mean over the pairs of the whole batch that have a place: gradients are averaged
        # over processes, and each may have another number of them.
        share = len(masks) / len(losses) / placed.sum().clamp(min=1)
        gauges = {"place_pairs": placed.float().mean(), "place_inside": fits.sum() * share}
        return ObjectiveOutput(losses.sum() * share, gauges)

    def _direction(
        self,
        s: Float[Tensor, "batch batch"],
        encoder: DualEncoder,
        batch: ImageTextBatch,
        *,
        from_text: bool,
    ) -> ObjectiveOutput:
        mine, positive = batch.mine, _columns(batch, s.device)
        inputs = ObjectiveInputs(
            s=s[mine],
            positive=positive,
            eta=batch.eta[mine],
            gamma=encoder.gamma,
            bias=encoder.bias,
            relation=self._relation(batch, from_text=from_text),
            text_similarity=_text_similarity(batch),
            threshold=self._threshold,
            label_overlap=_label_overlap(batch),
            # Each process and direction draws its own, and a resumed run the same again.
            generator=torch_generator_for(
                self._seed, RngStream.NEGATIVES, batch.step, mine.start, int(from_text)
            ),
        )
        output = direction_loss(self._settings, inputs)
        if inputs.relation is not None and batch.sentence_codes is not None:
            known = relation_gauges(inputs.relation, batch.sentence_codes[mine], positive)
            output.gauges.update(known)
        return output

    def _relation(self, batch: ImageTextBatch, *, from_text: bool) -> Tensor | None:
        sentences, reports = batch.sentence_codes, batch.report_codes
        if self._settings.relation == "none" or sentences is None or reports is None:
            return None
        if from_text:
            return relation_matrix(sentences[batch.mine], reports)
        # An image stands to a sentence as the sentence stands to its report.
        return relation_matrix(sentences, reports[batch.mine]).T


def _chunks(rows: Tensor, size: int) -> list[Tensor]:
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def _columns(batch: ImageTextBatch, device: torch.device) -> Int[Tensor, " local"]:
    # Column of each local anchor's own candidate.
    return torch.arange(batch.mine.start, batch.mine.stop, device=device)


def _text_similarity(batch: ImageTextBatch) -> Tensor | None:
    vectors = batch.text_vectors
    return None if vectors is None else vectors[batch.mine] @ vectors.T


def _label_overlap(batch: ImageTextBatch) -> Tensor | None:
    if batch.labels is None:
        return None
    present = batch.labels.float()
    return present[batch.mine] @ present.T > 0
