"""POST /embed: vectors as the library gives them, many in one request, whatever they travel as."""

import base64
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from api.errors import ApiError
from api.questions import check_size
from medclip_dcl.client import Client
from medclip_dcl.core.errors import ImageError, ServiceError
from medclip_dcl.data.images import open_image
from medclip_dcl.data.limits import REASONS
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.schemas import EmbedAnswer
from tests.support.dicom import dicom_bytes, ramp
from tests.support.published import SENTENCES
from tests.support.service import png

IMAGES = [png(seed=seed) for seed in range(3)] + [dicom_bytes(ramp(96, 64))]


@pytest.fixture(scope="module")
def predictor(folder: Path) -> Predictor:
    return load(folder / "model", "cpu")


@pytest.fixture(scope="module")
def regions(predictor: Predictor) -> torch.Tensor:
    squares = [predictor.square(open_image(data)) for data in IMAGES]
    return predictor.embed_images(np.stack(squares))


def files(images: list[bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("image", ("a", data)) for data in images]


def test_an_image_s_vector_is_the_direction_of_its_mean_region(client, predictor, regions):
    answer = client.post("/v1/embed", files=files(IMAGES)).json()
    mean = regions.numpy().mean(axis=(1, 2))
    expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    assert np.asarray(answer["vectors"], np.float32) == pytest.approx(expected, abs=1e-6)
    assert answer["shape"] == [4, answer["dim"]] == list(expected.shape)
    assert [item["source"] for item in answer["images"]] == ["png", "png", "png", "dicom"]
    facts = {name: answer[name] for name in ("model", "engine", "precision", "what", "dtype")}
    assert facts == {
        "model": predictor.digest, "engine": "torch", "precision": "float32", "what": "global",
        "dtype": "float32",
    }  # fmt: skip
    assert answer["base64"] is None


def test_regions_come_row_by_row_and_their_bytes_are_little_endian(client, regions):
    fields = {"what": "regions", "format": "base64"}
    answer = client.post("/embed", files=files(IMAGES), data=fields).json()
    sent = np.frombuffer(base64.b64decode(answer["base64"]), "<f4").reshape(answer["shape"])
    assert sent == pytest.approx(regions.numpy(), abs=1e-6)
    fields["format"] = "json"
    same = client.post("/embed", files=files(IMAGES), data=fields).json()["vectors"]
    assert np.asarray(same) == pytest.approx(sent, abs=1e-6)


def test_sentences_are_those_of_the_library(client: httpx.Client, predictor: Predictor) -> None:
    answer = client.post("/embed", data={"text": list(SENTENCES)}, files={"": (None, b"")}).json()
    expected = predictor.embed_sentences(SENTENCES).numpy()
    assert np.asarray(answer["vectors"], np.float32) == pytest.approx(expected, abs=1e-6)
    assert answer["images"] == []
    assert np.linalg.norm(expected, axis=1) == pytest.approx(1, abs=1e-5)


def test_a_refused_image_of_several_is_refused_in_its_place(client: httpx.Client) -> None:
    data = [png(), b"PHISENTINEL", png(seed=1)]
    answer = client.post("/embed", files=files(data))
    assert (answer.status_code, "PHISENTINEL" in answer.text) == (200, False)
    tree = answer.json()
    assert tree["images"][1] == {"code": "unknown_format", "message": REASONS["unknown_format"]}
    alone = client.post("/embed", files=files([data[0], data[2]])).json()["vectors"]
    assert tree["vectors"][1] is None
    assert np.asarray([tree["vectors"][0], tree["vectors"][2]]) == pytest.approx(
        np.asarray(alone), abs=1e-5
    )
    packed = client.post("/embed", files=files(data), data={"format": "base64"}).json()
    for found in (EmbedAnswer(**tree).to_numpy(), EmbedAnswer(**packed).to_numpy()):
        assert np.isnan(found).all(axis=1).tolist() == [False, True, False]
    nothing = client.post("/embed", files=files([b"x", b"y"]), data={"what": "regions"}).json()
    assert (nothing["shape"][:3], nothing["vectors"]) == ([2, 0, 0], [None, None])
    single = client.post("/embed", files=files([b"x"]))
    assert (single.status_code, single.json()["code"]) == (415, "unknown_format")


@pytest.mark.parametrize(
    ("images", "fields", "rule"),
    [
        (0, {}, "text, image: One of the two"),
        (1, {"text": "a"}, "text, image: One of the two"),
        (0, {"text": "a", "what": "regions"}, "what: Of a sentence, global alone"),
        (0, {"text": ["a"] * 33}, "text: At most 32 times"),
        (0, {"text": "w" * 1001}, "text: Text of 1 to 1000 characters"),
        (1, {"what": "box"}, "what: Input should be 'global' or 'regions'"),
        (1, {"format": "npy"}, "format: Input should be 'json' or 'base64'"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_its_rule(client, images, fields, rule):
    parts = files([png()] * images) or {"": (None, b"")}
    answer = client.post("/embed", data=fields, files=parts)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert rule in answer.json()["message"]


def test_the_client_gives_arrays_and_names_what_is_out_of_range(doubtful, tmp_path):
    with Client(doubtful.url) as client:
        answer = client.embed([IMAGES[0], dicom_bytes(ramp(96, 64))])
        assert [item.is_out_of_range for item in answer.images] == [False, True]
        vectors = answer.to_numpy()
        assert (vectors.dtype, vectors.shape) == (np.float32, (2, answer.dim))
        plain = client.embed([IMAGES[0]], encoding="json").to_numpy()
        assert (plain.dtype, plain.shape) == (np.float32, (1, answer.dim))
        assert vectors[0] == pytest.approx(plain[0], abs=1e-5)
        assert client.embed(texts=["a b", "c"]).to_numpy().shape == (2, answer.dim)
        with pytest.raises(ServiceError, match="unknown_format"):
            client.embed([b"x"])
        with pytest.raises(ImageError):
            client.embed([tmp_path / "none.png"])


def test_an_answer_larger_than_a_body_may_be_is_refused() -> None:
    vectors = np.zeros((3, 100), np.float32)  # 1,200 bytes, 1,600 in base64, 7,200 in JSON
    for encoding, most in (("base64", 1600), ("json", 7200)):
        check_size(vectors, encoding, most)
        with pytest.raises(ApiError, match="invalid_request"):
            check_size(vectors, encoding, most - 1)


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_openai_s_form_has_the_vectors_of_sentences_and_of_images_in_their_order(
    client: httpx.Client, predictor: Predictor, regions: torch.Tensor
) -> None:
    asked = [SENTENCES[0], data_url(IMAGES[0]), SENTENCES[1], data_url(IMAGES[3])]
    tree = {"input": asked, "model": "any", "encoding_format": "base64"}
    answer = client.post("/v1/embeddings", json=tree).json()
    assert (answer["object"], answer["model"]) == ("list", predictor.digest)
    assert [item["index"] for item in answer["data"]] == [0, 1, 2, 3]
    texts = predictor.embed_sentences(list(SENTENCES[:2])).numpy()
    means = regions.mean(dim=(1, 2))
    pictures = torch.nn.functional.normalize(means, dim=-1).numpy()
    expected = [texts[0], pictures[0], texts[1], pictures[3]]
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


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "input: A string or a list"),
        ({"input": []}, "input: 1 to 32"),
        ({"input": [[1, 2]]}, "input: A string or a list"),
        ({"input": ["https://host/image.png"]}, "nothing is fetched"),
        ({"input": ["data:image/png,abc"]}, "data:image/png;base64"),
        ({"input": ["data:image/png;base64,?"]}, "data:image/png;base64"),
        ({"input": ["x"], "dimensions": 3}, "dimensions: 16, or left out"),
        ({"input": ["x"], "encoding_format": "int8"}, "encoding_format: float or base64"),
        ({"input": [" "]}, "input: Text of 1 to"),
        ({"input": " s3://bucket/image.png"}, "nothing is fetched"),
        ({"input": "x", "dimensions": "all"}, "dimensions: A number"),
        ({"input": "x", "encodingFormat": "base64"}, "others not taken"),
    ],
)
def test_openai_s_form_is_refused_by_a_rule_that_repeats_nothing(client, tree, message):
    answer = client.post("/v1/embeddings", json=tree)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert message in answer.json()["message"]


def test_an_image_in_openai_s_form_that_cannot_be_read_refuses_the_request(client):
    for others in ([], [data_url(IMAGES[0])]):
        answer = client.post("/v1/embeddings", json={"input": [data_url(b"x"), *others]})
        assert answer.json()["code"] == "unknown_format"
