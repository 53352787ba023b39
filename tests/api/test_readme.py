"""The README's tables are those of the code, and its examples run."""

import re
import shlex
from pathlib import Path

import httpx
import pytest

from api.app import create_app
from api.errors import ERRORS, IMAGE_STATUS
from api.settings import ServeSettings
from medclip_dcl.data.images import REASONS

TEXT = (Path(__file__).parents[2] / "api/README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^curl (.+)$", TEXT, re.MULTILINE)
FIRST_COLUMNS = re.findall(r"^\| (.+?) \| (.+?) \|", TEXT, re.MULTILINE)


def test_every_setting_is_named_with_its_meaning() -> None:
    for name, field in ServeSettings.model_fields.items():
        assert f"| `{name}` |" in TEXT, name
        assert " ".join((field.description or "").split()) in TEXT, name


def test_every_failure_is_named_with_its_status() -> None:
    for code, (status, line) in ERRORS.items():
        assert f"| {status} | `{code}` | {line} |" in TEXT
    for code, line in REASONS.items():
        assert f"| {IMAGE_STATUS.get(code, 422)} | `{code}` | {line} |" in TEXT


def test_every_route_is_named() -> None:
    app = create_app(ServeSettings(model="m", allow_anonymous=True))
    for path in app.openapi()["paths"]:
        assert path in TEXT, path


def arguments_of(example: str, image: bytes) -> httpx.Request:
    """The request that curl would send."""
    words, files, data, headers = shlex.split(example), [], {}, {}
    url = words.pop()
    for option, value in zip(words[::2], words[1::2], strict=True):
        name, _, rest = value.partition("=")
        if option == "-F" and rest == "@image.dcm":
            files.append((name, ("image.dcm", image)))
        elif option == "-F":
            data.setdefault(name, []).append(rest)
        elif option == "-H":
            header, _, content = value.partition(": ")
            headers[header] = content
        else:
            assert option == "-o"
    method = "POST" if files or data else "GET"
    path = url.removeprefix("http://127.0.0.1:8000")
    return method, path, {"files": files, "data": data, "headers": headers}


def test_examples_cover_every_question() -> None:
    routes = {example.rsplit("/", 1)[1] for example in EXAMPLES}
    assert {"classify", "ground", "retrieve", "pixels", "model", "ready"} <= routes


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(client: httpx.Client, dicom: bytes, example: str) -> None:
    method, path, given = arguments_of(example, dicom)
    answer = client.request(method, path, **given)
    assert answer.status_code == 200, answer.text
    if "-o " in example:
        assert answer.content.startswith(b"\x89PNG")
    else:
        assert answer.json()
