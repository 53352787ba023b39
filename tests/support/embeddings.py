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


class PixelRows:
    """Prepared images, the first of the manifest, held in memory."""

    def __init__(self, images: npt.NDArray[np.uint8], size_px: tuple[int, int]) -> None:
        self._images, self._size_px = images, size_px
        self.row_of = {f"image-{row:03d}": row for row in range(len(images))}

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        return self._images[row]

    def original_size(self, row: int) -> tuple[int, int]:
        return self._size_px


NOISE = np.random.default_rng(0).integers(0, 256, (N_IMAGES, SIZE_PX, SIZE_PX), dtype=np.uint8)


def noise_images(count: int = N_IMAGES) -> PixelRows:
    return PixelRows(NOISE[:count], (200, 100))


def study_ids(count: int) -> list[dict[str, str]]:
    """Ids of studies of which two share a patient."""
    splits = ("train", "validate", "test")
    return [
        {
            "study_id": f"study-{study:03d}",
            "subject_id": f"patient-{study // 2:03d}",
            "split": splits[study // 2 % 3],
        }
        for study in range(count)
    ]


STUDIES = study_ids(N_STUDIES)


def manifest_table(studies: Sequence[dict[str, str]] = STUDIES, images: int = N_IMAGES) -> pa.Table:
    """As many images of each study."""
    rows = [
        {"image_id": f"image-{row:03d}", "view": ("PA", "AP")[row % 2], "path": f"{row}.dcm"}
        | studies[row * len(studies) // images]
        for row in range(images)
    ]
    return pa.Table.from_pylist(rows, schema=IMAGES.schema)


TEXTS = [[f"Opacity {study}.", f"Shared {study % 3}."] for study in range(N_STUDIES)]
"""Of each study one sentence of its own and one that others say, too."""


def sentence_table(
    studies: Sequence[dict[str, str]] = STUDIES, texts: Sequence[Sequence[str]] = TEXTS
) -> pa.Table:
    rows = chain(*map(sentence_rows, studies, texts))
    return pa.Table.from_pylist(list(rows), schema=SENTENCES.schema)


def selection() -> IndexContent:
    """All of it, with a finding a study, two in every fifth, and none in the first."""
    names = ("Cardiomegaly", "Pleural Effusion", "No Finding")
    findings = {
        f"study-{study:03d}": [names[study % 3], *(["Pneumonia"] if study % 5 == 0 else [])]
        for study in range(1, N_STUDIES)
    }
    return select_content(manifest_table(), sentence_table(), findings, noise_images())


def build(path: Path, settings: IndexConfig) -> Artifact:
    made = selection(), noise_images(), HashedEncoder(), SIMILARITY, MODEL_DIGEST
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
