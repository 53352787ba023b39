"""Train: images, sentences and eta -> a published model; or images alone -> an image model.

    accelerate launch --config_file configs/accelerate/cpu.yaml -m pipelines.train --config FILE
    torchrun --nproc-per-node 8 -m pipelines.train --config FILE    (train.processes: 8)
    python -m pipelines.train --config FILE

Checkpoints go to `checkpoints`; the same command goes on from the newest whole one.
SIGTERM and SIGINT finish the step, save and exit with code 75. `accelerate launch` and
torchrun report every code but 0 as 1: the run is resumable all the same.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from medclip_dcl import model_package
from medclip_dcl.artifact import (
    Artifact,
    ArtifactType,
    ArtifactWriter,
    make_fingerprint,
    open_artifact,
)
from medclip_dcl.config import Config, resolve_path
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.ground_truth import Truth, read_truth, truth_files
from medclip_dcl.errors import ArtifactError
from medclip_dcl.files import sha256_file
from medclip_dcl.likelihood import eta, masked_lm
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.training import checkpoint
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.dataset import needs_claims
from medclip_dcl.training.publishing import package_model
from medclip_dcl.training.trainer import TrainedModel, TrainInputs, start_accelerator, train
from pipelines.image_training import image_run
from pipelines.job import Job, Stopped, run_job
from pipelines.training_run import TrainingRun, loop_settings, weights_digest


def build(job: Job) -> None:
    """Train unless the published model has the same recipe, then publish.

    Args:
        job: the job.

    Raises:
        MedclipError: an input is missing or stale, the recipe of an unfinished run was
            another, or training cannot go on.
    """
    config = job.config
    accelerator = start_accelerator(config.train, job.work)
    try:
        _build(job, accelerator)
    finally:
        accelerator.end_training()


def _build(job: Job, accelerator: Accelerator) -> None:
    main = accelerator.is_main_process
    run: TrainingRun[Any] = _run_of(job, accelerator)
    fingerprint = make_fingerprint(run.kind, run.settings, run.digests)
    folder = checkpoint.ARTIFACT.at(job.work)
    store = CheckpointStore(folder, fingerprint, job.config.train.steps)
    say = job.say if main else _say_nothing
    trained: Any = None
    begun = time.monotonic()
    if not _is_published(job, run.kind, fingerprint, accelerator):
        with store.locked() if main else nullcontext():
            accelerator.wait_for_everyone()
            trained = run.train(store, folder, say)
        if not run.result(trained).finished:
            raise Stopped
    if main:
        write: Callable[[ArtifactWriter], dict[str, Any]] = partial(_write, run, trained, begun)
        job.make(run.kind, run.settings, run.digests, write)
        store.clear()


def _run_of(job: Job, accelerator: Accelerator) -> TrainingRun[Any]:
    if job.config.image_set.kind != "none":
        return image_run(job, accelerator)
    config = job.config
    inputs = _open_inputs(job, verify=accelerator.is_main_process)
    return TrainingRun[TrainedModel](
        kind=model_package.ARTIFACT,
        settings=loop_settings(config),
        digests=_digests(config, inputs),
        train=lambda store, folder, say: train(config, inputs, accelerator, store, folder, say),
        result=lambda trained: trained.result,
        publish=lambda folder, trained: package_model(folder, config, inputs, trained),
    )


def _open_inputs(job: Job, verify: bool) -> TrainInputs:
    def open_one(kind: ArtifactType) -> Artifact:
        return job.open(kind, verify=verify)  # one process in many hashes every byte

    config = job.config
    text, image = config.model.text.pretrained, config.model.image.pretrained
    return TrainInputs(
        manifest=open_one(manifest.ARTIFACT),
        prepared=open_one(prepared.ARTIFACT),
        sentences=open_one(sentences.ARTIFACT),
        eta_cache=open_one(eta.ARTIFACT),
        claims=open_one(labels.ARTIFACT) if needs_claims(config.objective) else None,
        text_folder=resolve_path(text, config) if text else open_one(masked_lm.ARTIFACT).path,
        truth=_truth(config),
        image_weights=resolve_path(image, config) if image else None,
    )


def _truth(config: Config) -> Truth | None:
    if config.objective.relation != "truth":
        return None
    return read_truth(resolve_path(config.source.root, config))


def _digests(config: Config, inputs: TrainInputs) -> dict[str, Artifact | str]:
    digests: dict[str, Artifact | str] = {
        "manifest": inputs.manifest,
        "prepared": inputs.prepared,
        "sentences": inputs.sentences,
        "eta_cache": inputs.eta_cache,
        "text_weights": weights_digest(inputs.text_folder),
        "prompts": sha256_file(Path(config.evaluate.prompts)),
    }
    if inputs.claims is not None:
        digests["claims"] = inputs.claims
    if inputs.truth is not None:
        root = resolve_path(config.source.root, config)
        digests |= {file.name: sha256_file(file) for file in truth_files(root)}
    if inputs.image_weights is not None:
        digests["image_weights"] = weights_digest(inputs.image_weights)
    return digests


def _is_published(
    job: Job, kind: ArtifactType, fingerprint: dict[str, Any], accelerator: Accelerator
) -> bool:
    """Let the main process look, so that all do the same."""
    found = [False]
    if accelerator.is_main_process:
        try:
            artifact = open_artifact(kind.at(job.work), kind)
            found = [artifact.fingerprint == fingerprint]
        except ArtifactError:
            pass
    broadcast_object_list(found)
    return found[0]


def _write(
    run: TrainingRun[Any], trained: Any, begun: float, writer: ArtifactWriter
) -> dict[str, Any]:
    writer.started = begun  # the seconds of a model are those of its training
    assert trained is not None, "published by another process meanwhile, or not at all"
    return run.publish(writer.directory, trained)


def _say_nothing(**_facts: object) -> None:
    pass


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job."""
    return run_job("train", build, argv)


if __name__ == "__main__":
    sys.exit(main())
