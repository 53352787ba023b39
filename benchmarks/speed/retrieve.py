"""What two-stage retrieval finds of an exhaustive search, and what a query costs.

    make demo && python -m benchmarks.retrieve [--quick]

Recall: the demo's index is asked by sentences of patients that no config drew. The truth is the
exact score of every image; K is the least number of candidates whose recall@10 reaches the bar.

Cost: an index of 100,000 made-up images (--quick: 10,000) with 15 x 15 regions of width 128, the
paper's, is asked with the default number of candidates, one thread.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional

from benchmarks.record import finish, is_quick, judge
from benchmarks.speed.timing import cpu_ms, interleaved, show, wall_ms
from medclip_dcl.core.artifact import Artifact, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.inference import model_package
from medclip_dcl.inference.predictor import load
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.index import IndexContent, write_index
from medclip_dcl.retrieval.search import Filters, Query, RetrievalIndex
from medclip_dcl.retrieval.settings import IndexConfig
from medclip_dcl.synthetic.patients import NATURAL, draw_patient
from medclip_dcl.text.sentences import text_key
from pipelines.config import load_config

CONFIG = Path("configs/demo.yaml")
BARS = {"recall_at_10": ">= 0.99", "query_cpu_ms": "<= 7.0", "gib_per_100k": "<= 3.0"}
CANDIDATES = (10, 20, 50, 100, 200, 300, 500, 1000)
K_HITS = 10
SEED = 20_002
"""Of patients that no config has drawn: they ask."""
DIM, GRID = 128, 15
MODEL = "made up"
_TEMPLATES, _TOPICS = 400, 2000
_IMAGES_AT_ONCE = 256
_FILTERS = Filters(splits=frozenset({"test"}), findings=frozenset({"Pneumonia"}))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where the demo has not been run."""
    quick = is_quick(argv)
    config = load_config(CONFIG)
    work = resolve_path(config.work, config.work)
    if not (ARTIFACT.at(work).is_dir() and model_package.ARTIFACT.at(work).is_dir()):
        print("no model and index of the demo; run `make demo` first", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    with threadpool_limits(1), tempfile.TemporaryDirectory() as folder:
        figures = of_demo(work, 100 if quick else 300)
        rounds, images = (40, 10_000) if quick else (100, 100_000)
        figures |= of_made_up(Path(folder) / "made_up", images, rounds)
    return finish("retrieve", figures, judge(figures, BARS))


def of_demo(work: Path, asked: int) -> dict[str, float]:
    """Measure the recall of the demo's index by number of candidates."""
    predictor = load(model_package.ARTIFACT.at(work), "cpu")
    index = RetrievalIndex.open(ARTIFACT.at(work), predictor.digest)
    sentences = predictor.embed_sentences(questions(asked))
    best = exhaustive(index, sentences)
    recall = {k: recall_at_10(index, sentences, best, k) for k in CANDIDATES}
    least = next((k for k in recall if recall[k] >= 0.99), max(recall))
    figures = {"images": float(len(index.pooled)), "K": float(least)}
    figures["recall_at_10"] = recall_at_10(index, sentences, best, index.settings.candidates)
    return figures | {f"recall_at_10_K{k}": value for k, value in recall.items()}


def questions(count: int) -> list[str]:
    """Draw different sentences of patients that the index does not hold."""
    texts: dict[str, None] = {}
    number = 0
    while len(texts) < count:
        for study in draw_patient(NATURAL, number, SEED).studies:
            report = study.report
            texts.update((item.text, None) for item in (*report.findings, *report.impression))
        number += 1
    return list(texts)[:count]


def exhaustive(index: RetrievalIndex, sentences: Tensor) -> npt.NDArray[np.int64]:
    """Score every image by unit vectors (queries, dim); rows (queries, 10) of the best."""
    parts = []
    for first in range(0, len(index.regions), _IMAGES_AT_ONCE):
        rows = np.arange(first, min(first + _IMAGES_AT_ONCE, len(index.regions)))
        regions = torch.from_numpy(index.regions.gather(rows)).float().flatten(1, 2)
        parts.append(image_sentence_scores(regions, sentences, index.similarity))
    scores = torch.cat(parts, dim=1).numpy()
    return np.argsort(-scores, axis=1, kind="stable")[:, :K_HITS]


def recall_at_10(
    index: RetrievalIndex, sentences: Tensor, best: npt.NDArray[np.int64], candidates: int
) -> float:
    """Measure the index itself, its whole road from query to hits."""
    settings = index.settings.model_copy(update={"candidates": candidates})
    narrow = RetrievalIndex(**{**vars(index), "settings": settings})
    ids = index.studies.images.column("image_id").to_pylist()
    shares = [
        len({hit.id for hit in narrow.search(Query("image", K_HITS, vector=vector))}
            & {ids[row] for row in rows}) / K_HITS
        for vector, rows in zip(sentences, best, strict=True)
    ]  # fmt: skip
    return float(np.mean(shares))


def of_made_up(folder: Path, images: int, rounds: int) -> dict[str, float]:
    """Measure what an index of made-up images takes to build, to open and to ask."""
    encoder = MadeUpEncoder()
    artifact = build_made_up(folder, images, encoder)
    size = sum(entry["bytes"] for entry in artifact.files.values())
    began = time.monotonic()
    index = RetrievalIndex.open(artifact.path, MODEL)
    opened = time.monotonic() - began
    vectors = [encoder.sentence(images + number) for number in range(rounds + 2)]

    def ask(filters: Filters, number: int) -> object:
        return index.search(Query("image", K_HITS, vector=vectors[number], filters=filters))

    times = interleaved(
        {"query": lambda i: ask(Filters(), i), "filtered": lambda i: ask(_FILTERS, i)}, rounds
    )
    show(times)
    asked = torch.stack(vectors[:20])
    best = exhaustive(index, asked)
    return {
        "made_up_images": float(images),
        "build_s": float(artifact.origin["seconds"]),
        "gib_per_100k": size / 2**30 * 100_000 / images,
        "open_s": opened,
        "made_up_recall_at_10": recall_at_10(index, asked, best, index.settings.candidates),
        "query_cpu_ms": cpu_ms(times, "query"),
        "query_p50_ms": wall_ms(times, "query"),
        "query_p99_ms": wall_ms(times, "query", 99),
        "filtered_query_cpu_ms": cpu_ms(times, "filtered"),
    }


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
    """Commit an index of made-up images; a tenth has pneumonia, a sixth is tested."""
    ids = [f"image-{row:07d}" for row in range(images)]
    splits = ("train", "train", "train", "train", "validate", "test")
    rows = [
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
    texts = [{"text_key": text_key("0"), "text": "0", "studies": images}]
    occurrences = [{"study_id": row["study_id"], "text": 0} for row in rows]
    settings, similarity = IndexConfig(pictures=False, shard_rows=4096), SimilarityConfig(dim=DIM)
    given = {"index": settings, "similarity": similarity, "images": images}
    content = IndexContent(rows, texts, occurrences, without_pixels=0)
    known = MadeUpImages({name: row for row, name in enumerate(ids)})
    fingerprint = make_fingerprint(ARTIFACT, given, {"model": MODEL})
    with write_artifact(folder, ARTIFACT, fingerprint) as writer:
        return writer.commit(
            write_index(writer.directory, content, known, encoder, settings, similarity)
        )


if __name__ == "__main__":
    sys.exit(main())
