"""The service as a real process over real HTTP."""

import json
import re
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from medclip_dcl.data.images import open_image
from tests.support import published
from tests.support.bombs import png_claim
from tests.support.service import Service, png
from tests.support.wire import BOUNDARY, Part, exchange, form

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

JPEG = b"\xff\xd8"
STATIC = Path(__file__).parents[2] / "api/static"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


def image(data: bytes | None = None) -> dict[str, tuple[str, bytes]]:
    return {"image": ("../../etc/passwd", png() if data is None else data)}


def test_findings_can_be_named_and_explained(client: httpx.Client) -> None:
    code = {"value": "448169003", "scheme": "SCT", "meaning": "Cat"}
    asked = [{"name": "cat", "code": code, "positive": ["A cat.", "Cats."], "negative": "No cat."}]
    form = {"findings": f"\ufeff{json.dumps(asked)}", "explain": "true"}
    (finding,) = client.post("/classify", files=image(), data=form).json()["findings"]
    assert finding["name"] == "cat"
    assert finding["code"] == code
    grid, where = np.asarray(finding["heatmap"]), finding["where"]
    assert grid.shape == (4, 4)
    row, column = np.unravel_index(grid.argmax(), grid.shape)
    a, _, c, _, e, f = where["affine"]
    assert where["peak"]["x"] == pytest.approx(a * column + c)
    assert where["peak"]["y"] == pytest.approx(e * row + f)
    assert where["peak"]["score"] == pytest.approx(grid.max(), abs=1e-5)
    assert where["threshold"] == pytest.approx((grid.mean() + grid.max()) / 2, abs=1e-5)
    assert where["box"]["x"] <= where["peak"]["x"] <= where["box"]["x"] + where["box"]["width"]
    (finding,) = client.post(
        "/classify", files=image(), data={"findings": form["findings"]}
    ).json()["findings"]
    assert (finding["heatmap"], finding["where"]) == (None, None)


@pytest.mark.parametrize("target", ["image", "text"])
@pytest.mark.parametrize("asked", ["text", "image", "box"])
def test_every_kind_of_question_finds_ranked_hits(client, asked, target):
    form = {"target": target, "k": "3", "view": "", "split": ""}
    files = image() if asked != "text" else {"unused": ("", b"")}
    form |= {"text": {"text": "Heart size is normal."}, "box": {"box": "[4, 8, 30.5, 40]"}}.get(
        asked, {}
    )
    answer = client.post("/retrieve", files=files, data=form)
    assert answer.status_code == 200, answer.text
    hits = answer.json()["hits"]
    assert len(hits) == 3
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert all((hit["thumbnail"] is None) == (target == "text") for hit in hits)


def test_filters_and_excluded_patients_hold(client: httpx.Client) -> None:
    form = {"target": "image", "text": "x", "k": "100", "split": ["test", "train"], "view": "AP"}
    hits = client.post("/retrieve", data={**form, "exclude_patient": "patient-000"}).json()["hits"]
    assert hits
    assert {hit["view"] for hit in hits} == {"AP"}
    assert {hit["split"] for hit in hits} == {"test", "train"}
    assert "patient-000" not in {hit["subject_id"] for hit in hits}


def test_thumbnail_is_served_and_others_are_not_found(client: httpx.Client) -> None:
    answer = client.get("/images/image-003")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    assert answer.content.startswith(JPEG)
    for path in ("/images/image-99", "/images/..%2fartifact.json", "/static/..%2fapp.py"):
        assert client.get(path).status_code == 404


def test_pixels_are_those_that_were_decoded(client: httpx.Client) -> None:
    answer = client.post("/pixels", files=image())
    facts = json.loads(answer.headers["x-image"])
    pixels = np.frombuffer(answer.content, "<u2").reshape(facts["height"], facts["width"])
    np.testing.assert_array_equal(pixels, open_image(png()).pixels)


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"", 422, "empty"),
        (b"This is a report, not an image.", 415, "unknown_format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", 415, "unknown_format"),
        (b"II*\x00" + bytes(100), 415, "unknown_format"),
        (png_claim(60_000, 60_000), 413, "too_many_pixels"),
        (png()[:60], 422, "corrupt"),
    ],
    ids=["empty", "text", "eps", "tiff", "bomb", "cut png"],
)
def test_what_is_no_image_is_refused_by_name(client, data, status, code):
    answer = client.post("/classify", files=image(data))
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert client.post("/classify", files=image()).status_code == 200


def test_a_dicom_image_is_read_and_a_cut_one_refused(client: httpx.Client, dicom: bytes) -> None:
    answer = client.post("/classify", files=image(dicom))
    assert answer.json()["image"]["source"] == "dicom"
    assert answer.json()["image"]["flags"] == ["inverted"]
    for end in (140, 300, len(dicom) - 1):
        answer = client.post("/classify", files=image(dicom[:end]))
        assert 400 <= answer.status_code < 500
    assert answer.json()["code"] == "truncated"
    assert set(answer.json()) == {"code", "message", "request_id"}
    assert client.get("/ready").status_code == 200


BOXES = (
    *("[0, 0, 10]", "[NaN, 0, 1, 1]", "[0, 0, 1e999, 1]", "[-1, 0, 10, 10]", "[0, 0, -5, 5]"),
    *("[0, 0, 65, 10]", "[60, 0, 10, 10]", "[true, 0, 10, 10]", '["1", 2, 3, 4]', '{"x": 1}'),
    *("[" * 20_000, f"[{'9' * 5000}, 0, 1, 1]", f"[1{'0' * 400}, 0, 1, 1]"),
)
FINDINGS = {
    "{": "(findings: A list in JSON)",
    "[" * 20_000: "(findings: A list in JSON)",
    "[]": "(findings must be a list with at least one entry)",
    '[{"name": "a"}]': "(finding 0 needs a positive prompt",
    '[{"name": "a", "positive": 1, "negative": "b"}]': "(finding 0 needs a positive prompt",
    '[{"name": "a", "positive": "b\\u0000", "negative": "b"}]': "(findings: Text of 1 to",
    '[{"name": "a", "positive": "\\ud800", "negative": "b"}]': "(finding",
}
ASKED = {"target": "image", "text": "x"}
FIELDS = [
    ("/classify", {"picture": "x"}, "image: Send the file as a part `image` with a file name"),
    ("/classify", {"image": "x"}, "image: Send the file as a part `image` with a file name"),
    ("/ground", {}, "phrase: Field required"),
    ("/retrieve", {"target": "images"}, "target: Input should be 'image' or 'text'"),
    ("/retrieve", {"target": "image"}, "text, image: One of the two"),
    ("/retrieve", ASKED | {"k": "x"}, "k: Input should be a valid"),
    ("/retrieve", ASKED | {"k": "0"}, "k: Input should be greater"),
    ("/retrieve", ASKED | {"k": "101"}, "k: Input should be less"),
    ("/retrieve", ASKED | {"k": "9" * 5000}, "k: Unable to parse"),
    ("/retrieve", ASKED | {"text": "w" * 1001}, "text: Text of 1 to 1000"),
    ("/retrieve", ASKED | {"text": "   "}, "text: Text of 1 to 1000"),
    ("/retrieve", ASKED | {"text": "nul\0"}, "text: Text of 1 to 1000"),
    ("/retrieve", ASKED | {"text": ["x", "y"]}, "text: Once"),
    ("/retrieve", ASKED | {"text": '["x", "y"]'}, "text: One sentence, no JSON"),
    ("/retrieve", ASKED | {"split": "tomorrow"}, "split: One of train"),
    ("/retrieve", ASKED | {"view": "pa"}, "view: One of AP, PA"),
    ("/retrieve", ASKED | {"box": "[0, 0, 1, 1]"}, "box: Together with an image alone"),
    ("/retrieve", ASKED | {"top_k": "3"}, "an unknown field; there"),
    ("/retrieve?k=3", ASKED, "the URL takes no parameters"),
]


@pytest.mark.parametrize(
    ("path", "files", "form", "rule"),
    [
        *((path, None, form, rule) for path, form, rule in FIELDS),
        *(("/retrieve", image(), {"target": "image", "box": box}, "(box: ") for box in BOXES),
        *(("/classify", image(), {"findings": text}, rule) for text, rule in FINDINGS.items()),
        ("/ground", image(), {"phrase": ["x"] * 17}, "(phrase: At most 16 times)"),
        ("/ground", image(), {"phrase": ["x"] * 200}, "(more than 64 fields)"),
        ("/ground", image(), {"phrase": "x" * 100_000}, "(a text field is larger than 64 KiB"),
        ("/classify", [("image", ("a", b"x"))] * 33, {}, "(more files than the route takes)"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_refused_request_learns_which_field_breaks_which_rule(client, path, files, form, rule):
    answer = client.post(path, data=form, files=files)
    assert answer.status_code in {400, 422}
    assert answer.json()["code"] in {"invalid_request", "invalid_query", "malformed_body"}
    assert rule in answer.json()["message"]
    assert "tomorrow" not in answer.text


def test_figures_count_answers_by_route(client: httpx.Client) -> None:
    client.post("/classify", files=image())
    text = client.get("/metrics").text
    assert 'medclip_requests_total{route="/classify",status="200"}' in text
    assert 'medclip_stage_seconds_count{stage="model"}' in text
    assert "medclip_inside 0.0" in text
    assert "medclip_ready 1.0" in text


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
    client.post("/ground", files={"image": ("JaneDoe.png", png())}, data={"phrase": "Zyzzyva"})
    client.post("/retrieve", data={"target": "image", "text": "Zyzzyva", "k": "Zyzzyva"})
    time.sleep(0.2)
    text = service.log.read_text()
    for secret in ("Doe", "Zyzzyva", "passwd", published.SENTENCES[0]):
        assert secret not in text
    lines = [line for line in service.lines() if line["event"] == "request"]
    assert {"request_id", "route", "status", "ms"} <= set(lines[-1])


def test_card_names_model_index_and_limits(client: httpx.Client, folder: Path) -> None:
    card = client.get("/model").json()
    assert "not a medical device" in card["notice"]
    assert card["index"]["images"] == 12
    assert card["refused"] == []
    assert card["limits"]["max_body_mb"] == 4
    assert len(card["digest"]) == 64


def test_every_answer_bears_its_headers(client: httpx.Client) -> None:
    for path in ("/model", "/nowhere", "/metrics"):
        answer = client.get(path, headers={"X-Request-ID": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "server" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
    answer = client.get("/health", headers={"X-Request-ID": "two words\t{}"})
    assert answer.headers["x-request-id"] != "two words\t{}"


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


IMAGE_PART = "a part `image` with a file name"


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


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("", None, IMAGE_PART),
        ("application/json", b'{"image": "aGk="}', "not multipart/form-data"),
        ("image/png", png(), "not multipart/form-data"),
        ("application/dicom", png(), "not multipart/form-data"),
        ("text/plain", b"aGk=", "not multipart/form-data"),
        ("multipart/form-data", b"--x", "names no boundary"),
        ("application/x-www-form-urlencoded", b"image=" + 70_000 * b"a", "larger than 64 KiB"),
        ("application/x-www-form-urlencoded", b"image=aGk%3D", IMAGE_PART),
        (FORM, form(Part("image", 70_000 * b"a")), "larger than 64 KiB"),
        (FORM, form(Part("image", b"aGk=")), IMAGE_PART),
        (FORM, form(Part("image", b"\xff\xd8\xff\xe0")), IMAGE_PART),
        (FORM, form(Part("image", b"", "")), IMAGE_PART),
        (FORM, form(Part("file", png(), "a.png")), IMAGE_PART),
        (FORM, form(Part("image[]", png(), "a.png")), IMAGE_PART),
        (FORM, form(Part("images", png(), "a.png")), IMAGE_PART),
        (FORM, form(Part("image", png(), "a"), Part("images", png(), "b")), "an unknown field"),
        (FORM, form(Part("image", png(), "a"), Part("explain", b"true", "b")), "without a file"),
        (FORM.replace("frontier", "other"), form(Part("image", png(), "a.png")), "do not fit"),
        (FORM, b"--frontier\r\nContent-Disposition: form-data\r\n\r\na", "a part has no name"),
    ],
)
def test_forms_of_other_clients_learn_what_is_missing(client, kind, body, words):
    answer = client.post("/classify", content=body, headers={"Content-Type": kind} if kind else {})
    assert answer.status_code in {400, 422}
    assert words in answer.json()["message"]
