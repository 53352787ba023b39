"""An index of made-up embeddings: many images of full size, none of them drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from medclip_dcl.artifact import Artifact, make_fingerprint, open_artifact, write_artifact
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.index import Selection, write_index
from medclip_dcl.retrieval.settings import IndexConfig
from medclip_dcl.text.sentences import text_key

DIM, GRID = 128, 15
MODEL = "made up"

_TEMPLATES, _TOPICS = 400, 2000
_TEXTS_PER_IMAGE = 0.2


@dataclass(frozen=True)
class MadeUpImages:
    """Images whose pixels are their row's number."""

    row_of: dict[str, int]

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        """Write the row's number into eight pixels."""
        return np.frombuffer(row.to_bytes(8, "little"), dtype=np.uint8)

    def original_size(self, _row: int) -> tuple[int, int]:
        """Give a size; no picture is kept."""
        return 1, 1


class MadeUpEncoder:
    """Region vectors around one of many layouts, bent towards one of many topics."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._layouts = functional.normalize(
            torch.randn(_TEMPLATES, GRID, GRID, DIM, generator=generator), dim=-1
        )
        self._topics = functional.normalize(torch.randn(_TOPICS, DIM, generator=generator), dim=-1)

    def embed_images(self, images: npt.NDArray[np.uint8]) -> Tensor:
        """Make up the regions of images."""
        rows = images.reshape(len(images), 8).copy().view("<i8")[:, 0].tolist()
        return torch.stack([self._regions(row) for row in rows])

    def embed_sentences(self, texts: Sequence[str]) -> Tensor:
        """Make up sentences, each near a topic."""
        return torch.stack([self.sentence(int(text)) for text in texts])

    def sentence(self, number: int) -> Tensor:
        """Make up one sentence."""
        generator = torch.Generator().manual_seed(1 + number)
        noise = torch.randn(DIM, generator=generator) / DIM**0.5
        return functional.normalize(self._topics[number % _TOPICS] + 0.5 * noise, dim=-1)

    def _regions(self, row: int) -> Tensor:
        """A lesion of 3 x 3 regions answers to the image's topic; all lean towards its second."""
        rng = np.random.default_rng(row)
        layout, topic, second = rng.integers((_TEMPLATES, _TOPICS, _TOPICS))
        y, x = rng.integers(0, GRID - 3, 2)
        regions = self._layouts[layout] + 0.4 * self._topics[second]
        regions[y : y + 3, x : x + 3] += rng.uniform(0.5, 2) * self._topics[topic]
        return functional.normalize(regions, dim=-1)


def build(folder: Path, images: int, encoder: MadeUpEncoder) -> Artifact:
    """Commit an index of made-up images; one of the same config is taken as it is."""
    ids = [f"image-{row:07d}" for row in range(images)]
    splits = ("train", "train", "train", "train", "validate", "test")
    rows: list[dict[str, Any]] = [
        {
            "image_id": name,
            "study_id": f"study-{row:07d}",
            "subject_id": f"patient-{row // 3:07d}",
            "split": splits[row // 3 % 6],
            "view": "AP" if row % 4 else "PA",
            "findings": ["Pneumonia"] if row % 10 == 0 else [],
            "height_px": 1,
            "width_px": 1,
        }
        for row, name in enumerate(ids)
    ]
    count = int(images * _TEXTS_PER_IMAGE)
    texts = [
        {"text_key": text_key(str(number)), "text": str(number), "studies": 1}
        for number in range(count)
    ]
    occurrences = [{"study_id": f"study-{row:07d}", "text": row % count} for row in range(images)]
    settings = IndexConfig(pictures=False, shard_rows=4096)
    similarity = SimilarityConfig(dim=DIM)
    fingerprint = make_fingerprint(
        ARTIFACT, {"index": settings, "similarity": similarity, "images": images}, {"model": MODEL}
    )
    if folder.is_dir():
        there = open_artifact(folder, ARTIFACT, verify=False)
        if there.fingerprint == fingerprint:
            return there
    known = MadeUpImages({name: row for row, name in enumerate(ids)})
    chosen = Selection(rows, texts, occurrences, without_pixels=0)
    with write_artifact(folder, ARTIFACT, fingerprint) as writer:
        return writer.commit(
            write_index(writer.directory, chosen, known, encoder, settings, similarity)
        )
