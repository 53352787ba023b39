"""What is asked: an index of a trained model's images, each in several views, and a made-up one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from medclip_dcl.artifact import Artifact, make_fingerprint, open_artifact
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.index import IndexContent, select_content, write_index
from medclip_dcl.retrieval.settings import IndexConfig
from medclip_dcl.tables import SPLITS, read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.sentences import text_key
from medclip_synthetic.patients import NATURAL, GeneratedStudy, Item, Patient, draw_patient

SEED = 20_002
"""Of patients that no config has drawn: they ask."""

_WHITE = 65535
_LEAST_SHARE = 0.8


@dataclass(frozen=True)
class Views:
    """Images, each in several views: cut out, brightened and stretched at random."""

    images: PreparedImages
    row_of: dict[str, int]
    """Row of each view: row of its image x views + number of the view."""
    views: int

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        """Make a view; the first is the image itself."""
        index, view = divmod(row, self.views)
        image = self.images.pixels(index)
        if view == 0:
            return image
        rng = np.random.default_rng((index, view))
        size = len(image)
        side = int(size * rng.uniform(_LEAST_SHARE, 1))
        top, left = rng.integers(0, size - side + 1, 2)
        cut = Image.fromarray(image[top : top + side, left : left + side])
        grown = np.asarray(cut.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float32)
        shade = 128 + rng.uniform(0.8, 1.2) * (grown - 128) + rng.uniform(-20, 20)
        view_of: npt.NDArray[np.uint8] = np.clip(np.rint(shade), 0, 255).astype(np.uint8)
        return view_of

    def original_size(self, _row: int) -> tuple[int, int]:
        """Give a size; no picture is kept."""
        return 1, 1


def build_views(
    folder: Path, work: Path, predictor: Predictor, views: int, settings: IndexConfig
) -> Path:
    """Embed views of all images of a config, and its sentences, and commit the index.

    `work` is the config's folder. An index of the same config in `folder` is taken as it is.
    """
    similarity = predictor.config.model.similarity
    fingerprint = make_fingerprint(
        ARTIFACT,
        {"index": settings, "similarity": similarity, "views": views},
        {"model": predictor.digest},
    )
    path = folder / "views"
    if path.is_dir() and open_artifact(path, ARTIFACT).fingerprint == fingerprint:
        return path
    images = PreparedImages(open_artifact(prepared.ARTIFACT.at(work), prepared.ARTIFACT))
    table = read_table(manifest.ARTIFACT.at(work), manifest.IMAGES).to_pylist()
    rows = [
        {**row, "image_id": f"{row['image_id']}.{view}"} for row in table for view in range(views)
    ]
    indices = {
        f"{name}.{view}": row * views + view
        for name, row in images.row_of.items()
        for view in range(views)
    }
    seen = Views(images, indices, views)
    chosen = select_content(
        pa.Table.from_pylist(rows, schema=manifest.IMAGES.schema),
        read_table(sentences.ARTIFACT.at(work), sentences.SENTENCES),
        {},
        seen,
        SPLITS,
    )
    with write_artifact(path, ARTIFACT, fingerprint) as writer:
        writer.commit(write_index(writer.directory, chosen, seen, predictor, settings, similarity))
    return path


def questions(sentences: int) -> list[str]:
    """Give different sentences of patients that the index does not hold."""
    found: dict[str, None] = {}
    for patient in _patients():
        for study in patient.studies:
            found.update(dict.fromkeys(_said(study)))
        if len(found) >= sentences:
            break
    return list(found)[:sentences]


def asking_images(predictor: Predictor, images: int) -> npt.NDArray[np.uint8]:
    """Draw images (images, size, size) of patients that the index does not hold."""
    plans: list[Item] = []
    for patient in _patients():
        plans += [item for item in patient.items() if item.image.is_frontal]
        if len(plans) >= images:
            break
    size_px = predictor.config.images.size_px
    drawn = [item.draw(size_px).pixels for item in plans[:images]]
    return np.stack([predictor.square(GreyImage(_words(item), 16, "dicom")) for item in drawn])


def _patients() -> Iterator[Patient]:
    number = 0
    while True:
        yield draw_patient(NATURAL, number, SEED)
        number += 1


def _said(study: GeneratedStudy) -> list[str]:
    report = study.report
    return [statement.text for statement in (*report.findings, *report.impression)]


def _words(pixels: npt.NDArray[np.floating]) -> npt.NDArray[np.uint16]:
    low, high = float(pixels.min()), float(pixels.max())
    return np.rint((pixels - low) / (high - low) * _WHITE).astype(np.uint16)


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


def build_made_up(folder: Path, images: int, encoder: MadeUpEncoder) -> Artifact:
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
    chosen = IndexContent(rows, texts, occurrences, without_pixels=0)
    with write_artifact(folder, ARTIFACT, fingerprint) as writer:
        return writer.commit(
            write_index(writer.directory, chosen, known, encoder, settings, similarity)
        )
