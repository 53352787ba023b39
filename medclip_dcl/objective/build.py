"""ObjectiveConfig -> the loss of one direction, with its gauges.

An objective knows anchors and candidates, not texts and images: for both directions
it is called once with texts and once with images as anchors, and `mean_of` joins the
two outputs. An image anchor takes the eta of its paired sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from medclip_dcl.config.objective import ObjectiveConfig
from medclip_dcl.errors import ObjectiveError
from medclip_dcl.objective import negatives
from medclip_dcl.objective.debiased import debiased_loss_of, debiased_terms
from medclip_dcl.objective.gauges import gauges_of_terms
from medclip_dcl.objective.multipositive import multi_positive_loss
from medclip_dcl.objective.relations import SAME, UNCLEAR
from medclip_dcl.objective.sigmoid import sigmoid_loss


@dataclass(frozen=True)
class ObjectiveInputs:
    """One batch, as one direction sees it."""

    s: Float[Tensor, "anchors candidates"]
    """Similarities with their scale gamma**2."""
    positive: Int[Tensor, " anchors"]
    """Column of each anchor's positive."""
    eta: Float[Tensor, " anchors"]
    """Chance that a random candidate is of the anchor's class, in [0, 1)."""
    gamma: Float[Tensor, ""]
    """Root of the scale of s."""
    relation: Int8[Tensor, "anchors candidates"] | None = None
    """Codes of `relations`; needed where `objective.relation` is not `none`."""
    text_similarity: Float[Tensor, "anchors candidates"] | None = None
    """Cosine of the two texts under a frozen encoder; needed by the `*_similar` negatives."""
    known_positives: Bool[Tensor, "anchors candidates"] | None = None
    """Candidates known to be of the anchor's class whatever the relation; `debiased` reads it."""
    label_overlap: Bool[Tensor, "anchors candidates"] | None = None
    """Whether both have a finding in common; needed by `remove_labels`."""
    generator: torch.Generator | None = None
    """CPU generator; needed by `resample_similar`."""


@dataclass(frozen=True)
class ObjectiveOutput:
    """The loss, and what to log beside it."""

    loss: Float[Tensor, ""]
    """Scalar with gradient, mean over anchors."""
    gauges: dict[str, Tensor]
    """Scalars without gradient: those of `debiasing_gauges`, for what the loss did."""


@dataclass(frozen=True)
class Objective:
    """The configured loss."""

    settings: ObjectiveConfig
    """Kind of loss and what it is told about negatives."""

    def __call__(self, inputs: ObjectiveInputs) -> ObjectiveOutput:
        """Compute loss and gauges of one direction.

        Args:
            inputs: the batch; local anchors, gathered candidates.

        Returns:
            Loss and gauges. What does not correct for eta reports a mean eta of 0.

        Raises:
            ObjectiveError: an input that the settings need is None, or shapes do not
                fit.
        """
        kind = self.settings.kind
        debiased = kind == "debiased"
        eta = inputs.eta if debiased else torch.zeros_like(inputs.eta)
        terms = debiased_terms(
            inputs.s,
            inputs.positive,
            eta,
            inputs.gamma,
            weights=self._weights(inputs),
            known_positives=self._mates(inputs) if debiased else None,
        )
        gauges = gauges_of_terms(terms, eta)
        if kind == "multipositive":
            relation = _needed(inputs.relation, "relation")
            loss = multi_positive_loss(
                inputs.s, relation == SAME, relation == UNCLEAR, positive=inputs.positive
            )
        elif kind == "sigmoid":
            loss = sigmoid_loss(inputs.s, inputs.positive, bias=self.settings.sigmoid_bias)
        else:  # InfoNCE is the debiased loss with eta = 0; fallback has no floor to meet there
            loss = debiased_loss_of(terms, self.settings.floor if debiased else "fallback")
        return ObjectiveOutput(loss, gauges)

    def _mates(self, inputs: ObjectiveInputs) -> Bool[Tensor, "anchors candidates"] | None:
        known = inputs.known_positives
        if self.settings.relation == "none":
            return known
        relation = _needed(inputs.relation, "relation")
        mates = (relation == SAME) | (relation == UNCLEAR)
        return mates if known is None else mates | known

    def _weights(self, inputs: ObjectiveInputs) -> Float[Tensor, "anchors candidates"] | None:
        settings, positive = self.settings, inputs.positive
        if settings.negatives == "all":
            return None
        if settings.negatives == "hard":
            return negatives.reweight_hard(inputs.s, positive, settings.beta)
        if settings.negatives == "remove_labels":
            overlap = _needed(inputs.label_overlap, "label_overlap")
            return negatives.remove_by_labels(overlap, positive)
        similarity = _needed(inputs.text_similarity, "text_similarity")
        if settings.negatives == "remove_similar":
            threshold = settings.similarity_threshold
            return negatives.remove_by_similarity(similarity, positive, threshold)
        if settings.negatives == "reweight_similar":
            return negatives.reweight_by_similarity(similarity, positive, settings.beta)
        if inputs.generator is None:
            raise ObjectiveError("resample_similar draws at random; hand it a generator")
        return negatives.resample_by_similarity(
            similarity, positive, settings.beta, settings.keep_share, inputs.generator
        )


def build_objective(settings: ObjectiveConfig) -> Objective:
    """Build the configured loss.

    Args:
        settings: the section `objective`.

    Returns:
        A function of `ObjectiveInputs`.
    """
    return Objective(settings)


def mean_of(outputs: Sequence[ObjectiveOutput]) -> ObjectiveOutput:
    """Join the outputs of several directions.

    Args:
        outputs: one a direction, at least one.

    Returns:
        Mean loss and mean gauges.
    """
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
