"""The loss of one global batch: similarities of all pairs -> a scalar, and its gauges.

Axes
    batch  slots of the global batch
    local  slots of this process

Each process scores all sentences against its own images, and the columns of scores are
gathered: batch x batch numbers travel, instead of every region of every image. Anchors
stay local and the loss is their mean, so that gradients averaged over processes are
those of one process with the whole batch.

`LOSSES` has the loss of one direction by its name. A loss knows anchors and candidates, not texts
and images: for both directions it is called once with texts and once with images as anchors. An
image anchor takes the eta of its paired sentence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from medclip_dcl.core.errors import ObjectiveError
from medclip_dcl.core.plugins import LOSSES
from medclip_dcl.core.rng import RngStream, torch_generator_for
from medclip_dcl.losses import negatives
from medclip_dcl.losses.debiased import debiased_terms
from medclip_dcl.losses.gather import gather_with_grad
from medclip_dcl.losses.info_nce import info_nce_loss, multi_positive_loss
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.training.dataset import ImageTextBatch, jitter
from medclip_dcl.training.settings import ObjectiveConfig


@dataclass(frozen=True)
class ObjectiveInputs:
    """One batch, as one direction sees it: local anchors, gathered candidates."""

    s: Float[Tensor, "anchors candidates"]  # similarities with their scale gamma**2
    positive: Int[Tensor, " anchors"]  # column of each anchor's positive
    eta: Float[Tensor, " anchors"]
    """Chance that a random candidate is of the anchor's class, in [0, 1)."""
    gamma: Float[Tensor, ""]  # root of the scale of s
    settings: ObjectiveConfig = field(default_factory=ObjectiveConfig)  # the section `objective`
    weights: Float[Tensor, "anchors candidates"] | None = None
    """Factor on e^s of each negative, by `objective.negatives`; None: all count alike."""
    relation: Int8[Tensor, "anchors candidates"] | None = None
    """Codes of `relations`; needed where `objective.relation` is not `none`."""
    text_similarity: Float[Tensor, "anchors candidates"] | None = None
    """Cosine of the two texts, by their `text_vectors`; needed by the `*_similar` negatives."""
    threshold: float = 1.0  # text similarity above which `remove_similar` drops a negative
    label_overlap: Bool[Tensor, "anchors candidates"] | None = None
    """Whether both have a finding in common; needed by `remove_labels`."""
    generator: torch.Generator | None = None  # CPU generator; needed by `resample_similar`

    @property
    def same(self) -> Bool[Tensor, "anchors candidates"] | None:
        """Candidates known to be of the anchor's class; None: nothing is known of any."""
        return self._is("SAME")

    @property
    def unclear(self) -> Bool[Tensor, "anchors candidates"] | None:
        """Candidates that may be of the anchor's class or not; None likewise."""
        return self._is("UNCLEAR")

    def _is(self, state: str) -> Tensor | None:
        if self.settings.relation == "none":
            return None
        from medclip_dcl.losses import relations

        related: Tensor = needed(self.relation, "relation") == getattr(relations, state)
        return related


@dataclass(frozen=True)
class ObjectiveOutput:
    """The loss, and what to log with it."""

    loss: Float[Tensor, ""]  # scalar with gradient, mean over anchors
    gauges: dict[str, Tensor]
    """Scalars without gradient: those of `debiasing_gauges` and `negative_gauges`."""


def needed(value: Tensor | None, name: str) -> Tensor:
    """Return a tensor that an option needs; ObjectiveError where it is None."""
    if value is None:
        raise ObjectiveError(f"the configured objective needs {name}, which is None; hand it in")
    return value


# --- Losses of one direction: `objective.kind`


def debiased(inputs: ObjectiveInputs) -> ObjectiveOutput:
    """Compute the paper's loss: same candidates join the positives, unclear ones leave."""
    weights, unclear = inputs.weights, inputs.unclear
    if unclear is not None:  # what is not known of neither pushes nor pulls
        weights = torch.ones_like(inputs.s) if weights is None else weights
        weights = weights.masked_fill(unclear, 0.0)
    terms = debiased_terms(
        *(inputs.s, inputs.positive, inputs.eta, inputs.gamma),
        weights=weights,
        known_mates=inputs.same,
    )
    return ObjectiveOutput(terms.loss(inputs.settings.floor), terms.gauges())


def info_nce(inputs: ObjectiveInputs) -> ObjectiveOutput:
    """Compute InfoNCE: the debiased loss with eta = 0; fallback has no floor to meet there."""
    terms = debiased_terms(inputs.s, inputs.positive, 0.0, inputs.gamma, weights=inputs.weights)
    return ObjectiveOutput(terms.loss("fallback"), terms.gauges())


def multi_positive(inputs: ObjectiveInputs) -> ObjectiveOutput:
    """Pull same candidates as well, and leave unclear ones out."""
    same = needed(inputs.same, "relation")
    loss = multi_positive_loss(inputs.s, same, inputs.unclear, positive=inputs.positive)
    # Gauges are InfoNCE's, so that logs of different objectives can be compared.
    return ObjectiveOutput(loss, info_nce(inputs).gauges)


# --- Weights on negatives: `objective.negatives`


def remove_labels(inputs: ObjectiveInputs) -> Tensor:
    """Drop negatives that have a finding in common with the anchor."""
    overlap = needed(inputs.label_overlap, "label_overlap")
    return negatives.remove_by_labels(overlap, inputs.positive)


def remove_similar(inputs: ObjectiveInputs) -> Tensor:
    """Drop negatives whose text is nearer than the threshold."""
    similarity = needed(inputs.text_similarity, "text_similarity")
    return negatives.remove_by_similarity(similarity, inputs.positive, inputs.threshold)


def reweight_similar(inputs: ObjectiveInputs) -> Tensor:
    """Weigh negatives less, the nearer their text."""
    similarity = needed(inputs.text_similarity, "text_similarity")
    return negatives.reweight_by_similarity(similarity, inputs.positive, inputs.settings.beta)


def resample_similar(inputs: ObjectiveInputs) -> Tensor:
    """Draw negatives by chance, the less often the nearer their text."""
    similarity, settings = needed(inputs.text_similarity, "text_similarity"), inputs.settings
    if inputs.generator is None:
        raise ObjectiveError("resample_similar draws at random; hand it a generator")
    share = 1 - settings.remove_share
    return negatives.resample_by_similarity(
        similarity, inputs.positive, settings.beta, share, inputs.generator
    )


NEGATIVES: dict[str, Callable[[ObjectiveInputs], Tensor | None]] = {
    "all": lambda _: None,
    "remove_labels": remove_labels,
    "remove_similar": remove_similar,
    "reweight_similar": reweight_similar,
    "resample_similar": resample_similar,
}
"""Weights on the negatives of one direction, by `objective.negatives`; None: all count alike."""


# --- One direction


def direction_loss(settings: ObjectiveConfig, inputs: ObjectiveInputs) -> ObjectiveOutput:
    """Compute loss and gauges of one direction; what does not correct for eta reports an eta of 0.

    Raises:
        ObjectiveError: an input that the settings need is None, or shapes do not fit.
    """
    inputs = replace(inputs, settings=settings)
    inputs = replace(inputs, weights=NEGATIVES[settings.negatives](inputs))
    output = LOSSES[settings.kind](inputs)
    if isinstance(output, Tensor):  # of a plugin
        output = ObjectiveOutput(output, info_nce(inputs).gauges)
    # Who is known to be of the class does not count as a negative, whatever the loss does with it.
    same, unclear = inputs.same, inputs.unclear
    related = None if same is None or unclear is None else same | unclear
    counts = negatives.negative_gauges(inputs.s, inputs.positive, inputs.weights, related)
    return ObjectiveOutput(output.loss, output.gauges | counts)


# --- The loss of a batch


def mean_output(outputs: Sequence[ObjectiveOutput]) -> ObjectiveOutput:
    """Join the outputs of several directions: mean loss, and gauges that are means of theirs."""
    values: dict[str, list[Tensor]] = {}
    for output in outputs:
        for name, value in output.gauges.items():
            values.setdefault(name, []).append(value)
    gauges = {name: torch.stack(each).mean() for name, each in values.items()}
    return ObjectiveOutput(torch.stack([output.loss for output in outputs]).mean(), gauges)


class ContrastiveObjective:
    """The configured loss over a global batch.

    `seed` is that of negatives that are drawn, `threshold` the text similarity above which
    `remove_similar` drops one. With a `chunk`, pairs are scored in blocks of so many, and a batch
    without gradients is encoded so.
    """

    def __init__(
        self, settings: ObjectiveConfig, seed: int, threshold: float = 1.0, chunk: int = 0
    ) -> None:
        self.settings = settings
        self._seed, self._threshold, self._chunk = seed, threshold, chunk

    def compute_loss(
        self, network: nn.Module, encoder: DualEncoder, batch: ImageTextBatch
    ) -> ObjectiveOutput:
        """Run the model on a batch and compute the mean loss of this process's anchors.

        `network` is what is called: the encoder itself, or its distributed wrapper.
        """
        # With gradients `TrainStep` cuts the batch, as the second pass needs the whole loss first.
        if self._chunk and not torch.is_grad_enabled():
            encoded = [self.encode(network, part) for part in batch.in_chunks(self._chunk)]
            regions, sentences = (torch.cat(side) for side in zip(*encoded, strict=True))
        else:
            regions, sentences = self.encode(network, batch)
        return self(encoder, regions, sentences, batch)

    @staticmethod
    def encode(network: nn.Module, batch: ImageTextBatch) -> tuple[Tensor, Tensor]:
        """Encode this process's pairs: unit vectors of regions and of sentences."""
        pixels = jitter(batch.crops, batch.brightness, batch.contrast)
        vectors: tuple[Tensor, Tensor] = network(pixels, batch.input_ids, batch.attention_mask)
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
        return self.contrast(s, encoder, batch)

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
                for images in torch.split(regions, self._chunk)
            ]
            for texts in torch.split(sentences, self._chunk)
        ]
        return torch.cat([torch.cat(row, dim=1) for row in blocks])

    def contrast(self, s: Tensor, encoder: DualEncoder, batch: ImageTextBatch) -> ObjectiveOutput:
        """Contrast scaled scores (batch, batch), texts by images."""
        settings, outputs = self.settings, []
        if settings.directions != "i2t":
            outputs.append(self.direction(s, encoder, batch, from_text=True))
        if settings.directions == "both" and settings.image_anchor == "own":
            # Every sentence stays a candidate, false negatives too: they are what divides the
            # prior of a sentence out of its score, so that two sentences can be compared.
            own = info_nce_loss(s.T[batch.mine], _own_columns(batch, s.device))
            outputs.append(ObjectiveOutput(own, {}))
        elif settings.directions != "t2i":
            outputs.append(self.direction(s.T, encoder, batch, from_text=False))
        return mean_output(outputs)

    def direction(
        self,
        s: Float[Tensor, "batch batch"],
        encoder: DualEncoder,
        batch: ImageTextBatch,
        *,
        from_text: bool,
    ) -> ObjectiveOutput:
        """Compute the loss of one direction; `s` has its anchors as rows."""
        mine, positive = batch.mine, _own_columns(batch, s.device)
        vectors, labels = batch.columns.get("text_vectors"), batch.columns.get("labels")
        present = None if labels is None else labels.float()
        inputs = ObjectiveInputs(
            s=s[mine],
            positive=positive,
            eta=batch.eta[mine],
            gamma=encoder.gamma,
            relation=self.relation(batch, from_text=from_text),
            text_similarity=None if vectors is None else vectors[mine] @ vectors.T,
            threshold=self._threshold,
            label_overlap=None if present is None else present[mine] @ present.T > 0,
            # Each process and direction draws its own, and a resumed run the same again.
            generator=torch_generator_for(
                self._seed, RngStream.NEGATIVES, batch.step, mine.start, int(from_text)
            ),
        )
        output = direction_loss(self.settings, inputs)
        if inputs.relation is not None:
            from medclip_dcl.losses.relations import relation_gauges

            codes = batch.columns["sentence_codes"][mine]
            output.gauges.update(relation_gauges(inputs.relation, codes, positive))
        return output

    def relation(self, batch: ImageTextBatch, *, from_text: bool) -> Tensor | None:
        """Tell how the anchors of one direction stand to all candidates, where that is used."""
        if self.settings.relation == "none" or "sentence_codes" not in batch.columns:
            return None
        from medclip_dcl.losses.relations import relation_matrix

        sentences, reports = batch.columns["sentence_codes"], batch.columns["report_codes"]
        if from_text:
            return relation_matrix(sentences[batch.mine], reports)
        # An image stands to a sentence as the sentence stands to its report.
        return relation_matrix(sentences, reports[batch.mine]).T


def _own_columns(batch: ImageTextBatch, device: torch.device) -> Int[Tensor, " local"]:
    # Column of each local anchor's own candidate.
    return torch.arange(batch.mine.start, batch.mine.stop, device=device)
