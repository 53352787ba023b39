"""Learn the image encoder from images alone, before any report, by SimCLR.

Reads the prepared images of the training patients; writes `image_weights`. A config that names
these, `model.image.pretrained: ${WORK}/image_weights`, has this stage before training. A killed run
resumes from its last checkpoint.
"""

import sys
from typing import Any

import torch

from medclip_dcl.core.artifact import Artifact, make_fingerprint
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.training import pretraining
from medclip_dcl.training.checkpoint import CheckpointStore

from .job import Job, job_main


def build(job: Job) -> None:
    """Learn the weights unless they are there."""
    config = job.config
    listed, images = job.open(manifest.ARTIFACT), job.open(prepared.ARTIFACT)
    inputs: dict[str, Artifact | str] = {item.kind: item for item in (listed, images)}
    settings = {
        "seed": config.seed,
        "pretrain": config.pretrain,
        "image": config.model.image.model_dump(mode="json", exclude={"pretrained"}),
    }
    fingerprint = make_fingerprint(pretraining.ARTIFACT, settings, inputs)
    checkpoints = job.work / "image_checkpoints"

    def write(writer: ArtifactWriter) -> dict[str, Any]:
        store = CheckpointStore(checkpoints, fingerprint)
        pictures = PreparedImages(images)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with store.locked():
            if job.force:
                store.remove_of_other_code()
            learner, summary = pretraining.pretrain(
                config.pretrain, config.model.image, pictures, _rows(listed, pictures),
                config.seed, store, device, save_every_steps=config.train.save_every_steps,
                threads=config.train.torch_threads,
            )  # fmt: skip
        pretraining.write_weights(writer.directory, learner)
        return summary

    job.make(pretraining.ARTIFACT, settings, inputs, write)
    CheckpointStore(checkpoints, fingerprint).clear()


def _rows(listed: Artifact, pictures: PreparedImages) -> list[int]:
    """List the rows of the prepared images that are learned from."""
    return [
        pictures.row_of[row["image_id"]]
        for row in read_table(listed.path, manifest.IMAGES, ["image_id", "split"]).to_pylist()
        if row["split"] == "train" and row["image_id"] in pictures.row_of
    ]


main = job_main("pretrain_images", build)

if __name__ == "__main__":
    sys.exit(main())
