"""What is sent: forms, fields and images are read, or refused by a field and its rule."""

import csv
from typing import Any

import httpx
import pytest

from tests.support.bombs import png_claim
from tests.support.dicom import dicom_bytes, ramp
from tests.support.service import png
from tests.support.wire import BOUNDARY, Part, form

FORM = f"multipart/form-data; boundary={BOUNDARY}"
DICOM = dicom_bytes(ramp(96, 64), photometric="MONOCHROME1")


def image(data: bytes) -> dict[str, tuple[str, bytes]]:
    return {"image": ("../../etc/passwd", data)}


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"", 422, "empty"),
        (b"This is a report, not an image.", 415, "unknown_format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", 415, "unknown_format"),
        (b"II*\x00" + bytes(100), 415, "unknown_format"),
        (png_claim(60_000, 60_000), 413, "too_many_pixels"),
        (png()[:60], 422, "corrupt"),
        (DICOM[:140], 422, "truncated"),
        (DICOM[:300], 422, "truncated"),
        (DICOM[:-1], 422, "truncated"),
    ],
    ids=["empty", "text", "eps", "tiff", "bomb", "cut png", "cut head", "cut tags", "cut pixels"],
)
def test_what_is_no_image_is_refused_by_name(client, data, status, code):
    answer = client.post("/classify", files=image(data))
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert set(answer.json()) == {"code", "message", "request_id"}
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    read = client.post("/classify", files=image(DICOM)).json()["image"]
    assert (read["source"], read["flags"]) == ("dicom", ["inverted"])


@pytest.mark.real_data
def test_every_real_file_is_answered_or_refused_and_names_nobody(client, service, test_data):
    folder = test_data / "dicom"
    rows = list(csv.DictReader((folder / "manifest.csv").read_text().splitlines()))
    assert len(rows) > 40
    wrong, texts = [], ""
    for row in rows:
        answer = client.post("/classify", files=image((folder / row["file"]).read_bytes()))
        texts += answer.text
        right = {"decode": {200}, "error": {413, 415, 422}}.get(row["expect"], {200, 413, 415, 422})
        if answer.status_code not in right:
            wrong.append((row["file"], answer.status_code, answer.text))
    assert wrong == []
    sentinels = ("PHISENTINEL", "PHISENT", "PHIHIDDEN")
    assert not [word for word in sentinels if word in texts + service.log.read_text()]
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
SENT_AS = "image: Send the file as a part `image` with a file name"
ASKED = {"target": "image", "text": "x"}
FIELDS = (
    ("/classify", {"picture": "x"}, SENT_AS),
    ("/classify", {"image": "x"}, SENT_AS),
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
    ("/retrieve", ASKED | {"finding": "Gout"}, "finding: One of "),
    ("/retrieve", ASKED | {"box": "[0, 0, 1, 1]"}, "box: Together with an image alone"),
    ("/retrieve", ASKED | {"top_k": "3"}, "an unknown field; there"),
    ("/retrieve?k=3", ASKED, "the URL takes no parameters"),
    ("/embed", {}, "text, image: One of the two"),
    ("/embed", {"text": "a", "what": "regions"}, "what: Of a sentence, global alone"),
    ("/embed", {"text": ["a"] * 33}, "text: At most 32 times"),
    ("/embed", {"text": "w" * 1001}, "text: Text of 1 to 1000 characters"),
)
WITH_IMAGE = (
    *(("/retrieve", {"target": "image", "box": box}, "(box: ") for box in BOXES),
    *(("/classify", {"findings": text}, rule) for text, rule in FINDINGS.items()),
    ("/ground", {"phrase": ["x"] * 17}, "(phrase: At most 16 times)"),
    ("/ground", {"phrase": ["x"] * 200}, "(more than 64 fields)"),
    ("/ground", {"phrase": "x" * 100_000}, "(a text field is larger than 64 KiB"),
    ("/embed", {"text": "a"}, "text, image: One of the two"),
    ("/embed", {"what": "box"}, "what: Input should be 'global' or 'regions'"),
    ("/embed", {"format": "npy"}, "format: Input should be 'json' or 'base64'"),
)
OPENAI = (
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
)
OF_OTHER_CLIENTS = (
    ("", None, SENT_AS),
    ("application/json", b'{"image": "aGk="}', "not multipart/form-data"),
    ("image/png", png(), "not multipart/form-data"),
    ("application/dicom", png(), "not multipart/form-data"),
    ("text/plain", b"aGk=", "not multipart/form-data"),
    ("multipart/form-data", b"--x", "names no boundary"),
    ("application/x-www-form-urlencoded", b"image=" + 70_000 * b"a", "larger than 64 KiB"),
    ("application/x-www-form-urlencoded", b"image=aGk%3D", SENT_AS),
    (FORM, form(Part("image", 70_000 * b"a")), "larger than 64 KiB"),
    (FORM, form(Part("image", b"aGk=")), SENT_AS),
    (FORM, form(Part("image", b"\xff\xd8\xff\xe0")), SENT_AS),
    (FORM, form(Part("image", b"", "")), SENT_AS),
    (FORM, form(Part("file", png(), "a.png")), SENT_AS),
    (FORM, form(Part("image[]", png(), "a.png")), SENT_AS),
    (FORM, form(Part("images", png(), "a.png")), SENT_AS),
    (FORM, form(Part("image", png(), "a"), Part("images", png(), "b")), "an unknown field"),
    (FORM, form(Part("image", png(), "a"), Part("explain", b"true", "b")), "without a file"),
    (FORM.replace("frontier", "other"), form(Part("image", png(), "a.png")), "do not fit"),
    (FORM, b"--frontier\r\nContent-Disposition: form-data\r\n\r\na", "a part has no name"),
)


@pytest.mark.parametrize(
    ("path", "given", "rule"),
    [
        *((path, {"data": fields}, rule) for path, fields, rule in FIELDS),
        *(
            (path, {"data": fields, "files": image(png())}, rule)
            for path, fields, rule in WITH_IMAGE
        ),
        (
            "/classify",
            {"files": [("image", ("a", b"x"))] * 33},
            "(more files than the route takes)",
        ),
        *(("/v1/embeddings", {"json": tree}, rule) for tree, rule in OPENAI),
        *(
            (
                "/classify",
                {"content": body, "headers": {"Content-Type": kind} if kind else {}},
                rule,
            )
            for kind, body, rule in OF_OTHER_CLIENTS
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_refused_request_learns_which_field_breaks_which_rule(
    client: httpx.Client, path: str, given: dict[str, Any], rule: str
) -> None:
    answer = client.post(path, **given)
    status = 400 if answer.json()["code"] == "malformed_body" else 422
    assert answer.status_code == status
    assert answer.json()["code"] in {"invalid_request", "invalid_query", "malformed_body"}
    assert rule in answer.json()["message"]
    for word in ("tomorrow", "Gout"):
        assert word not in answer.text
