"""Ask the model about every image of the manifest: findings, scores and boxes as a table.

The model is that of `train`, or the one of a service that `answer.service` names. With
`answer.objects` the answers are made into DICOM objects, too, which `answer.archive` gets. A killed
run resumes after the last 256 images that were finished.
"""

import sys
from functools import partial
from typing import Any

from medclip_dcl import model_package
from medclip_dcl.artifact import Artifact
from medclip_dcl.artifact_writer import ArtifactWriter
from medclip_dcl.client import Client
from medclip_dcl.data import manifest
from medclip_dcl.data.records import stamp_files
from medclip_dcl.errors import ConfigError
from medclip_dcl.files import read_keys
from medclip_dcl.inference.predictor import load
from medclip_dcl.settings import resolve_path
from medclip_hospital import answers
from medclip_hospital.answers import Ask, answer_images, asking_model, asking_service
from medclip_hospital.dicomweb import DicomWeb
from medclip_sources import readers

from .job import Job, job_main


def build(job: Job) -> None:
    """Answer the images."""
    config, settings = job.config, job.config.answer
    if settings.archive and not settings.objects:
        raise ConfigError("answer.archive stores objects; name some in answer.objects")
    studies = job.open(manifest.ARTIFACT)
    root = readers.images_root(config.source, lambda text: resolve_path(text, config.work))
    images = answers.list_asked_images(studies)
    stamp = stamp_files(root, (image.path for image in images))
    inputs: dict[str, Artifact | str] = {"manifest": studies, "images": stamp}
    made: dict[str, Any] = {"answer": settings.result_settings()}

    def write(writer: ArtifactWriter, ask: Ask) -> dict[str, Any]:
        most = config.source.max_reject_share
        return answer_images(writer.directory, images, root, ask, settings, config.images, most)

    if settings.service:
        key = ""
        if settings.service_key:
            key = read_keys(resolve_path(settings.service_key, config.work))[0]
        with Client(settings.service, key) as client:
            inputs["model"] = digest = client.model().digest
            with asking_service(client, config.images, digest) as ask:
                found = job.make(answers.ARTIFACT, made, inputs, partial(write, ask=ask))
    else:
        inputs["model"] = model = job.open(model_package.ARTIFACT)
        made["inference"] = inference = config.inference

        def ask_model(writer: ArtifactWriter) -> dict[str, Any]:
            predictor = load(model.path, engine=inference.engine, precision=inference.precision)
            with asking_model(predictor, config.images, config.workers) as ask:
                return write(writer, ask)

        found = job.make(answers.ARTIFACT, made, inputs, ask_model)
    if settings.archive:
        key_file = resolve_path(settings.archive_key, config.work) if settings.archive_key else None
        with DicomWeb(settings.archive, key_file) as archive:
            job.say(stored=answers.store_objects(found, archive))


main = job_main("answer_images", build)

if __name__ == "__main__":
    sys.exit(main())
