"""Milvus finds what the exact scan finds; tests/api asks a server of it, and one that is gone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from medclip_dcl.core.errors import ConfigError, EngineError
from medclip_dcl.retrieval import IndexConfig, RetrievalConfig, milvus
from medclip_dcl.retrieval.embeddings import InMemoryIndex, Shards
from medclip_dcl.retrieval.milvus import Milvus, collection_of, fill_collections
from medclip_dcl.retrieval.search import Filters, Query, RetrievalIndex
from tests.support.embeddings import MODEL_DIGEST, N_IMAGES, HashedEncoder, build
from tests.support.milvus import milvus_file

FILTERS = (
    Filters(),
    Filters(splits=frozenset({"test"})),
    Filters(views=frozenset({"AP"}), exclude_patient="patient-001"),
    Filters(findings=frozenset({"Pneumonia"})),
    Filters(views=frozenset({"LATERAL"})),
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> RetrievalIndex:
    path = tmp_path_factory.mktemp("store") / "index"
    build(path, IndexConfig(shard_rows=20, candidates=12))
    return RetrievalIndex.open(path, MODEL_DIGEST)


@pytest.fixture(scope="module")
def retrieval(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RetrievalConfig]:
    with milvus_file(tmp_path_factory.mktemp("engine")) as uri:
        yield RetrievalConfig(uri=uri)


@pytest.fixture(scope="module")
def engine(index: RetrievalIndex, retrieval: RetrievalConfig) -> RetrievalIndex:
    with pytest.raises(EngineError, match="rerun build_index"):
        RetrievalIndex.open(index.artifact.path, MODEL_DIGEST, retrieval)
    fill_collections(retrieval, index.artifact.fingerprint, index.layout.searched())
    return RetrievalIndex.open(index.artifact.path, MODEL_DIGEST, retrieval)


@pytest.mark.parametrize("filters", FILTERS, ids=range(len(FILTERS)))
def test_the_engine_gives_the_hits_of_the_exact_scan(index, engine, filters):
    assert not isinstance(engine.near["pooled"], InMemoryIndex)
    for number in range(6):
        vector = HashedEncoder().embed_sentences([f"question {number}"])[0]
        image = np.full((1, 16, 16), number, dtype=np.uint8)
        regions = HashedEncoder().embed_images(image)[0]
        for target in ("image", "text"):
            for query in (
                Query(target, 5, vector=vector, filters=filters),
                Query(target, 5, regions=regions, filters=filters),
            ):
                assert engine.search(query) == index.search(query)
    if not filters.views:
        assert len(engine.search(query)) == 5


def test_the_engine_finds_the_rows_of_a_direct_scan_by_each_road(tmp_path, monkeypatch):
    """Few allowed rows are named, many are sifted, and hits that all are forbidden are passed."""
    monkeypatch.setattr(milvus, "MOST_HITS", 1000)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((3000, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    resident = InMemoryIndex(Shards([vectors], len(vectors)))
    with milvus_file(tmp_path) as uri, Milvus(RetrievalConfig(uri=uri)) as engine:
        engine.fill("rows", Shards([vectors[:2000], vectors[2000:]], 2000), lambda _: None)
        nearest = engine.nearest("rows", len(vectors))
        direction = vectors[7]
        half = rng.random(len(vectors)) < 0.5
        few = np.zeros(len(vectors), dtype=bool)
        few[::200] = True
        far = vectors @ direction < 0.2
        for allowed in (None, half, few, far, ~few):
            for count in (1, 100):
                found = nearest.rows(direction, allowed, count)
                assert found.tolist() == resident.rows(direction, allowed, count).tolist()
        assert len(nearest.rows(direction, None, 2900)) == 1000


def test_filling_goes_on_where_it_stopped_and_ends_with_every_row(index, retrieval):
    half = Shards([index.vectors["pooled"].whole()[:20]], 20)
    whole = Shards([index.vectors["pooled"].whole()], N_IMAGES)
    with Milvus(retrieval) as engine:
        engine.fill("begun", half, lambda _: None)
        with pytest.raises(EngineError, match="holds 20 of 48 rows"):
            engine.nearest("begun", N_IMAGES)
        engine.fill("begun", whole, lambda _: None)
        engine.fill("begun", whole, lambda _: None)
        direction = whole.arrays[0][47]
        assert 47 in engine.nearest("begun", N_IMAGES).rows(direction, None, 1)
        with pytest.raises(EngineError, match="holds 48 of 20 rows"):
            engine.fill("begun", half, lambda _: None)


def test_another_index_never_answers(index: RetrievalIndex) -> None:
    fingerprint = index.artifact.fingerprint
    other = {**fingerprint, "inputs": {**fingerprint["inputs"], "model": "n" * 64}}
    assert collection_of(fingerprint, "texts") != collection_of(other, "texts")


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("root:Milvus\n")
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 440"):
        Milvus(RetrievalConfig(uri="http://127.0.0.1:1", token_file=str(key)))
