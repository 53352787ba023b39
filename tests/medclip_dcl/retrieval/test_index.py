import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.retrieval import IndexConfig
from medclip_dcl.retrieval.embeddings import map_array, map_pictures, pool, shard_name
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


def test_identical_sentences_are_one_row_with_its_count() -> None:
    chosen = selection()
    counts = {row["text"]: row["studies"] for row in chosen.texts}
    assert len(chosen.texts) == 24 + 3
    assert counts["Shared 0."] == 8
    assert counts["Opacity 5."] == 1
    assert [row["text_key"] for row in chosen.texts] == sorted(r["text_key"] for r in chosen.texts)


def test_a_sentence_said_twice_in_one_report_counts_once() -> None:
    sentences = sentence_table(24)
    twice = sentences.slice(0, 1)
    chosen = select_content(manifest_table(48), pa.concat_tables([sentences, twice]), {}, images())
    assert next(row["studies"] for row in chosen.texts if row["text"] == "Opacity 0.") == 1


def test_an_image_without_pixels_is_left_out_and_counted() -> None:
    prepared = NumberedImages([f"image-{number:03d}" for number in range(40)])
    chosen = select_content(manifest_table(48), sentence_table(24), {}, prepared)
    assert (len(chosen.images), chosen.without_pixels) == (40, 8)


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


def test_no_image_left_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no image of the manifest is prepared"):
        select_content(manifest_table(48), sentence_table(24), {}, NumberedImages([]))


def test_shards_hold_every_image_in_order(tmp_path: Path) -> None:
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


def test_thumbnails_have_the_proportions_of_the_image(tmp_path: Path) -> None:
    write_index(tmp_path, selection(), images(), HashedEncoder(), SETTINGS, SIMILARITY)
    pictures = map_pictures(tmp_path / shard_name("pictures", 0, "arrow"))
    assert len(pictures) == 20
    assert Image.open(io.BytesIO(pictures[0].as_py())).size == (128, 256)


def test_pooled_vector_is_the_direction_of_the_mean() -> None:
    regions = np.zeros((1, 1, 2, 2), dtype=np.float32)
    regions[0, 0] = [[1, 0], [0, 1]]
    np.testing.assert_allclose(pool(regions), [[0.5**0.5, 0.5**0.5]], rtol=1e-6)


@pytest.mark.parametrize("bad", [[[1, 0], [-1, 0]], [[np.nan, 0], [1, 0]]])
def test_vectors_without_direction_are_refused(bad: list[list[float]]) -> None:
    with pytest.raises(CheckpointError, match="without direction"):
        pool(np.asarray(bad, dtype=np.float32)[None, None])
