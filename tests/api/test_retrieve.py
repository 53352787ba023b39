"""Filters, and candidates from an engine, over HTTP."""

from contextlib import ExitStack

import httpx

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.retrieval import RetrievalConfig
from medclip_dcl.retrieval.embeddings import ARTIFACT, Layout
from medclip_dcl.retrieval.milvus import fill_collections
from medclip_dcl.text.labeler.lexicon import LABELS
from tests.support.milvus import milvus_server
from tests.support.service import FINDINGS, N_IMAGES, running

QUESTION = {"target": "image", "text": "No pleural effusion.", "k": "99"}


def hits(client: httpx.Client, **fields: object) -> list[dict[str, object]]:
    answer = client.post("/retrieve", data=QUESTION | fields, files={"unused": b""})
    assert answer.status_code == 200, answer.text
    return answer.json()["hits"]


def test_images_are_filtered_by_what_their_reports_assert(client: httpx.Client) -> None:
    assert len(hits(client)) == N_IMAGES
    found = hits(client, finding=FINDINGS[0])
    assert len(found) == N_IMAGES // 2
    assert {name for hit in found for name in hit["findings"]} == {FINDINGS[0]}
    assert len(hits(client, finding=list(FINDINGS))) == N_IMAGES
    assert len(hits(client, finding=FINDINGS[1])) == N_IMAGES // 2  # not one of CheXpert's
    assert client.get("/model").json()["index"]["findings"] == [*LABELS, FINDINGS[1]]
    assert hits(client, finding="Fracture") == []


def test_a_finding_that_nobody_knows_is_refused(client: httpx.Client) -> None:
    answer = client.post("/retrieve", data=QUESTION | {"finding": "Gout"}, files={"unused": b""})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert "Gout" not in answer.text


def test_an_engine_gives_the_same_hits_and_its_loss_is_named(folder, client, tmp_path, monkeypatch):
    monkeypatch.setattr("medclip_dcl.retrieval.milvus.TIMEOUT_S", 1)
    index = open_artifact(folder / "index", ARTIFACT)
    vectors = Layout.of(index.file, index.fingerprint, index.summary).searched()
    with ExitStack() as engine:
        uri = engine.enter_context(milvus_server(tmp_path))
        fill_collections(RetrievalConfig(uri=uri), index.fingerprint, vectors)
        retrieval = {"uri": uri}
        with running(folder, retrieval=retrieval) as service, service.client() as batcher:
            assert hits(batcher) == hits(client)
            assert hits(batcher, split="test") == hits(client, split="test")
            engine.close()
            answer = batcher.post("/retrieve", data=QUESTION, files={"unused": b""})
            assert (answer.status_code, answer.json()["code"]) == (503, "engine_unavailable")
            assert answer.headers["Retry-After"] == "5"
            assert uri not in answer.text
