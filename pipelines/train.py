"""Train: images, sentences and eta -> a published model.

    accelerate launch --config_file configs/accelerate/cpu.yaml -m pipelines.train --config FILE
    torchrun --nproc-per-node 8 -m pipelines.train --config FILE    (train.processes: 8)
    python -m pipelines.train --config FILE

Checkpoints go to `checkpoints`; the same command continues from the newest whole one.
SIGTERM and SIGINT finish the step, save and exit with code 75. `accelerate launch` and
torchrun report every code but 0 as 1: the run is resumable all the same.
"""

import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
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
    remove_if_code_changed,
)
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.ground_truth import Truth, read_truth, truth_files
from medclip_dcl.errors import ArtifactError
from medclip_dcl.files import sha256_file
from medclip_dcl.inference import read_prompts
from medclip_dcl.likelihood import eta, masked_lm
from medclip_dcl.models.pretrained import weights_file
from medclip_dcl.models.towers import fetch_weights, files_digest
from medclip_dcl.settings import resolve_path
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.training import checkpoint, feature_cache
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.dataset import needs_claims
from medclip_dcl.training.launch import settle_precision, start_accelerator
from medclip_dcl.training.publishing import package_model
from medclip_dcl.training.trainer import (
    TrainInputs,
    TrainResult,
    set_up,
    train,
)

from .config import Config
from .job import Job, Stopped, job_main
from .replacing import refuse_other_model


def build(job: Job) -> None:
    """Train unless the published model has the same fingerprint, then publish."""
    settings = settle_precision(job.config.train)
    job = replace(job, config=job.config.model_copy(update={"train": settings}))
    accelerator = start_accelerator(settings, job.work)
    try:
        _build(job, accelerator)
    finally:
        accelerator.end_training()


def _build(job: Job, accelerator: Accelerator) -> None:
    config, main = job.config, accelerator.is_main_process
    inputs = open_inputs(job, verify=main)
    settings = {
        "seed": config.seed,
        "model": config.model,
        "objective": config.objective,
        "train": config.train.result_settings(),
    }
    digests = _digests(config, inputs)
    fingerprint = make_fingerprint(model_package.ARTIFACT, settings, digests)
    folder = checkpoint.ARTIFACT.at(job.work)
    store = CheckpointStore(folder, fingerprint)
    say = job.say if main else _say_nothing
    result: TrainResult | None = None
    begun = time.monotonic()
    if not (job.replace or job.force):
        refuse_other_model(job.work, model_package.ARTIFACT, fingerprint)
    if not _is_published(job, fingerprint, accelerator):
        with store.locked() if main else nullcontext():
            if main and job.force:
                store.remove_of_other_code()
                remove_if_code_changed(feature_cache.ARTIFACT.at(job.work))
            elif main and (begun_before := store.newest()):
                job.note_changed_code(begun_before)
            accelerator.wait_for_everyone()
            setup = set_up(TrainingConfig.of(config), inputs, accelerator, job.work, say)
            result = train(setup, accelerator, store, folder, say)
        if not result.finished:
            raise Stopped

    def write(writer: ArtifactWriter) -> dict[str, Any]:
        writer.started = begun  # the seconds of a model are those of its training
        assert result is not None, "published by another process meanwhile, or not at all"
        return package_model(writer.directory, config, inputs, result)

    if main:
        job.make(model_package.ARTIFACT, settings, digests, write)
        store.clear()


def open_inputs(job: Job, verify: bool) -> TrainInputs:
    """Open what a run is made from; `verify`: after hashing every byte."""

    def open_one(kind: ArtifactType) -> Artifact:
        return job.open(kind, verify=verify)  # one process in many hashes every byte

    config = job.config
    text = config.model.pretrained or config.model.text.pretrained
    image = config.model.image.pretrained
    judged = config.train.best_metric == "validation_report_auc"
    reads_claims = judged or needs_claims(config.objective)
    compared = config.objective.compares_texts
    given = (text or config.language_model.pretrained) if compared else ""
    table = config.objective.similar_table if compared else ""
    return TrainInputs(
        manifest=open_one(manifest.ARTIFACT),
        prepared=open_one(prepared.ARTIFACT),
        sentences=open_one(sentences.ARTIFACT),
        eta_cache=open_one(eta.ARTIFACT),
        claims=open_one(labels.ARTIFACT) if reads_claims else None,
        text_folder=_weights(text, config) if text else open_one(masked_lm.ARTIFACT).path,
        truth=_truth(config),
        image_weights=_weights(image, config) if image else None,
        findings=read_prompts(resolve_path(config.evaluate.prompts, config.work)),
        text_checkpoint=_weights(given, config) if given else None,
        similar_table=resolve_path(table, config.work) if table else None,
    )


def _weights(given: str, config: Config) -> Path:
    return fetch_weights(resolve_path(given, config.work))


def _truth(config: Config) -> Truth | None:
    if config.objective.relation != "truth":
        return None
    return read_truth(resolve_path(config.source.root, config.work))


def _digests(config: Config, inputs: TrainInputs) -> dict[str, Artifact | str]:
    digests: dict[str, Artifact | str] = {
        "manifest": inputs.manifest,
        "prepared": inputs.prepared,
        "sentences": inputs.sentences,
        "eta_cache": inputs.eta_cache,
        "text_weights": sha256_file(weights_file(inputs.text_folder)),
        "prompts": sha256_file(resolve_path(config.evaluate.prompts, config.work)),
    }
    if inputs.claims is not None:
        digests["claims"] = inputs.claims
    if inputs.truth is not None:
        root = resolve_path(config.source.root, config.work)
        digests |= {file.name: sha256_file(file) for file in truth_files(root)}
    if config.model.pretrained or config.model.text.pretrained:
        digests["text_files"] = files_digest(inputs.text_folder)
    if inputs.image_weights is not None:
        digests["image_weights"] = sha256_file(weights_file(inputs.image_weights))
        digests["image_files"] = files_digest(inputs.image_weights)
    if inputs.text_checkpoint is not None:
        digests["text_checkpoint"] = sha256_file(weights_file(inputs.text_checkpoint))
    if inputs.similar_table is not None:
        digests["similar_table"] = sha256_file(inputs.similar_table)
    return digests


def _is_published(job: Job, fingerprint: dict[str, Any], accelerator: Accelerator) -> bool:
    # The main process looks, so that all do the same.
    found = [False]
    if accelerator.is_main_process and not job.force:
        kind = model_package.ARTIFACT
        with suppress(ArtifactError):
            found = [open_artifact(kind.at(job.work), kind).fingerprint == fingerprint]
    broadcast_object_list(found)
    return found[0]


def _say_nothing(**_facts: object) -> None:
    pass


main = job_main("train", build)

if __name__ == "__main__":
    sys.exit(main())
