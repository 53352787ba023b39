"""A configuration and an image set -> a trained image-only model, in every process alike."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accelerate import Accelerator
from torch import nn

from medclip_dcl.artifacts.checkpoint import CheckpointStore
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.artifacts.image_set import ImageSet
from medclip_dcl.config import Config
from medclip_dcl.errors import ConfigError
from medclip_dcl.model.image_encoder import load_image_weights
from medclip_dcl.model.view_encoder import ViewEncoder, build_view_encoder
from medclip_dcl.training.class_eta import class_eta
from medclip_dcl.training.draws import Stream, seed_for
from medclip_dcl.training.lesson import Course, Ending
from medclip_dcl.training.run import follow, tell_weights
from medclip_dcl.training.view_batches import ViewBatch, ViewBatches
from medclip_dcl.training.view_contrast import ViewContrast


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
) -> Ending:
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
    course = _course(config, images, inputs.image_weights, accelerator, say)
    return follow(course, config, accelerator, store, folder, say)


def _course(
    config: Config,
    images: ImageSet,
    weights: Path | None,
    accelerator: Accelerator,
    say: Callable[..., None],
) -> Course[ViewEncoder, ViewBatch]:
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
        held_out = batches_of("validate", seed_for(config.seed, Stream.VALIDATION) % 2**31)
        count = min(settings.validate_batches, held_out.steps_per_epoch)
        validation = [held_out.batch(step) for step in range(count)]
    return Course(
        encoder=_start(config, weights, accelerator, say),
        contrast=ViewContrast(config.objective, config.views),
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
        tell_weights(say, "image", load_image_weights(encoder.image, weights))
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
    if config.train.validate_films:
        raise ConfigError(
            "train.validate_films asks films for findings, and an image set has none; set it to 0"
        )
