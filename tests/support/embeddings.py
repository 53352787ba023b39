"""A small index of random vectors: images, sentences and an encoder that makes them up."""

import hashlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional

from medclip_dcl.core.artifact import Artifact, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.data.manifest import IMAGES
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.retrieval import IndexConfig
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.index import IndexContent, select_content, write_index
from medclip_dcl.text.sentences import SENTENCES
from tests.support.corpus import sentence_rows

DIM = 8
GRID = 3
SIZE_PX = 16
N_IMAGES, N_STUDIES = 48, 24
SIMILARITY = SimilarityConfig(dim=DIM)
MODEL_DIGEST = "m" * 64


class HashedEncoder:
    """Vectors that depend on the input alone, as a model's do."""

    def embed_images(self, images: npt.NDArray[np.uint8]) -> Tensor:
        return torch.stack([_vectors(image.tobytes(), GRID, GRID) for image in images])

    def embed_sentences(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([_vectors(text.encode(), 1, 1)[0, 0] for text in texts])


class NumberedImages:
    """Prepared images, the first of the manifest, whose pixels are drawn from their row number."""

    def __init__(self, count: int = N_IMAGES) -> None:
        self.row_of = {f"image-{row:03d}": row for row in range(count)}

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        generator = np.random.default_rng(row)
        return generator.integers(0, 256, (SIZE_PX, SIZE_PX), dtype=np.uint8)

    def original_size(self, row: int) -> tuple[int, int]:
        return 200 + row % 2, 100


def manifest_table() -> pa.Table:
    """Images of which two share a study and four a patient."""
    rows = [
        {"image_id": f"image-{row:03d}", "view": ("PA", "AP")[row % 2], "path": f"{row}.dcm"}
        | _ids(row // 2)
        for row in range(N_IMAGES)
    ]
    return pa.Table.from_pylist(rows, schema=IMAGES.schema)


def sentence_table() -> pa.Table:
    """Two sentences a study: one of its own and one of three that others say, too."""
    said = [
        sentence_rows(_ids(study), [f"Opacity {study}.", f"Shared {study % 3}."])
        for study in range(N_STUDIES)
    ]
    return pa.Table.from_pylist(list(chain(*said)), schema=SENTENCES.schema)


def _ids(study: int) -> dict[str, str]:
    split = ("train", "validate", "test")[study // 2 % 3]
    ids = {"study_id": f"study-{study:03d}", "subject_id": f"patient-{study // 2:03d}"}
    return {**ids, "split": split}


def selection() -> IndexContent:
    """All of it, with a finding a study, two in every fifth, and none in the first."""
    names = ("Cardiomegaly", "Pleural Effusion", "No Finding")
    findings = {
        f"study-{study:03d}": [names[study % 3], *(["Pneumonia"] if study % 5 == 0 else [])]
        for study in range(1, N_STUDIES)
    }
    return select_content(manifest_table(), sentence_table(), findings, NumberedImages())


def build(path: Path, settings: IndexConfig) -> Artifact:
    made = selection(), NumberedImages(), HashedEncoder(), SIMILARITY, MODEL_DIGEST
    return commit_index(path, *made, settings)


def commit_index(
    path: Path,
    chosen: IndexContent,
    images: Any,
    encoder: Any,
    similarity: SimilarityConfig,
    model: str,
    settings: IndexConfig | None = None,
) -> Artifact:
    """Commit the index of some images and sentences, as `build_index` does; `model`: its digest."""
    settings = settings or IndexConfig()
    sections = {"index": settings, "similarity": similarity}
    fingerprint = make_fingerprint(ARTIFACT, sections, {"model": model})
    with write_artifact(path, ARTIFACT, fingerprint) as writer:
        folder = writer.directory
        return writer.commit(write_index(folder, chosen, images, encoder, settings, similarity))


def _vectors(data: bytes, rows: int, columns: int) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(data).digest()[:8], "big", signed=True)
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(rows, columns, DIM, generator=generator), dim=-1)
