"""What an index holds, and how many of the best its candidates hold."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval import IndexConfig
from medclip_dcl.retrieval.embeddings import (
    SKETCH,
    Sketch,
    map_array,
    map_pictures,
    pool,
    shard_name,
)
from medclip_dcl.retrieval.index import findings_of, select_content, write_index
from tests.support.embeddings import (
    SIMILARITY,
    HashedEncoder,
    NumberedImages,
    manifest_table,
    selection,
    sentence_table,
)

SETTINGS = IndexConfig(shard_rows=20)


def images() -> NumberedImages:
    return NumberedImages(manifest_table(48).column("image_id").to_pylist())


def test_identical_sentences_are_one_row_counted_once_a_report_and_images_need_pixels():
    chosen = selection()
    counts = {row["text"]: row["studies"] for row in chosen.texts}
    assert len(chosen.texts) == 24 + 3
    assert counts["Shared 0."] == 8
    assert counts["Opacity 5."] == 1
    assert [row["text_key"] for row in chosen.texts] == sorted(r["text_key"] for r in chosen.texts)
    sentences = sentence_table(24)
    twice = sentences.slice(0, 1)
    chosen = select_content(manifest_table(48), pa.concat_tables([sentences, twice]), {}, images())
    assert next(row["studies"] for row in chosen.texts if row["text"] == "Opacity 0.") == 1
    prepared = NumberedImages([f"image-{number:03d}" for number in range(40)])
    chosen = select_content(manifest_table(48), sentence_table(24), {}, prepared)
    assert (len(chosen.images), chosen.without_pixels) == (40, 8)
    with pytest.raises(ConfigError, match="no image of the manifest is prepared"):
        select_content(manifest_table(48), sentence_table(24), {}, NumberedImages([]))


def test_an_image_has_its_report_s_findings_and_labels_that_reports_are_not_read_for() -> None:
    said = [
        {"study_id": "a", "asserted": ["Edema|left", "Edema"], "normal": False},
        {"study_id": "b", "asserted": [], "normal": True},
    ]
    labels = [
        {"study_id": "a", "Edema": 0, "Fracture": 1, "Hernia": 1, "Fibrosis": -1},
        {"study_id": "b", "Edema": None, "Fracture": None, "Hernia": 0, "Fibrosis": 0},
        {"study_id": "c", "Edema": 1, "Fracture": 0, "Hernia": 1, "Fibrosis": None},
    ]
    claims = pa.Table.from_pylist(said)
    assert findings_of(claims, pa.Table.from_pylist(labels)) == {
        "a": ["Edema", "Hernia"],  # the label Fracture is not what the report says
        "b": ["No Finding"],
        "c": ["Edema", "Hernia"],  # without a report
    }
    assert findings_of(claims, None) == {"a": ["Edema"], "b": ["No Finding"]}


def test_shards_hold_every_image_in_order_and_thumbnails_of_its_proportions(tmp_path):
    counts = write_index(tmp_path, selection(), images(), HashedEncoder(), SETTINGS, SIMILARITY, 7)
    shards = [map_array(tmp_path / shard_name("regions", n), np.float16) for n in range(3)]
    assert [len(shard) for shard in shards] == [20, 20, 8]
    expected = HashedEncoder().embed_images(images().pixels(21)[None])[0].numpy()
    np.testing.assert_allclose(shards[1][1], expected, atol=1e-3)
    assert counts == {
        "images": 48,
        "texts": 27,
        "occurrences": 48,
        "images_without_pixels": 0,
        "candidate_recall_at_10": None,
    }
    pictures = map_pictures(tmp_path / shard_name("pictures", 0, "arrow"))
    assert len(pictures) == 20
    assert Image.open(io.BytesIO(pictures[0].as_py())).size == (128, 256)


def test_a_shard_that_is_there_is_not_embedded_again(tmp_path: Path) -> None:
    class Counting(HashedEncoder):
        calls = 0

        def embed_images(self, images):
            self.calls += len(images)
            if self.calls > 20:
                raise KeyboardInterrupt
            return super().embed_images(images)

    with pytest.raises(KeyboardInterrupt):
        write_index(tmp_path, selection(), images(), Counting(), SETTINGS, SIMILARITY)
    first = (tmp_path / shard_name("pooled", 0)).read_bytes()

    class Rest(HashedEncoder):
        seen = 0

        def embed_images(self, images):
            self.seen += len(images)
            return super().embed_images(images)

    rest = Rest()
    write_index(tmp_path, selection(), images(), rest, SETTINGS, SIMILARITY)
    assert rest.seen == 28
    assert (tmp_path / shard_name("pooled", 0)).read_bytes() == first


def test_pooled_vector_is_the_direction_of_the_mean() -> None:
    regions = np.zeros((1, 1, 2, 2), dtype=np.float32)
    regions[0, 0] = [[1, 0], [0, 1]]
    np.testing.assert_allclose(pool(regions), [[0.5**0.5, 0.5**0.5]], rtol=1e-6)
    for bad in ([[1, 0], [-1, 0]], [[np.nan, 0], [1, 0]]):
        with pytest.raises(CheckpointError, match="without direction"):
            pool(np.asarray(bad, dtype=np.float32)[None, None])


TEXTS = 27


def built(folder: Path, landmarks: int, candidates: int) -> float | None:
    folder.mkdir(exist_ok=True)
    chosen = IndexConfig(shard_rows=20, candidates=candidates)
    counts = write_index(
        folder, selection(), images(), HashedEncoder(), chosen, SIMILARITY, landmarks=landmarks
    )
    return counts["candidate_recall_at_10"]


def test_recall_is_the_share_of_the_exact_best_among_the_candidates(tmp_path):
    """Eight of 27 sentences are landmarks of random images: hardly better than chance, 20 of 48."""
    recall = built(tmp_path, landmarks=12, candidates=20)
    whole = {
        what: np.concatenate([map_array(tmp_path / shard_name(what, n), dtype) for n in range(3)])
        for what, dtype in (("regions", np.float16), ("image_sketches", np.float32))
    }
    texts = np.concatenate(
        [map_array(tmp_path / shard_name("texts", n), np.float32) for n in (0, 1)]
    )
    landmarks = {round(index) for index in np.linspace(0, TEXTS - 1, 8) // 1}
    asked = texts[[row for row in range(TEXTS) if row not in landmarks]]
    assert len(asked) == 19
    regions = torch.from_numpy(whole["regions"].astype(np.float32)).flatten(1, 2)
    exact = image_sentence_scores(regions, torch.from_numpy(asked), SIMILARITY).numpy()
    sketch = Sketch.read(tmp_path / SKETCH, SIMILARITY.dim)
    near = sketch.of_vectors(asked) @ whole["image_sketches"].T
    shares = [
        len(set(np.argsort(-one)[:10]) & set(np.argsort(-other)[:20])) / 10
        for one, other in zip(exact, near, strict=True)
    ]
    assert recall == pytest.approx(np.mean(shares), abs=1e-4)
    assert 0.2 < np.mean(shares) < 0.95
    # where every sentence is an anchor nobody is left to ask
    assert built(tmp_path / "all", landmarks=60, candidates=20) is None
