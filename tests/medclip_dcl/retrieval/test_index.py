"""The index: its vectors and sketches, what it holds, and how many of the best are candidates."""

import io
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.nn import functional

from medclip_dcl.core.errors import ArtifactCorrupt, CheckpointError, ConfigError, TooManyOpenFiles
from medclip_dcl.core.files import raise_open_file_limit
from medclip_dcl.core.tables import map_array, read_table, write_array, write_table
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval import IndexConfig, embeddings
from medclip_dcl.retrieval.embeddings import InMemoryIndex, Layout, Shards, shard_name
from medclip_dcl.retrieval.index import findings_of, select_content, write_index
from tests.support import embeddings as small
from tests.support.embeddings import SIMILARITY, HashedEncoder, noise_images, selection

ROWS, SHARD_ROWS = 10, 4


def opened(folder: Path, rows: int = ROWS, dim: int = 5) -> Shards:
    return Layout(folder.joinpath, rows, 0, SHARD_ROWS, dim).open("regions")


def test_rows_are_read_across_shards_as_stored_and_of_their_size_alone(tmp_path: Path) -> None:
    regions = np.random.default_rng(0).standard_normal((ROWS, 2, 3, 5)).astype(np.float16)
    for shard, start in enumerate(range(0, ROWS, SHARD_ROWS)):
        part = regions[start : start + SHARD_ROWS]
        write_array(tmp_path / shard_name("regions", shard), part)
    shards = opened(tmp_path)
    rows = np.array([9, 0, 3, 4, 4])
    np.testing.assert_array_equal(shards.gather(rows), regions[rows])
    np.testing.assert_array_equal(shards.whole(), regions)
    for size in ((9, 5), (12, 5), (ROWS, 4)):
        with pytest.raises(ArtifactCorrupt, match="rebuild it"):
            opened(tmp_path, *size)


SHARDS = 300


def test_no_mapped_file_stays_open_and_a_full_table_of_files_is_not_called_damage(tmp_path):
    path = tmp_path / shard_name("texts", 0)
    write_array(path, np.ones((2, 3), dtype=np.float32))
    for shard in range(1, SHARDS):
        (tmp_path / shard_name("texts", shard)).hardlink_to(path)
    embeddings.write_pictures(tmp_path / "pictures.arrow", [b"x"])
    write_table(tmp_path, embeddings.TEXTS, [{"text_key": "k", "text": "t", "studies": 1}])
    read_table(tmp_path, embeddings.TEXTS)  # what it imports is loaded
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with path.open("rb") as stream:
        lowest = stream.fileno()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + SHARDS // 2, hard))
        shards = Layout(tmp_path.joinpath, 0, 2 * SHARDS, 2, 3).open("texts")
        pictures = [embeddings.map_pictures(tmp_path / "pictures.arrow") for _ in range(SHARDS)]
        assert (shards.whole().sum(), len(pictures)) == (6 * SHARDS, SHARDS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        with pytest.raises(TooManyOpenFiles, match=rf"may open {lowest} files .*ulimit -n"):
            map_array(path, np.float32)
        with pytest.raises(TooManyOpenFiles, match=r"texts\.parquet"):
            read_table(tmp_path, embeddings.TEXTS)
        raise_open_file_limit()
        assert map_array(path, np.float32).sum() == 6
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("size", [40, 140])
def test_an_array_that_is_cut_is_damaged(tmp_path: Path, size: int) -> None:
    path = tmp_path / "texts-00000.npy"
    write_array(path, np.ones((2, 3), dtype=np.float32))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArtifactCorrupt, match="cannot be read; rerun the job that made it"):
        map_array(path, np.float32)


def by_sorting(scores: np.ndarray, count: int) -> list[int]:
    return sorted(np.argsort(-scores, kind="stable")[:count].tolist())


@pytest.mark.parametrize("count", [1, 7, 150])
def test_the_highest_scores_are_those_of_a_sort_and_of_equal_ones_the_first(count: int) -> None:
    rng = np.random.default_rng(0)
    differing = [rng.standard_normal(size) for size in (1, 63, 64, 1000, 20_011)]
    equal = [rng.integers(0, levels, 30_000) for levels in (1, 2, 5)]
    for scores in (item.astype(np.float32) for item in (*differing, *equal)):
        assert embeddings.highest(scores, count).tolist() == by_sorting(scores, count)


def test_only_allowed_rows_are_found_and_of_many_those_of_a_product():
    nearest = InMemoryIndex(Shards([np.eye(5, dtype=np.float32)], 5))
    direction = np.array([5, 4, 3, 2, 1], dtype=np.float32)
    allowed = np.array([False, True, False, True, True])
    assert nearest.rows(direction, allowed, 2).tolist() == [1, 3]
    assert nearest.rows(direction, allowed, 9).tolist() == [1, 3, 4]
    assert nearest.rows(direction, np.zeros(5, dtype=bool), 2).tolist() == []
    assert nearest.rows(direction, None, 2).tolist() == [0, 1]
    vectors = np.random.default_rng(0).standard_normal((20_000, 32)).astype(np.float32)
    nearest = InMemoryIndex(Shards([vectors], len(vectors)))
    expected = by_sorting(vectors @ vectors[7], 100)
    assert nearest.rows(vectors[7], None, 100).tolist() == expected


def unit(*shape: int) -> torch.Tensor:
    return functional.normalize(torch.randn(*shape), dim=-1)


def test_sketches_give_the_exact_scores_at_their_anchors(tmp_path) -> None:
    """With fewer landmarks than the width nothing is left out but the ridge."""
    landmarks, images = unit(40, 8).numpy(), unit(60, 9, 8)
    sketch = embeddings.fit_sketch(landmarks, embeddings.score_at(landmarks, images, SIMILARITY))
    exact = image_sentence_scores(images, torch.from_numpy(landmarks), SIMILARITY).numpy()
    near = sketch.of_vectors(landmarks) @ sketch.of_images(images, SIMILARITY).T
    np.testing.assert_allclose(near, exact, atol=0.02)
    sketch.write(tmp_path / embeddings.SKETCH)
    again = embeddings.Sketch.read(tmp_path / embeddings.SKETCH, 8)
    for name in ("landmarks", "basis", "lift"):
        np.testing.assert_array_equal(getattr(again, name), getattr(sketch, name))
    assert sketch.of_vectors(np.empty((0, 8), dtype=np.float32)).shape == (0, 40)


def test_the_best_of_a_sketch_hold_more_of_the_best_than_mean_regions_do() -> None:
    """Small findings: of 225 regions, one answers; the mean of all hardly tells."""
    topics = unit(30, 8)
    images = unit(400, 25, 8)
    images[:, 7] = topics[torch.arange(400) % 30]
    asked = functional.normalize(topics + 0.1 * unit(30, 8), dim=-1)
    landmarks = functional.normalize(topics.repeat(4, 1) + 0.1 * unit(120, 8), dim=-1)
    anchors = landmarks.numpy()
    sketch = embeddings.fit_sketch(anchors, embeddings.score_at(anchors, images[:200], SIMILARITY))
    exact = image_sentence_scores(images, asked, SIMILARITY).numpy()

    def recall(near: np.ndarray) -> float:
        best, kept = np.argsort(-exact, axis=1)[:, :10], np.argsort(-near, axis=1)[:, :40]
        return np.mean([np.isin(*pair).mean() for pair in zip(best, kept, strict=True)])

    by_sketch = recall(sketch.of_vectors(asked.numpy()) @ sketch.of_images(images, SIMILARITY).T)
    by_mean = recall(asked.numpy() @ functional.normalize(images.mean(1), dim=-1).numpy().T)
    assert by_sketch > 0.9
    assert by_sketch > by_mean + 0.1


SETTINGS = IndexConfig(shard_rows=20)
IMAGES, TEXTS = small.N_IMAGES, 27


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
    manifest, sentences = small.manifest_table(), small.sentence_table()
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
    pictures = embeddings.map_pictures(tmp_path / shard_name("pictures", 0, "arrow"))
    assert len(pictures) == 20
    assert Image.open(io.BytesIO(pictures[0].as_py())).size == (128, 256)


class Counting(HashedEncoder):
    """It is stopped once it has embedded `most` images."""

    seen, most = 0, 20

    def embed_images(self, images):
        if self.seen >= self.most:
            raise KeyboardInterrupt
        self.seen += len(images)
        return super().embed_images(images)


def test_a_shard_that_is_there_is_not_embedded_again(tmp_path: Path) -> None:
    encoder = Counting()
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
    np.testing.assert_allclose(embeddings.pool(regions), [[0.5**0.5, 0.5**0.5]], rtol=1e-6)
    for bad in ([[1, 0], [-1, 0]], [[np.nan, 0], [1, 0]]):
        with pytest.raises(CheckpointError, match="without direction"):
            embeddings.pool(np.asarray(bad, dtype=np.float32)[None, None])


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
