"""Views of the images of every process -> the loss of this process's anchors.

Axes
    local  images of this process, batch: of all processes
    M      views v in the correction; views of an image: M + 1, the first two of them anchors
           and candidates

With both views as anchors s has a row for each view of each local image and a column for
each other view of the batch: the anchor's own column is left out, so that every loss
counts N = 2 (B - 1) negatives by itself. Further views of the anchor's image stand in M - 1
columns of their own at the end; they are known positives and nobody's negatives.

A configuration and an image set -> a trained image-only model, in every process alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from jaxtyping import Float, Int64
from torch import Tensor, nn

from medclip_dcl.artifact import Artifact
from medclip_dcl.config import Config
from medclip_dcl.errors import ConfigError
from medclip_dcl.image_only.artifacts import ImageSet
from medclip_dcl.image_only.settings import ViewsConfig
from medclip_dcl.image_only.views import ViewBatch, ViewBatches, apply_augmentation, class_eta
from medclip_dcl.losses.gather import gather_with_grad
from medclip_dcl.losses.relations import SAME
from medclip_dcl.models.image_encoder import load_image_weights
from medclip_dcl.models.view_encoder import ViewEncoder, build_view_encoder
from medclip_dcl.rng import RngStream, seed_for
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.objective import ObjectiveInputs, ObjectiveOutput, build_objective
from medclip_dcl.training.settings import ObjectiveConfig
from medclip_dcl.training.trainer import (
    TrainingSetup,
    TrainResult,
    report_loaded_weights,
    run_training,
)


class SimCLRObjective(nn.Module):
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

    def compute_loss(
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
        vectors: Tensor = network(apply_augmentation(batch.pixels, batch.augmentation))
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
    indices = torch.arange(2 * batch - 1, device=mine.device)
    columns = indices + (indices >= own.unsqueeze(1))
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


@dataclass(frozen=True)
class ImageInputs:
    """What an image-only run is made from."""

    image_set: Artifact
    image_weights: Path | None
    """Weights that the image encoder starts from; None: random."""


def train_images(
    config: Config,
    inputs: ImageInputs,
    accelerator: Accelerator,
    store: CheckpointStore,
    folder: Path,
    say: Callable[..., None],
) -> TrainResult:
    """Train an image-only model, or go on where a stopped run left off.

    Args:
        config: the configuration.
        inputs: what the run is made from.
        accelerator: device, processes and precision.
        store: checkpoints of this run.
        folder: their folder; it receives the metrics log.
        say: prints facts, as names and plain values.

    Returns:
        The run's end. Where it is not finished, a checkpoint is on disk.

    Raises:
        MedclipError: an input is missing, stale or does not fit, or training cannot go on.
    """
    images = ImageSet(inputs.image_set)
    setup = _setup(config, images, inputs.image_weights, accelerator, say)
    return run_training(setup, config, accelerator, store, folder, say)


def _setup(
    config: Config,
    images: ImageSet,
    weights: Path | None,
    accelerator: Accelerator,
    say: Callable[..., None],
) -> TrainingSetup[ViewEncoder, ViewBatch]:
    _refuse_misfit(config, images)
    settings, classes = config.train, images.classes
    local = settings.global_batch // settings.processes
    start = accelerator.process_index * local
    eta = class_eta(
        config.views,
        [item.train for item in classes],
        [item.is_thinned for item in classes],
        images.r,
        config.eta.constant,
    )

    def batches_of(split: str, seed: int) -> ViewBatches:
        return ViewBatches(
            images.split(split),
            eta,
            config.views,
            settings.global_batch,
            seed,
            slice(start, start + local),
        )

    trained = batches_of("train", config.seed)
    validation: list[ViewBatch] = []
    if settings.validate_every_steps:
        held_out = batches_of("validate", seed_for(config.seed, RngStream.VALIDATION) % 2**31)
        count = min(settings.validate_batches, held_out.steps_per_epoch)
        validation = [held_out.batch(step) for step in range(count)]
    return TrainingSetup(
        encoder=_start(config, weights, accelerator, say),
        objective=SimCLRObjective(config.objective, config.views),
        batch=trained.batch,
        validation=validation,
        steps_per_epoch=trained.steps_per_epoch,
        facts={"images": sum(item.train for item in classes), "classes": len(classes)},
    )


def _start(
    config: Config, weights: Path | None, accelerator: Accelerator, say: Callable[..., None]
) -> ViewEncoder:
    encoder = build_view_encoder(config.model.image, config.views, config.seed)
    if weights is not None:
        report_loaded_weights(say, "image", load_image_weights(encoder.image, weights))
    if accelerator.num_processes > 1 and accelerator.device.type == "cuda":
        # One process sees the statistics of the whole batch; so do many.
        nn.SyncBatchNorm.convert_sync_batchnorm(encoder)  # type: ignore[no-untyped-call]
    return encoder


def _refuse_misfit(config: Config, images: ImageSet) -> None:
    image = config.model.image
    if (image.channels, image.input_px) != (images.channels, images.size_px):
        raise ConfigError(
            f"model.image takes {image.channels} channels of {image.input_px} pixels, the image "
            f"set has {images.channels} of {images.size_px}; set model.image.channels and "
            "model.image.input_px to those of image_set"
        )
    if config.train.validate_images:
        raise ConfigError(
            "train.validate_images asks images for findings, and an image set has none; set it to 0"
        )
