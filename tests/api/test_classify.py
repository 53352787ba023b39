"""POST /classify and /ground: several images in a request, heads, and what /metrics counts."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from api.settings import MAX_IMAGES
from medclip_dcl.client import Client
from medclip_dcl.data.limits import REASONS
from medclip_dcl.inference.predictor import load
from medclip_dcl.schemas import ClassifyAnswer, ModelAnswer, RefusedImage
from tests.support.dicom import dicom_bytes, ramp
from tests.support.published import PROMPTS
from tests.support.service import Service, png

IMAGES = [png(seed=seed) for seed in range(3)]
BAD, BEYOND = b"PHISENTINEL", dicom_bytes(ramp(96, 64))


@pytest.fixture(scope="module")
def http(doubtful: Service) -> Iterator[httpx.Client]:
    with doubtful.client() as client:
        yield client


def files(images: list[bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("image", ("a", data)) for data in images]


GROUND = {"phrase": ["left effusion", "heart"], "threshold": "0.1"}


def numbers_of(answer: dict[str, Any]) -> np.ndarray:
    """Margins of findings, or grids of phrases."""
    found = answer.get("findings") or answer["phrases"]
    return np.asarray([item.get("margin", item.get("grid")) for item in found])


@pytest.mark.parametrize(("route", "asked"), [("/v1/classify", {}), ("/ground", GROUND)])
def test_several_images_are_answered_in_order_and_a_bad_one_in_its_place(http, route, asked):
    alone = [http.post(route, files=files([data]), data=asked).json() for data in IMAGES]
    answer = http.post(route, files=files([*IMAGES[:2], BAD, IMAGES[2]]), data=asked)
    assert (answer.status_code, "PHISENTINEL" in answer.text) == (200, False)
    found = answer.json()["answers"]
    refusal = {"code": "unknown_format", "message": REASONS["unknown_format"]}
    assert found.pop(2) == refusal
    for one, same in zip(found, alone, strict=True):
        assert numbers_of(one) == pytest.approx(numbers_of(same), abs=2e-5)
        assert one["image"] == same["image"]
        assert "out_of_range" not in one["image"]["flags"]
    assert len({numbers_of(one).flat[0] for one in found}) == 3
    single = http.post(route, files=files([BAD]), data=asked)
    assert (single.status_code, single.json()["code"]) == (415, "unknown_format")
    more = http.post(route, files=files([BAD] * (MAX_IMAGES + 1)), data=asked)
    assert (more.status_code, more.json()["code"]) == (400, "malformed_body")
    beyond = http.post(route, files=files([BEYOND]), data=asked).json()
    assert "out_of_range" in beyond["image"]["flags"]


def test_heads_answer_next_to_the_prompts(http: httpx.Client) -> None:
    answer = http.post("/classify", files=files([IMAGES[0]])).json()
    effusion, pneumonia = answer["findings"]
    assert (effusion["decision"], effusion["probability_note"]) == (None, "no decision")
    assert pneumonia["decision"] in (True, False)
    calibrated, refused = answer["heads"]
    chance = 1 / (1 + np.exp(-0.5))  # of a margin of 0.5
    assert calibrated == {
        "name": "tuberculosis", "kind": "linear", "score": pytest.approx(chance),
        "threshold": 0.5, "decision": True, "probability": pytest.approx(chance),
        "probability_note": "",
    }  # fmt: skip
    assert (refused["decision"], refused["probability_note"]) == (None, "upside down")
    beyond = http.post("/classify", files=files([BEYOND])).json()
    assert beyond["image"]["flags"][-1] == "out_of_range"
    assert beyond["heads"][0]["probability"] is None
    assert "unlike those" in beyond["heads"][0]["probability_note"]
    facts = http.get("/model").json()
    about = {"name": "effusion", "reason": "no decision", "correlation": 0.99, "auc": 0.9}
    assert facts["refused"] == [about]
    assert ModelAnswer.model_validate(facts).refused[0].reason == "no decision"
    del facts["refused"]  # an earlier service's
    assert ModelAnswer.model_validate(facts).refused == []
    known = facts["heads"]
    assert [(item["name"], item["calibrated"]) for item in known] == [
        ("tuberculosis", True), ("tube", False)
    ]  # fmt: skip
    assert known[0]["figures"]["auc"]["value"] == 0.75
    unanswered = http.post("/retrieve", data={"target": "image", "text": "x"})
    assert (unanswered.status_code, unanswered.json()["code"]) == (503, "no_index")


@pytest.mark.parametrize("image", [IMAGES[0], BEYOND], ids=["inside", "beyond"])
@pytest.mark.parametrize("findings", [None, ["Pneumonia", "mass"], [["A mass", "Clear"]]])
def test_python_answers_as_the_service(doubtful, doubtful_folder, image, findings):
    answer = load(doubtful_folder, "cpu").classify(image, findings)
    with Client(doubtful.url) as client:
        served = client.classify(image, findings)
    rows, expected = answer.rows(), served.rows()
    for row, same in zip(rows, expected, strict=True):
        assert row.keys() == same.keys()
        for name, value in row.items():
            is_real = isinstance(value, float)
            assert value == (pytest.approx(same[name], abs=1e-5) if is_real else same[name])
    assert answer.image == served.image


def test_the_client_asks_about_several_images(doubtful: Service) -> None:
    with Client(doubtful.url) as client:
        answers = client.classify_all([IMAGES[0], BAD, IMAGES[1]])
        assert [type(item) for item in answers] == [ClassifyAnswer, RefusedImage, ClassifyAnswer]
        (one,) = client.classify_all([IMAGES[0]])
        assert isinstance(one, ClassifyAnswer)
        assert one.heads[0].name == "tuberculosis"
        (refused,) = client.classify_all([BAD])
        assert isinstance(refused, RefusedImage)
        assert refused.code == "unknown_format"


def test_metrics_count_images_and_scores_without_the_caller_s_words(http: httpx.Client) -> None:
    def samples() -> dict[str, float]:
        lines = http.get("/metrics").text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if line.startswith("medclip_"))
        return {name: float(value) for name, _, value in pairs}

    model = http.get("/model").json()["digest"][:8]
    before = samples()
    http.post("/classify", files=files([IMAGES[0], BAD, BEYOND]))
    word = '[{"name": "PHIWORD", "positive": "a", "negative": "b"}]'
    http.post("/classify", files=files([IMAGES[0]]), data={"findings": word})
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
    assert "PHIWORD" not in http.get("/metrics").text
