from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from medclip_dcl.core.errors import ArtifactStale, QueryError
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval import IndexConfig
from medclip_dcl.retrieval.embeddings import InMemoryIndex, Shards
from medclip_dcl.retrieval.search import Filters, Query, RetrievalIndex
from medclip_dcl.schemas import HitAnswer
from tests.support.embeddings import DIM, GRID, MODEL_DIGEST, SIMILARITY, HashedEncoder, build
from tests.support.embeddings import N_IMAGES as IMAGES


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> RetrievalIndex:
    path = tmp_path_factory.mktemp("store") / "index"
    build(path, IndexConfig(shard_rows=20, candidates=IMAGES))
    return RetrievalIndex.open(path, MODEL_DIGEST)


def sentence(text: str) -> torch.Tensor:
    return HashedEncoder().embed_sentences([text])[0]


@pytest.mark.parametrize("text", ["Cardiomegaly.", "No effusion.", "Opacity 3."])
def test_with_all_candidates_images_are_ranked_as_by_exhaustive_search(index, text):
    vector = sentence(text)
    regions = torch.from_numpy(index.vectors["regions"].whole().astype(np.float32))
    exact = image_sentence_scores(regions.flatten(1, 2), vector[None], SIMILARITY)[0]
    order = torch.argsort(exact, descending=True, stable=True)[:10].tolist()
    hits = index.search(Query("image", 10, vector=vector))
    assert [hit.id for hit in hits] == [f"image-{row:03d}" for row in order]
    np.testing.assert_allclose([hit.score for hit in hits], exact[order], atol=1e-6)


def test_sentences_of_an_image_are_ranked_by_the_same_score(index: RetrievalIndex) -> None:
    regions = HashedEncoder().embed_images(np.full((1, 16, 16), 7, dtype=np.uint8))[0]
    sentences = torch.from_numpy(index.vectors["texts"].whole())
    exact = image_sentence_scores(regions.reshape(1, GRID * GRID, DIM), sentences, SIMILARITY)
    best = torch.argsort(exact[:, 0], descending=True, stable=True)[:5].tolist()
    hits = index.search(Query("text", 5, regions=regions))
    keys = index.studies.texts.column("text_key").to_pylist()
    assert [hit.id for hit in hits] == [keys[row] for row in best]


def test_an_image_finds_itself_first_and_a_text_its_twin_and_thumbnails_go_by_id(index):
    regions = torch.from_numpy(index.vectors["regions"].gather(np.array([21]))[0]).float()
    (image,) = index.search(Query("image", 1, regions=regions))
    assert (image.id, image.texts) == ("image-021", ["Opacity 10.", "Shared 1."])
    assert image.score == pytest.approx(1, abs=1e-3)
    (text,) = index.search(Query("text", 1, vector=sentence("Shared 1.")))
    assert (text.texts, text.studies) == (["Shared 1."], 8)
    assert text.score == pytest.approx(1, abs=1e-6)
    picture = index.picture("image-047")
    assert picture.startswith(b"\xff\xd8")
    assert index.picture("../artifact.json") is None


def test_filters_hold_for_images_and_for_what_their_studies_say_and_exclude_a_patient(index):
    def hits(target: str, **filters: Any) -> list[HitAnswer]:
        return index.search(Query(target, 99, vector=sentence("x"), filters=Filters(**filters)))

    asked = {"splits": frozenset({"test"}), "views": frozenset({"AP"})}
    images = hits("image", **asked)
    assert len(images) == IMAGES // 3 // 2
    assert {(hit.split, hit.view) for hit in images} == {("test", "AP")}
    said = {text for hit in images for text in hit.texts}
    assert {hit.texts[0] for hit in hits("text", **asked)} == said
    others = hits("image", exclude_patient="patient-002")
    assert len(others) == IMAGES - 4
    assert "patient-002" not in {hit.subject_id for hit in others}


def test_equal_scores_are_ordered_by_id(index: RetrievalIndex) -> None:
    level = np.zeros((IMAGES, DIM), dtype=np.float32)
    level[:, 0] = 1
    shards, regions = Shards([level], IMAGES), torch.zeros(GRID, GRID, DIM)
    regions[..., 0] = 1
    tied = replace(index, vectors={"pooled": shards}, near={"pooled": InMemoryIndex(shards)})
    hits = tied.search(Query("image", 5, regions=regions))
    assert [hit.id for hit in hits] == [f"image-{number:03d}" for number in range(5)]


def test_an_index_of_another_model_is_refused(index):
    with pytest.raises(ArtifactStale, match=f"{MODEL_DIGEST}, the model here is {'f' * 64}"):
        RetrievalIndex.open(index.artifact.path, "f" * 64)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (Query("image", 5), "exactly one"),
        (Query("image", 5, vector=torch.ones(8), regions=torch.ones(1, 1, 8)), "exactly one"),
        (Query("image", 5, vector=torch.ones(9)), "9 wide, the index 8"),
        (Query("image", 0, vector=torch.ones(8)), "k = 0"),
        (Query("text", 5, vector=torch.full((8,), float("inf"))), "not finite"),
    ],
)
def test_malformed_questions_are_refused(index: RetrievalIndex, query: Query, reason: str) -> None:
    with pytest.raises(QueryError, match=reason):
        index.search(query)
