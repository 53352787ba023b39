"""POST /classify, /ground, /embed and /retrieve: answers as the library gives them."""

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from api.errors import ApiError
from api.questions import check_size
from api.settings import MAX_IMAGES
from medclip_dcl.client import Client
from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.errors import ServiceError
from medclip_dcl.data.images import open_image
from medclip_dcl.data.limits import REASONS
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.retrieval import RetrievalConfig
from medclip_dcl.retrieval.embeddings import ARTIFACT, Layout
from medclip_dcl.retrieval.milvus import fill_collections
from medclip_dcl.schemas import ClassifyAnswer, EmbedAnswer, RefusedImage
from medclip_dcl.text.labeler.lexicon import LABELS
from tests.support.dicom import dicom_bytes, ramp
from tests.support.milvus import milvus_server
from tests.support.published import PROMPTS, SENTENCES
from tests.support.service import FINDINGS, N_IMAGES, Service, png, running

IMAGES = [png(seed=seed) for seed in range(3)]
BAD, BEYOND = b"PHISENTINEL", dicom_bytes(ramp(96, 64))
UNKNOWN = {"code": "unknown_format", "message": REASONS["unknown_format"]}


@pytest.fixture(scope="module")
def http(doubtful: Service) -> Iterator[httpx.Client]:
    with doubtful.client() as client:
        yield client


@pytest.fixture(scope="module")
def doubtful_model(doubtful_folder: Path) -> Predictor:
    return load(doubtful_folder, "cpu")


@pytest.fixture(scope="module")
def predictor(published: Path) -> Predictor:
    return load(published / "model", "cpu")


def files(*images: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("image", ("a", data)) for data in images]


def near(text: str) -> Any:
    """A tree of JSON whose real numbers equal others up to rounding."""
    return json.loads(text, parse_float=lambda number: pytest.approx(float(number), abs=2e-5))


GROUND = {"phrase": ["left effusion", "heart"], "threshold": "0.1"}


@pytest.mark.parametrize(("route", "asked"), [("/v1/classify", {}), ("/ground", GROUND)])
def test_several_images_are_answered_in_order_and_a_bad_one_in_its_place(http, route, asked):
    alone = [http.post(route, files=files(data), data=asked).text for data in IMAGES]
    assert len(set(alone)) == 3
    answer = http.post(route, files=files(*IMAGES[:2], BAD, IMAGES[2]), data=asked)
    assert answer.status_code == 200
    for word in ("PHISENTINEL", "out_of_range"):
        assert word not in answer.text
    *first, refused, last = answer.json()["answers"]
    assert refused == UNKNOWN
    assert [*first, last] == [near(text) for text in alone]
    single = http.post(route, files=files(BAD), data=asked)
    assert (single.status_code, single.json()["code"]) == (415, "unknown_format")
    more = http.post(route, files=files(*[BAD] * (MAX_IMAGES + 1)), data=asked)
    assert (more.status_code, more.json()["code"]) == (400, "malformed_body")
    beyond = http.post(route, files=files(BEYOND), data=asked).json()
    assert "out_of_range" in beyond["image"]["flags"]


CODE = {"value": "448169003", "scheme": "SCT", "meaning": "Cat"}
CAT = {"name": "cat", "code": CODE, "positive": ["A cat.", "Cats."], "negative": "No cat."}


@pytest.mark.parametrize("image", [IMAGES[0], BEYOND], ids=["inside", "beyond"])
@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("findings", [None, ["Pneumonia", "mass"], [["A mass", "Clear"]], [CAT]])
def test_the_service_answers_as_python(doubtful, doubtful_model, image, findings, explain):
    answer = doubtful_model.classify(image, findings, explain=explain)
    with Client(doubtful.url) as client:
        served = client.classify(image, findings, explain=explain)
    assert json.loads(served.model_dump_json()) == near(answer.model_dump_json())
    assert (served.findings[0].heatmap is None) is (served.findings[0].where is None) is not explain


def test_findings_are_asked_for_in_json(client: httpx.Client) -> None:
    form = {"findings": f"\ufeff{json.dumps([CAT])}"}
    (finding,) = client.post("/classify", files=files(png()), data=form).json()["findings"]
    assert (finding["name"], finding["code"], finding["where"]) == ("cat", CODE, None)


def test_heads_answer_next_to_the_prompts_and_what_is_refused_decides_nothing(http):
    answer = http.post("/classify", files=files(IMAGES[0])).json()
    effusion, pneumonia = answer["findings"]
    assert (effusion["decision"], effusion["probability_note"]) == (None, "no decision")
    assert pneumonia["decision"] in (True, False)
    calibrated, refused = answer["heads"]
    chance = pytest.approx(1 / (1 + np.exp(-0.5)))  # of a margin of 0.5
    assert calibrated == {
        "name": "tuberculosis", "kind": "linear", "score": chance, "threshold": 0.5,
        "decision": True, "probability": chance, "probability_note": "",
    }  # fmt: skip
    assert (refused["decision"], refused["probability_note"]) == (None, "upside down")


def test_the_client_asks_about_several_images(doubtful: Service) -> None:
    with Client(doubtful.url) as client:
        for images in ([IMAGES[0], BAD, IMAGES[1]], [IMAGES[0]], [BAD]):
            answers = client.classify_all(images)
            kinds = [RefusedImage if image is BAD else ClassifyAnswer for image in images]
            assert [type(item) for item in answers] == kinds
    assert answers[0].code == "unknown_format"


def test_metrics_count_images_and_scores_without_the_caller_s_words(http: httpx.Client) -> None:
    def samples() -> dict[str, float]:
        lines = http.get("/metrics").text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if line.startswith("medclip_"))
        return {name: float(value) for name, _, value in pairs}

    model = http.get("/model").json()["digest"][:8]
    before = samples()
    http.post("/classify", files=files(IMAGES[0], BAD, BEYOND))
    word = '[{"name": "PHIWORD", "positive": "a", "negative": "b"}]'
    http.post("/classify", files=files(IMAGES[0]), data={"findings": word})
    after = samples()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    for outcome, count in (("answered", 2), ("out_of_range", 1), ("unknown_format", 1)):
        assert grown[f'medclip_images_total{{model="{model}",outcome="{outcome}"}}'] == count
    counts = {name: grown[name] for name in after if name.startswith("medclip_scores_count")}
    named = [("prompts", str(item["name"])) for item in PROMPTS]
    named += [("head", "tuberculosis"), ("head", "tube")]
    assert counts == {
        f'medclip_scores_count{{finding="{finding}",model="{model}",source="{source}"}}': (
            1 if source == "prompts" else 2
        )
        for source, finding in named
    }
    assert grown['medclip_requests_total{route="/classify",status="200"}'] == 2
    assert grown['medclip_stage_seconds_count{stage="model"}'] > 0
    assert (after["medclip_inside"], after["medclip_ready"]) == (0, 1)
    assert "PHIWORD" not in http.get("/metrics").text


def test_vectors_are_directions_of_mean_regions_and_those_of_sentences(client, predictor):
    answer = client.post("/v1/embed", files=files(*IMAGES, BEYOND)).json()
    expected = predictor.encode([*IMAGES, BEYOND])
    assert np.asarray(answer["vectors"], np.float32) == pytest.approx(expected, abs=1e-6)
    assert answer["shape"] == [4, answer["dim"]] == list(expected.shape)
    assert [item["source"] for item in answer["images"]] == ["png", "png", "png", "dicom"]
    facts = {name: answer[name] for name in ("model", "engine", "precision", "what", "dtype")}
    assert facts == {
        "model": predictor.digest, "engine": "torch", "precision": "float32", "what": "global",
        "dtype": "float32",
    }  # fmt: skip
    assert answer["base64"] is None
    answer = client.post("/embed", data={"text": list(SENTENCES)}, files={"": (None, b"")}).json()
    expected = predictor.embed_sentences(SENTENCES).numpy()
    assert np.asarray(answer["vectors"], np.float32) == pytest.approx(expected, abs=1e-6)
    assert answer["images"] == []


def test_regions_come_row_by_row_and_their_bytes_are_little_endian(client, predictor):
    fields = {"what": "regions", "format": "base64"}
    answer = client.post("/embed", files=files(*IMAGES, BEYOND), data=fields).json()
    sent = np.frombuffer(base64.b64decode(answer["base64"]), "<f4").reshape(answer["shape"])
    squares = [predictor.square(open_image(data)) for data in (*IMAGES, BEYOND)]
    assert sent == pytest.approx(predictor.embed_images(np.stack(squares)).numpy(), abs=1e-6)
    fields["format"] = "json"
    same = client.post("/embed", files=files(*IMAGES, BEYOND), data=fields).json()["vectors"]
    assert np.asarray(same) == pytest.approx(sent, abs=1e-6)


def test_of_several_images_one_that_is_refused_has_no_vector(client: httpx.Client) -> None:
    several = files(IMAGES[0], BAD, IMAGES[1])
    answer = client.post("/embed", files=several)
    assert (answer.status_code, "PHISENTINEL" in answer.text) == (200, False)
    tree = answer.json()
    assert tree["images"][1] == UNKNOWN
    first, refused, last = tree["vectors"]
    alone = near(client.post("/embed", files=files(*IMAGES[:2])).text)["vectors"]
    assert ([first, last], refused) == (alone, None)
    packed = client.post("/embed", files=several, data={"format": "base64"}).json()
    for given in (tree, packed):
        vectors = EmbedAnswer(**given).to_numpy()
        assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False]
    nothing = client.post("/embed", files=files(BAD, b"y"), data={"what": "regions"}).json()
    assert (nothing["shape"][:3], nothing["vectors"]) == ([2, 0, 0], [None, None])
    single = client.post("/embed", files=files(BAD))
    assert (single.status_code, single.json()["code"]) == (415, "unknown_format")


def test_the_client_gives_arrays_and_names_what_is_out_of_range(doubtful: Service) -> None:
    vectors = {}
    with Client(doubtful.url) as client:
        for encoding in ("json", "base64"):
            answer = client.embed([IMAGES[0], BEYOND], encoding=encoding)
            assert [item.is_out_of_range for item in answer.images] == [False, True]
            vectors[encoding] = answer.to_numpy()
            assert (vectors[encoding].dtype, vectors[encoding].shape) == (np.float32, (2, 16))
        assert vectors["json"] == pytest.approx(vectors["base64"], abs=1e-5)
        assert client.embed(texts=["a b", "c"]).to_numpy().shape == (2, 16)
        with pytest.raises(ServiceError, match="unknown_format"):
            client.embed([BAD])


def test_an_answer_larger_than_a_body_may_be_is_refused() -> None:
    vectors = np.zeros((3, 100), np.float32)  # 1,200 bytes, 1,600 in base64, 7,200 in JSON
    for encoding, most in (("base64", 1600), ("json", 7200)):
        check_size(vectors, encoding, most)
        with pytest.raises(ApiError, match="invalid_request"):
            check_size(vectors, encoding, most - 1)


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_openai_s_form_has_the_vectors_of_sentences_and_of_images_in_their_order(
    client: httpx.Client, predictor: Predictor
) -> None:
    asked = [SENTENCES[0], data_url(IMAGES[0]), SENTENCES[1], data_url(BEYOND)]
    tree = {"input": asked, "model": "any", "encoding_format": "base64"}
    answer = client.post("/v1/embeddings", json=tree).json()
    assert (answer["object"], answer["model"]) == ("list", predictor.digest)
    assert [item["index"] for item in answer["data"]] == [0, 1, 2, 3]
    texts, pictures = predictor.encode_text(SENTENCES[:2]), predictor.encode([IMAGES[0], BEYOND])
    expected = [texts[0], pictures[0], texts[1], pictures[1]]
    for item, vector in zip(answer["data"], expected, strict=True):
        read = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
        assert read == pytest.approx(vector, abs=1e-6)
    assert ["flags" in item for item in answer["data"]] == [False, True, False, True]
    assert "inverted" not in answer["data"][1]["flags"]
    sent = f'\ufeff{{"input": "{SENTENCES[0]}", "encoding_format": null}}'
    one = client.post("/v1/embeddings", content=sent).json()["data"]
    assert one[0]["embedding"] == pytest.approx(texts[0].tolist(), abs=1e-6)
    lines = data_url(IMAGES[0]).replace("A", "A\r\n").rstrip("=")
    assert client.post("/v1/embeddings", json={"input": lines}).status_code == 200
    large = data_url(IMAGES[0] + bytes(1_500_000))  # more than a form without files may have
    assert client.post("/v1/embeddings", json={"input": [large]}).status_code == 200
    for others in ([], [data_url(IMAGES[0])]):  # an image that cannot be read refuses all
        answer = client.post("/v1/embeddings", json={"input": [data_url(BAD), *others]})
        assert answer.json()["code"] == "unknown_format"


QUESTION = {"target": "image", "text": "No pleural effusion.", "k": "99"}


def hits(client: httpx.Client, *images: bytes, **fields: object) -> list[dict[str, Any]]:
    parts = files(*images) or {"unused": b""}
    answer = client.post("/retrieve", data=QUESTION | fields, files=parts)
    assert answer.status_code == 200, answer.text
    return answer.json()["hits"]


@pytest.mark.parametrize("target", ["image", "text"])
@pytest.mark.parametrize(
    ("images", "asked"),
    [([], {}), ([png()], {"text": ""}), ([png()], {"text": "", "box": "[4, 8, 30.5, 40]"})],
    ids=["text", "image", "box"],
)
def test_every_kind_of_question_finds_ranked_hits(client, images, asked, target):
    ranked = hits(client, *images, **asked, target=target, k="3", view="", split="")
    assert len(ranked) == 3
    assert [hit["score"] for hit in ranked] == sorted(
        (hit["score"] for hit in ranked), reverse=True
    )
    assert all((hit["thumbnail"] is None) == (target == "text") for hit in ranked)


def test_images_are_filtered_by_their_studies_and_by_what_their_reports_assert(client):
    assert len(hits(client)) == N_IMAGES
    chosen = hits(client, split=["test", "train"], view="AP", exclude_patient="patient-000")
    assert {hit["view"] for hit in chosen} == {"AP"}
    assert {hit["split"] for hit in chosen} == {"test", "train"}
    assert "patient-000" not in {hit["subject_id"] for hit in chosen}
    asserted = hits(client, finding=FINDINGS[0])
    assert len(asserted) == N_IMAGES // 2
    assert {name for hit in asserted for name in hit["findings"]} == {FINDINGS[0]}
    assert len(hits(client, finding=list(FINDINGS))) == N_IMAGES
    assert len(hits(client, finding=FINDINGS[1])) == N_IMAGES // 2  # not one of CheXpert's
    assert client.get("/model").json()["index"]["findings"] == [*LABELS, FINDINGS[1]]
    assert hits(client, finding="Fracture") == []


def test_an_engine_gives_the_same_hits_and_its_loss_is_named(
    published, client, tmp_path, monkeypatch
):
    monkeypatch.setattr("medclip_dcl.retrieval.milvus.TIMEOUT_S", 1)
    index = open_artifact(published / "index", ARTIFACT)
    vectors = Layout.of(index.file, index.fingerprint, index.summary).searched()
    with ExitStack() as engine:
        uri = engine.enter_context(milvus_server(tmp_path))
        fill_collections(RetrievalConfig(uri=uri), index.fingerprint, vectors)
        with running(published, retrieval={"uri": uri}) as service, service.client() as asking:
            for filters in ({}, {"split": "test"}):
                assert hits(asking, **filters) == hits(client, **filters)
            engine.close()
            answer = asking.post("/retrieve", data=QUESTION, files={"unused": b""})
            assert (answer.status_code, answer.json()["code"]) == (503, "engine_unavailable")
            assert answer.headers["Retry-After"] == "5"
            assert uri not in answer.text
