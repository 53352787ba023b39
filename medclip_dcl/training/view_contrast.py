"""Views of the images of every process -> the loss of this process's anchors.

Axes
    local  images of this process, batch: of all processes
    M      views v in the correction; views of an image: M + 1, the first two of them anchors
           and candidates

With both views as anchors s has a row for each view of each local image and a column for
each other view of the batch: the anchor's own column is left out, so that every loss
counts N = 2 (B - 1) negatives by itself. Further views of the anchor's image stand in M - 1
columns of their own at the end; they are known positives and nobody's negatives.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from medclip_dcl.config.objective import ObjectiveConfig
from medclip_dcl.config.views import ViewsConfig
from medclip_dcl.errors import ConfigError
from medclip_dcl.model.view_encoder import ViewEncoder
from medclip_dcl.objective.build import ObjectiveInputs, ObjectiveOutput, build_objective
from medclip_dcl.objective.gather import gather_with_grad
from medclip_dcl.objective.relations import SAME
from medclip_dcl.training.seeing import see
from medclip_dcl.training.view_batches import ViewBatch


class ViewContrast(nn.Module):
    """The configured loss over a global batch of images.

    Args:
        objective: the loss; `directions` is not read, `views.anchors` says who anchors.
        views: anchors and views.

    Raises:
        ConfigError: the objective asks for what images without text do not have.
    """

    def __init__(self, objective: ObjectiveConfig, views: ViewsConfig) -> None:
        super().__init__()
        _refuse_texts(objective)
        _refuse_idle_views(objective, views)
        self._settings, self._views = objective, views
        self._objective = build_objective(objective)

    def read(
        self,
        network: nn.Module,
        encoder: ViewEncoder,
        batch: ViewBatch,
    ) -> ObjectiveOutput:
        """Show a batch to the model and compute the loss of this process's anchors.

        Args:
            network: the model as it is called: itself, or in its distributed wrapper.
            encoder: the model itself, for its gamma.
            batch: the batch, on the model's device.

        Returns:
            Mean loss of the local anchors, and gauges.
        """
        vectors: Tensor = network(see(batch.pixels, batch.looks))
        by_view = vectors.reshape(-1, len(batch.pixels), vectors.shape[-1])
        output: ObjectiveOutput = self(encoder.gamma, by_view, batch)
        return output

    def forward(
        self,
        gamma: Float[Tensor, ""],
        vectors: Float[Tensor, "views local dim"],
        batch: ViewBatch,
    ) -> ObjectiveOutput:
        """Compute the loss of this process's anchors.

        Args:
            gamma: root of the scale of s.
            vectors: unit vectors of this process's views.
            batch: where they stand in the global batch, and what is known of it.

        Returns:
            Mean loss of the local anchors, and gauges.
        """
        both = gather_with_grad(vectors[:2].transpose(0, 1)).transpose(0, 1)
        mine = torch.arange(batch.mine.start, batch.mine.stop, device=vectors.device)
        if self._views.anchors == "first":
            anchors, candidates, positive = vectors[:1], both[1:], mine
            columns = torch.arange(len(batch.eta), device=mine.device).expand(len(mine), -1)
        else:
            anchors, candidates = vectors[:2], both
            columns, positive = _others(mine, len(batch.eta))
        s = (anchors.flatten(0, 1) @ candidates.flatten(0, 1).T).gather(1, columns)
        further = torch.einsum("ald,mld->alm", anchors, vectors[2:]).flatten(0, 1)
        known = torch.zeros_like(s, dtype=torch.bool)
        known = torch.cat([known, torch.ones_like(further, dtype=torch.bool)], dim=1)
        return self._objective(
            ObjectiveInputs(
                s=gamma**2 * torch.cat([s, further], dim=1),
                positive=positive,
                eta=batch.eta[batch.mine].repeat(len(anchors)),
                gamma=gamma,
                relation=self._same(batch, len(anchors), columns, further),
                label_overlap=self._overlap(batch, len(anchors), columns, further),
                known_positives=known if further.shape[1] else None,
            )
        )

    def _overlap(
        self,
        batch: ViewBatch,
        views: int,
        columns: Int64[Tensor, "anchors others"],
        further: Tensor,
    ) -> Tensor:
        """Whether anchor and candidate are of one class."""
        of_anchor = batch.labels[batch.mine].repeat(views)
        of_candidate = batch.labels.repeat(views)[columns]
        same = of_anchor.unsqueeze(1) == of_candidate
        return torch.cat([same, torch.ones_like(further, dtype=torch.bool)], dim=1)

    def _same(
        self,
        batch: ViewBatch,
        views: int,
        columns: Int64[Tensor, "anchors others"],
        further: Tensor,
    ) -> Tensor | None:
        if self._settings.relation == "none":
            return None
        return self._overlap(batch, views, columns, further).to(torch.int8) * SAME


def _others(
    mine: Int64[Tensor, " local"], batch: int
) -> tuple[Int64[Tensor, "anchors others"], Int64[Tensor, " anchors"]]:
    """Columns of all views but the anchor's own, and the partner's place among them."""
    own = torch.cat([mine, batch + mine])
    partner = torch.cat([batch + mine, mine])
    places = torch.arange(2 * batch - 1, device=mine.device)
    columns = places + (places >= own.unsqueeze(1))
    return columns, partner - (partner > own).long()


def _refuse_texts(objective: ObjectiveConfig) -> None:
    if objective.relation in {"claims", "truth"} or objective.negatives.endswith("_similar"):
        raise ConfigError(
            f"objective.relation {objective.relation!r} with objective.negatives "
            f"{objective.negatives!r} reads texts, and an image set has none; images know "
            "relation none or labels, and negatives all, remove_labels or hard"
        )


def _refuse_idle_views(objective: ObjectiveConfig, views: ViewsConfig) -> None:
    if views.M > 1 and (objective.kind != "debiased" or objective.negatives == "hard"):
        raise ConfigError(
            f"views.M {views.M} draws views for the correction, which objective.kind "
            f"{objective.kind!r} with negatives {objective.negatives!r} does not read; set it to 1"
        )
