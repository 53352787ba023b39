"""The retrieval index of a trained model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest
from medclip_dcl.data.prepared import PreparedImages, require_fit
from medclip_dcl.inference.model_package import read_model_package
from medclip_dcl.inference.predictor import load
from medclip_dcl.retrieval import embeddings
from medclip_dcl.retrieval.index import findings_of, select_content, write_index
from medclip_dcl.retrieval.milvus import fill_collections
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels

from .cli import reuse_memory
from .job import Job


def build_index(job: Job) -> None:
    """Embed images and sentences with a trained model and commit them as a retrieval index."""
    reuse_memory()
    inputs = job.open_inputs()
    model, studies, prepared_artifact, texts, claims = (
        inputs.values[name] for name in ("model", "manifest", "prepared", "sentences", "claims")
    )
    settings, inference = job.config.index, job.config.inference
    similarity = read_model_package(model.path).config.model.similarity

    def write(writer: ArtifactWriter) -> dict[str, Any]:
        images = PreparedImages(prepared_artifact)
        chosen = select_content(
            read_table(studies.path, manifest.IMAGES),
            read_table(texts.path, sentences.SENTENCES),
            findings_of(read_table(claims.path, labels.REPORT_CLAIMS), _labels(studies)),
            images,
        )
        predictor = load(model.path, engine=inference.engine, precision=inference.precision)
        require_fit(prepared_artifact, predictor.config.images)
        counts = write_index(writer.directory, chosen, images, predictor, settings, similarity)
        counts["precision"] = predictor.engine.precision
        _fill_engine(job, writer.fingerprint, writer.directory.joinpath, counts)
        return counts

    index = job.make(
        embeddings.ARTIFACT,
        {"index": settings, "similarity": similarity, "inference": inference},
        inputs.digests,
        write,
    )
    _fill_engine(job, index.fingerprint, index.file, index.summary)  # one that was there already


def _labels(studies: Artifact) -> pa.Table | None:
    table = manifest.read_labels(studies)
    return table if manifest.STUDY_LABELS.file in studies.files else None


def _fill_engine(
    job: Job,
    fingerprint: Mapping[str, Any],
    locate: Callable[[str], Path],
    counts: Mapping[str, Any],
) -> None:
    retrieval = job.config.retrieval
    if not retrieval.uri:
        return
    if "://" not in retrieval.uri:
        uri = str(resolve_path(retrieval.uri, job.config.work))
        retrieval = retrieval.model_copy(update={"uri": uri})
    layout = embeddings.Layout.of(locate, fingerprint, counts)
    fill_collections(retrieval, fingerprint, layout.searched())
