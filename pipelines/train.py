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
from medclip_dcl.artifact import Artifact, ArtifactType, make_fingerprint, open_artifact
from medclip_dcl.artifact_writer import ArtifactWriter
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.ground_truth import Truth, read_truth, truth_files
from medclip_dcl.errors import ArtifactError
from medclip_dcl.files import sha256_file
from medclip_dcl.inference.prompts import read_prompts
from medclip_dcl.likelihood import eta, masked_lm
from medclip_dcl.models.encoder_files import files_digest
from medclip_dcl.models.pretrained import fetch_weights, weights_file
from medclip_dcl.provenance import remove_if_code_changed
from medclip_dcl.settings import resolve_path
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.language import language_warning
from medclip_dcl.training import checkpoint, corpus_cache, feature_cache
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.launch import settle_precision, start_accelerator
from medclip_dcl.training.publishing import package_model
from medclip_dcl.training.setup import TrainInputs, set_up
from medclip_dcl.training.supervision import needs_claims
from medclip_dcl.training.trainer import TrainResult, train

from .cli import reuse_memory
from .config import Config
from .job import Job, Stopped, job_main
from .replacing import refuse_other_model


def build(job: Job) -> None:
    """Train unless the published model has the same fingerprint, then publish."""
    reuse_memory()
    settings = settle_precision(job.config.train)
    job = replace(job, config=job.config.model_copy(update={"train": settings}))
    accelerator = start_accelerator(settings, job.work)
    try:
        _build(job, accelerator)
    finally:
        accelerator.end_training()


def _build(job: Job, accelerator: Accelerator) -> None:
    config, main = job.config, accelerator.is_main_process
    inputs, digests = open_inputs(job, verify=main)
    languages = inputs.claims.summary.get("languages", {}) if inputs.claims and main else {}
    if not config.claims.table and (warning := language_warning(languages)):
        job.say(warning=warning)
    settings = _settings_of(config)
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
                for made in (corpus_cache, feature_cache):
                    remove_if_code_changed(made.ARTIFACT.at(job.work))
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


def reuse(job: Job) -> bool:
    """Return whether the published model is that of these settings and inputs, and say so."""
    config = job.config.model_copy(update={"train": settle_precision(job.config.train)})
    job, kind = replace(job, config=config), model_package.ARTIFACT
    try:
        _, digests = open_inputs(job, verify=True)
        found = open_artifact(kind.at(job.work), kind, verify=False)
    except ArtifactError:
        return False
    fingerprint = make_fingerprint(kind, _settings_of(config), digests)
    if found.fingerprint != fingerprint:
        return False
    return job.reuse(kind, fingerprint) is not None


def _settings_of(config: Config) -> dict[str, Any]:
    return {
        "seed": config.seed,
        "model": config.model,
        "objective": config.objective,
        "train": config.train.result_settings(),
    }


class _Inputs:
    """Opens what a run is made from; what is opened is in the fingerprint, and nowhere else."""

    def __init__(self, job: Job, verify: bool) -> None:
        self._job, self._verify = job, verify
        self.digests: dict[str, Artifact | str] = {}

    def artifact(self, kind: ArtifactType, name: str) -> Artifact:
        self.digests[name] = found = self._job.open(kind, verify=self._verify)
        return found

    def file(self, given: str, name: str) -> Path:
        path = resolve_path(given, self._job.config.work)
        self.digests[name] = sha256_file(path)
        return path

    def weights(self, given: str, name: str, files: str = "") -> Path:
        """A folder of weights, or a name of a hub; `files` names its other files as an input."""
        return self.folder(fetch_weights(resolve_path(given, self._job.config.work)), name, files)

    def folder(self, path: Path, name: str, files: str = "") -> Path:
        self.digests[name] = sha256_file(weights_file(path))
        if files:
            self.digests[files] = files_digest(path)
        return path

    def truth(self) -> Truth | None:
        root = resolve_path(self._job.config.source.root, self._job.config.work)
        self.digests |= {file.name: sha256_file(file) for file in truth_files(root)}
        return read_truth(root)


def open_inputs(job: Job, verify: bool) -> tuple[TrainInputs, dict[str, Artifact | str]]:
    """Open what a run is made from, and give it with the digests that name it.

    `verify`: whether every byte of an artifact is hashed; one process in many does that.
    """
    config, opened = job.config, _Inputs(job, verify)
    objective, text = config.objective, config.model.pretrained or config.model.text.pretrained
    judged = config.train.best_metric == "validation_report_auc"
    start = (text or config.language_model.pretrained) if objective.compares_texts else ""
    table = objective.similar_table if objective.compares_texts else ""
    image = config.model.image.pretrained
    inputs = TrainInputs(
        manifest=opened.artifact(manifest.ARTIFACT, "manifest"),
        prepared=opened.artifact(prepared.ARTIFACT, "prepared"),
        sentences=opened.artifact(sentences.ARTIFACT, "sentences"),
        eta_cache=opened.artifact(eta.ARTIFACT, "eta_cache"),
        claims=opened.artifact(labels.ARTIFACT, "claims")
        if judged or needs_claims(objective)
        else None,
        text_folder=opened.weights(text, "text_weights", "text_files")
        if text
        else opened.folder(job.open(masked_lm.ARTIFACT, verify=verify).path, "text_weights"),
        truth=opened.truth() if objective.relation == "truth" else None,
        image_weights=opened.weights(image, "image_weights", "image_files") if image else None,
        findings=read_prompts(opened.file(config.evaluate.prompts, "prompts")),
        text_checkpoint=opened.weights(start, "text_checkpoint") if start else None,
        similar_table=opened.file(table, "similar_table") if table else None,
    )
    return inputs, opened.digests


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
