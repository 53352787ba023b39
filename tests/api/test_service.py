"""The service as a real process over real HTTP: its page, its facts, its headers and its log."""

import json
import re
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from medclip_dcl.data.images import open_image
from medclip_dcl.schemas import ModelAnswer
from tests.support import published
from tests.support.service import Service, png
from tests.support.wire import exchange

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
STATIC = Path(__file__).parents[2] / "api/static"


def test_thumbnail_is_served_and_others_are_not_found(client: httpx.Client) -> None:
    answer = client.get("/images/image-003")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    assert answer.content.startswith(b"\xff\xd8")
    for path in ("/images/image-99", "/images/..%2fartifact.json", "/static/..%2fapp.py"):
        assert client.get(path).status_code == 404


def test_pixels_are_those_that_were_decoded(client: httpx.Client) -> None:
    answer = client.post("/pixels", files={"image": ("a", png())})
    facts = json.loads(answer.headers["x-image"])
    pixels = np.frombuffer(answer.content, "<u2").reshape(facts["height"], facts["width"])
    np.testing.assert_array_equal(pixels, open_image(png()).pixels)


def test_the_page_and_its_files_need_nothing_from_elsewhere_and_leave_a_theme(client):
    for path, kind in (
        ("/", "text/html"),
        ("/static/viewer.js", "text/javascript"),
        ("/static/viewer.css", "text/css"),
    ):
        answer = client.get(path)
        assert answer.headers["content-type"].startswith(kind)
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "http://" not in answer.text
        assert "https://" not in answer.text
    page = client.get("/").text
    assert "not a medical device" in page
    assert "style=" not in page  # the policy would drop it
    assert "onclick" not in page
    for target in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert target.startswith(("static/", "data:,")), target
    script = "".join(file.read_text("utf-8") for file in sorted(STATIC.glob("*.js")))
    assert set(re.findall(r"localStorage\.\w+\(([^,)]+)", script)) == {'"theme"'}
    for word in ("sessionStorage", "document.cookie", "indexedDB", "innerHTML", "url("):
        assert word not in script
    assert "url(" not in (STATIC / "viewer.css").read_text("utf-8")


def test_logs_hold_no_contents(client: httpx.Client, service: Service) -> None:
    client.get("/model?patient=Doe")
    for name, data in (("JaneDoe.png", png()), ("../../etc/passwd", b"no image")):
        client.post("/ground", files={"image": (name, data)}, data={"phrase": "Zyzzyva"})
    client.post("/retrieve", data={"target": "image", "text": "Zyzzyva", "k": "Zyzzyva"})
    time.sleep(0.2)
    text = service.log.read_text()
    for secret in ("Doe", "Zyzzyva", "passwd", published.SENTENCES[0]):
        assert secret not in text
    lines = [line for line in service.lines() if line["event"] == "request"]
    assert {"request_id", "route", "status", "ms"} <= set(lines[-1])


def test_card_names_model_index_limits_heads_and_what_is_not_to_be_read(client, doubtful) -> None:
    card = client.get("/model").json()
    assert "not a medical device" in card["notice"]
    assert card["index"]["images"] == 12
    assert card["refused"] == []
    assert card["limits"]["max_body_mb"] == 4
    assert len(card["digest"]) == 64
    with doubtful.client() as asking:
        card = asking.get("/model").json()
        unanswered = asking.post("/retrieve", data={"target": "image", "text": "x"})
    assert (unanswered.status_code, unanswered.json()["code"]) == (503, "no_index")
    about = {"name": "effusion", "reason": "no decision", "correlation": 0.99, "auc": 0.9}
    assert card["refused"] == [about]
    del card["refused"]  # an earlier service's
    assert ModelAnswer.model_validate(card).refused == []
    heads = [(item["name"], item["calibrated"]) for item in card["heads"]]
    assert heads == [("tuberculosis", True), ("tube", False)]
    assert card["heads"][0]["figures"]["auc"]["value"] == 0.75


def test_every_answer_bears_its_headers(client: httpx.Client) -> None:
    for path in ("/model", "/nowhere", "/metrics"):
        answer = client.get(path, headers={"X-Request-ID": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers


def test_routes_and_methods_that_are_none_say_so(client: httpx.Client) -> None:
    assert client.get("/docs").status_code == 404
    assert client.get("/redoc").status_code == 404
    assert client.get("/classify").json()["code"] == "method_not_allowed"
    assert client.options("/classify").status_code == 405
    assert client.get("/model/").status_code == 404


@pytest.mark.parametrize(
    "path",
    ["/health", "/ready", "/", "/model", "/metrics", "/static/viewer.js", "/images/image-003"],
)
def test_head_is_answered_wherever_get_is(client: httpx.Client, path: str) -> None:
    got, asked = client.get(path), client.head(path)
    assert (asked.status_code, asked.content) == (200, b"")
    assert asked.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET HTTP://localhost/v1/ready?x=1 HTTP/1.1\r\nHost: localhost", 200, None),
        (b"GET /health HTTP/1.1", 400, "malformed_body"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost", 400, "malformed_body"),
    ],
)
def test_heads_of_other_clients_are_read_or_refused_as_json(service, head, status, code):
    answer = exchange(service.address, head + b"\r\nConnection: close\r\n\r\n")
    assert (answer.status, json.loads(answer.body).get("code")) == (status, code)
