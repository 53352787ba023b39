"""The README names every route, and its examples run; its tables are made from the code."""

import re
import shlex
from pathlib import Path

import httpx
import pytest

from api.app import create_app
from api.settings import ServeSettings

TEXT = (Path(__file__).parents[2] / "api/README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^curl (.+)$", TEXT, re.MULTILINE)


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
    assert "-o " in example or answer.json()
