"""Learn the image encoder from images alone, before any report: SimCLR, plain or debiased.

Reads the prepared images of the training patients, the lateral ones too where
`source.images_per_study` is `pretrain`; writes `image_weights`. A config that names these,
`model.image.pretrained: ${WORK}/image_weights`, has this stage before training. A killed run
resumes from its last checkpoint.
"""

import sys
from typing import Any

import torch

from medclip_dcl.core.artifact import Artifact, make_fingerprint, open_artifact
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.training import pretraining
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.pretraining import ImagePool

from .job import Job, job_main


def build(job: Job) -> None:
    """Learn the weights unless they are there."""
    config = job.config
    folders = [job.work, *(resolve_path(folder, config.work) for folder in config.pretrain.also)]
    opened = [
        tuple(
            open_artifact(kind.at(folder), kind) for kind in (manifest.ARTIFACT, prepared.ARTIFACT)
        )
        for folder in folders
    ]
    inputs: dict[str, Artifact | str] = {
        f"{item.kind}-{number}" if number else item.kind: item
        for number, pair in enumerate(opened)
        for item in pair
    }
    settings = {
        "seed": config.seed,
        "pretrain": config.pretrain.model_dump(mode="json", exclude={"also"}),
        "image": config.model.image.model_dump(mode="json", exclude={"pretrained"}),
    }
    fingerprint = make_fingerprint(pretraining.ARTIFACT, settings, inputs)
    checkpoints = job.work / "image_checkpoints"

    def write(writer: ArtifactWriter) -> dict[str, Any]:
        store = CheckpointStore(checkpoints, fingerprint)
        pools = [_pool(*pair) for pair in opened]
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with store.locked():
            if job.force:
                store.remove_of_other_code()
            learner, summary = pretraining.pretrain(
                config.pretrain, config.model.image, pools, config.seed, store, device,
                save_every_steps=config.train.save_every_steps, threads=config.train.torch_threads,
            )  # fmt: skip
        pretraining.write_weights(writer.directory, learner)
        return summary

    job.make(pretraining.ARTIFACT, settings, inputs, write)
    CheckpointStore(checkpoints, fingerprint).clear()


def _pool(listed: Artifact, images: Artifact) -> ImagePool:
    table = read_table(listed.path, manifest.IMAGES, ["image_id", "split"]).to_pylist()
    opened = PreparedImages(images)
    learned = {"train", manifest.PRETRAIN}
    rows = [
        opened.row_of[row["image_id"]]
        for row in table
        if row["split"] in learned and row["image_id"] in opened.row_of
    ]
    return ImagePool(opened, rows)


main = job_main("pretrain_images", build)

if __name__ == "__main__":
    sys.exit(main())
