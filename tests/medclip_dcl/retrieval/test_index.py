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
from medclip_dcl.retrieval.embeddings import Layout, map_pictures, pool, shard_name
from medclip_dcl.retrieval.index import findings_of, select_content, write_index
from tests.support import embeddings
from tests.support.embeddings import SIMILARITY, HashedEncoder, noise_images, selection

SETTINGS = IndexConfig(shard_rows=20)
IMAGES, TEXTS = embeddings.N_IMAGES, 27


def write(folder: Path, encoder: HashedEncoder, settings: IndexConfig = SETTINGS, **more: int):
    return write_index(folder, selection(), noise_images(), encoder, settings, SIMILARITY, **more)


def layout(folder: Path) -> Layout:
    return Layout(folder.joinpath, IMAGES, TEXTS, SETTINGS.shard_rows, SIMILARITY.dim)


def test_identical_sentences_are_one_row_counted_once_a_report_and_images_need_pixels():
    chosen = selection()
    counts = {row["text"]: row["studies"] for row in chosen.texts}
    assert len(counts) == len(chosen.texts) == TEXTS
    assert (counts["Shared 0."], counts["Opacity 5."]) == (8, 1)
    assert [row["text_key"] for row in chosen.texts] == sorted(r["text_key"] for r in chosen.texts)
    manifest, sentences = embeddings.manifest_table(), embeddings.sentence_table()
    repeated = pa.concat_tables([sentences, sentences.slice(0, 1)])
    assert select_content(manifest, repeated, {}, noise_images()).texts == chosen.texts
    chosen = select_content(manifest, sentences, {}, noise_images(40))
    assert (len(chosen.images), chosen.without_pixels) == (40, 8)
    with pytest.raises(ConfigError, match="no image of the manifest is prepared"):
        select_content(manifest, sentences, {}, noise_images(0))


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
    counts = write(tmp_path, HashedEncoder(), batch=7)
    shards = layout(tmp_path).open("regions").arrays
    assert [len(shard) for shard in shards] == [20, 20, 8]
    expected = HashedEncoder().embed_images(noise_images().pixels(21)[None])[0].numpy()
    np.testing.assert_allclose(shards[1][1], expected, atol=1e-3)
    assert counts == {
        "images": IMAGES,
        "texts": TEXTS,
        "occurrences": 48,
        "images_without_pixels": 0,
        "candidate_recall_at_10": None,
    }
    pictures = map_pictures(tmp_path / shard_name("pictures", 0, "arrow"))
    assert len(pictures) == 20
    assert Image.open(io.BytesIO(pictures[0].as_py())).size == (128, 256)


class Counting(HashedEncoder):
    """It is stopped once it has embedded `most` images."""

    def __init__(self, most: int) -> None:
        self.seen, self.most = 0, most

    def embed_images(self, images):
        if self.seen >= self.most:
            raise KeyboardInterrupt
        self.seen += len(images)
        return super().embed_images(images)


def test_a_shard_that_is_there_is_not_embedded_again(tmp_path: Path) -> None:
    encoder = Counting(20)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, encoder)
    first = (tmp_path / shard_name("pooled", 0)).read_bytes()
    encoder.most = IMAGES
    write(tmp_path, encoder)
    assert encoder.seen == IMAGES
    assert (tmp_path / shard_name("pooled", 0)).read_bytes() == first


def test_pooled_vector_is_the_direction_of_the_mean() -> None:
    regions = np.zeros((1, 1, 2, 2), dtype=np.float32)
    regions[0, 0] = [[1, 0], [0, 1]]
    np.testing.assert_allclose(pool(regions), [[0.5**0.5, 0.5**0.5]], rtol=1e-6)
    for bad in ([[1, 0], [-1, 0]], [[np.nan, 0], [1, 0]]):
        with pytest.raises(CheckpointError, match="without direction"):
            pool(np.asarray(bad, dtype=np.float32)[None, None])


def test_recall_is_the_share_of_the_exact_best_among_the_candidates(tmp_path):
    """Eight of 27 sentences are landmarks of random images: hardly better than chance, 20 of 48."""

    def built(landmarks: int) -> float | None:
        own = IndexConfig(shard_rows=20, candidates=20)
        (tmp_path / str(landmarks)).mkdir()
        counts = write(tmp_path / str(landmarks), HashedEncoder(), own, landmarks=landmarks)
        return counts["candidate_recall_at_10"]

    recall, index = built(12), layout(tmp_path / "12")
    asked = np.delete(index.open("texts").whole(), [0, 3, 7, 11, 14, 18, 22, 26], axis=0)
    regions = torch.from_numpy(index.open("regions").whole().astype(np.float32)).flatten(1, 2)
    exact = image_sentence_scores(regions, torch.from_numpy(asked), SIMILARITY).numpy()
    near = index.sketch.of_vectors(asked) @ index.open("image_sketches").whole().T
    shares = [
        len(set(np.argsort(-one)[:10]) & set(np.argsort(-other)[:20])) / 10
        for one, other in zip(exact, near, strict=True)
    ]
    assert recall == pytest.approx(np.mean(shares), abs=1e-4)
    assert 0.2 < np.mean(shares) < 0.95
    assert built(60) is None  # every sentence is a landmark: none is left to ask by
