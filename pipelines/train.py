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
from contextlib import nullcontext
from typing import Any

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from medclip_dcl.core.artifact import make_fingerprint, open_if_current
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.inference.model_package import ARTIFACT as MODEL
from medclip_dcl.training import checkpoint
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.launch import start_accelerator
from medclip_dcl.training.setup import TrainInputs, TrainSetup, set_up
from medclip_dcl.training.trainer import TrainResult, run

from .cli import reuse_memory
from .job import Job, Stopped, job_main, refuse_other_model


def train(job: Job) -> None:
    """Train unless the published model has the same fingerprint, then publish."""
    reuse_memory()
    accelerator = start_accelerator(job.config.train, job.config.workers, job.work)
    try:
        _train(job, accelerator)
    finally:
        accelerator.end_training()


def _train(job: Job, accelerator: Accelerator) -> None:
    config, main = job.config, accelerator.is_main_process
    opened = job.open_inputs(verify=main)
    inputs, settings = TrainInputs(**opened.values), _settings_of(job)
    fingerprint = make_fingerprint(MODEL, settings, opened.digests)
    store = CheckpointStore(checkpoint.ARTIFACT.at(job.work), fingerprint)
    if main and inputs.claims and not config.claims.table:
        from medclip_dcl.text.language import language_warning

        if warning := language_warning(inputs.claims.summary.get("languages", {})):
            job.say(warning=warning)
    say = job.say if main else _say_nothing
    made: tuple[TrainSetup, TrainResult] | None = None
    started = time.monotonic()
    if not (job.replace or job.force):
        refuse_other_model(job.work, MODEL, fingerprint)
    if not _is_published(job, fingerprint, accelerator):
        with store.locked() if main else nullcontext():
            if main and job.force:
                store.remove_of_other_code()
            elif main and (unfinished := store.newest()):
                job.note_changed_code(unfinished)
            accelerator.wait_for_everyone()
            setup = set_up(TrainingConfig.of(config), inputs, accelerator, say)
            result = run(
                setup.data,
                setup.encoder,
                setup.objective,
                setup.hooks,
                settings=config.train,
                seed=config.seed,
                accelerator=accelerator,
                store=store,
            )
            made = setup, result
        if not made[1].finished:
            raise Stopped

    def write(writer: ArtifactWriter) -> dict[str, Any]:
        from medclip_dcl.training.publishing import package_model

        writer.started = started  # the seconds of a model are those of its training
        assert made is not None, "published by another process meanwhile, or not at all"
        return package_model(writer.directory, config, inputs, *made)

    if main:
        job.make(MODEL, settings, opened.digests, write)
        store.clear()


def reuse(job: Job) -> bool:
    """Return whether the published model is that of these settings and inputs, and say so.

    ArtifactError where an input is missing.
    """
    fingerprint = make_fingerprint(MODEL, _settings_of(job), job.open_inputs().digests)
    return job.reuse(MODEL, fingerprint) is not None


def _settings_of(job: Job) -> dict[str, Any]:
    return {
        "seed": job.config.seed,
        "model": job.config.model,
        "objective": job.config.objective,
        "train": job.config.train.result_settings(),
    }


def _is_published(job: Job, fingerprint: dict[str, Any], accelerator: Accelerator) -> bool:
    # The main process looks, so that all do the same.
    answer = [False]
    if accelerator.is_main_process and not job.force:
        answer = [open_if_current(MODEL.at(job.work), MODEL, fingerprint) is not None]
    broadcast_object_list(answer)
    return answer[0]


def _say_nothing(**_facts: object) -> None:
    pass


main = job_main("train", train)

if __name__ == "__main__":
    sys.exit(main())
