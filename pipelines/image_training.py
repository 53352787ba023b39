"""The image-only run of `train`: an image set -> an image model."""

from pathlib import Path
from typing import Any

from accelerate import Accelerator

from medclip_dcl.artifact import Artifact
from medclip_dcl.config import Config, resolve_path
from medclip_dcl.image_only import artifacts
from medclip_dcl.image_only.artifacts import write_image_model
from medclip_dcl.image_only.run import ImageInputs, train_images
from medclip_dcl.training.publishing import best_figure
from medclip_dcl.training.trainer import TrainResult
from pipelines.job import Job
from pipelines.training_run import TrainingRun, loop_settings, weights_digest


def image_run(job: Job, accelerator: Accelerator) -> TrainingRun[TrainResult]:
    """Describe the image-only run of a recipe.

    Args:
        job: the job.
        accelerator: device, processes and precision.

    Returns:
        The run.

    Raises:
        ArtifactError: the image set is missing, damaged or of another version.
        CheckpointError: the recipe names weights that are not there.
    """
    config = job.config
    image = config.model.image.pretrained
    inputs = ImageInputs(
        image_set=job.open(artifacts.IMAGE_SET, verify=accelerator.is_main_process),
        image_weights=resolve_path(image, config) if image else None,
    )
    digests: dict[str, Artifact | str] = {"image_set": inputs.image_set}
    if inputs.image_weights is not None:
        digests["image_weights"] = weights_digest(inputs.image_weights)
    settings = {**loop_settings(config), "views": config.views}
    if config.views.eta == "constant":
        settings["eta"] = config.eta.constant
    return TrainingRun(
        kind=artifacts.IMAGE_MODEL,
        settings=settings,
        digests=digests,
        train=lambda store, folder, say: train_images(
            config, inputs, accelerator, store, folder, say
        ),
        result=lambda ending: ending,
        publish=lambda folder, ending: _publish(folder, config, inputs, ending),
    )


def _publish(
    folder: Path, config: Config, inputs: ImageInputs, result: TrainResult
) -> dict[str, Any]:
    card = {
        "objective": config.objective.model_dump(mode="json"),
        "views": config.views.model_dump(mode="json"),
        "data": {"image_set": inputs.image_set.digest, **inputs.image_set.summary},
        "training": {
            "steps": result.state.step,
            "skipped": result.state.skipped,
            "published_step": result.published_step,
            "best": best_figure(config, result),
            "global_batch": config.train.global_batch,
            "processes": config.train.processes,
        },
    }
    write_image_model(folder, result.weights, config, card)
    shown = ("loss", "uncorrected_loss", "frac_floor")
    return {
        "steps": result.state.step,
        "skipped": result.state.skipped,
        **{name: result.figures.get(name) for name in shown},
    }
