"""Routes ask for a key or for none; the OpenAPI document and the README say so, and are true."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.testclient import TestClient

from api.app import create_app
from api.auth import OPEN_PATHS
from api.errors import ERRORS, IMAGE_STATUS
from api.settings import ServeSettings
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data.limits import REASONS
from tests.api.test_middleware import exchange
from tests.support.dicom import dicom_bytes, ramp
from tests.support.wire import KEY

API = Path(__file__).parents[2] / "api"
STATIC = [file.name for file in (API / "static").iterdir()]
OPEN = {"/", *(f"/static/{name}" for name in STATIC if name != "index.html")} | {
    f"{version}/{name}" for version in ("", "/v1") for name in ("health", "ready")
}
"""Paths that answer anyone; written down here, apart from the service's own list."""
NAMES = ("classify", "ground", "embed", "embeddings", "retrieve", "pixels", "model", "metrics")
KEYED = {"/openapi.json", "/static/{name}"} | {
    f"{version}/{name}" for version in ("", "/v1") for name in (*NAMES, "images/{image_id}")
}
"""Routes that ask for a key. A new route belongs here, or above."""
PATHS = sorted(path.replace("{image_id}", "x").replace("{name}", "x") for path in OPEN | KEYED)
NOT_THE_KEY = {
    "none": [],
    "empty": [("x-api-key", "")],
    "short by one": [("x-api-key", KEY[:-1])],
    "long by one": [("x-api-key", f"{KEY}x")],
    "other case": [("x-api-key", KEY.swapcase())],
    "quoted": [("x-api-key", f'"{KEY}"')],
    "zero at the end": [("x-api-key", f"{KEY}\0")],
    "twice": [("x-api-key", KEY), ("x-api-key", KEY)],
    "right and wrong": [("x-api-key", KEY), ("x-api-key", "x" * 40)],
    "both headers": [("x-api-key", KEY), ("authorization", f"Bearer {KEY}")],
    "bare": [("authorization", KEY)],
    "basic": [("authorization", f"Basic {KEY}")],
    "bearer alone": [("authorization", "Bearer")],
    "other header": [("x-api-token", KEY), ("proxy-authorization", f"Bearer {KEY}")],
    "cookie": [("cookie", f"x-api-key={KEY}")],
}


@pytest.fixture(scope="module")
def app(key_file: Path) -> FastAPI:
    return create_app(ServeSettings(model="none", key_file=str(key_file), publish_schema=True))


def is_answered(app: FastAPI, method: str, path: str, headers: list[tuple[str, str]]) -> bool:
    sent = exchange(app, [], path, method, headers=[("host", "localhost"), *headers])
    return sent[0]["status"] not in {401, 403}


def tricks(path: str) -> Iterator[str]:
    """A path, and others that a proxy, a router or a careless check might take for it."""
    first, rest, bare = path[1:2], path[2:], path[1:]
    yield from (path, f"/{path}", f"//{path}", f"{path}/", f"{path}//", f"{path}/.", f"{path}/..")
    yield from (f"/./{bare}", f"/x/..{path}", f"/%2e%2e{path}", f"/%2e{path}", f"/x/%2e%2e{path}")
    yield from (path.upper(), path.title(), f"{path};a=b", f"{path}?key={KEY}", f"{path}%00")
    yield from (f"{path}%20", f"{path}%2f", f"/%2f{bare}", path.replace("/", "%2f"), f"\\{bare}")
    yield from (
        f"/v2{path}",
        f"/health/..{path}",
        f"/health%2f..{path}",
        f"/%{ord(first):02x}{rest}",
    )
    yield from (f"{path}%0d%0a", f"/static/..{path}", f"/static/..%2f{bare}", f"/{bare.swapcase()}")


def test_every_route_is_classified(app: FastAPI) -> None:
    routes = {(route.path or "").replace(":path", "") for route in iter_route_contexts(app.routes)}
    served = {path for path in OPEN if "/static/" not in path}  # one route gives the page's files
    assert routes == served | KEYED


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_key_alone_opens_what_asks_for_it(app: FastAPI, method: str) -> None:
    for path in PATHS:
        for headers in NOT_THE_KEY.values():
            assert is_answered(app, method, path, headers) is (path in OPEN), (path, headers)
        for name, value in (("x-api-key", KEY), ("authorization", f"bearer {KEY}")):
            assert is_answered(app, method, path, [(name, value)]), path


@pytest.mark.parametrize("path", ["/model", "/v1/classify", "/static/x", "/health", "/v1/ready"])
def test_a_path_that_only_looks_open_is_not(app: FastAPI, path: str) -> None:
    for trick in tricks(path):
        is_open = unquote(trick.partition("?")[0]) in OPEN
        for method in ("GET", "HEAD", "PUT", "OPTIONS", "QUERY"):
            assert is_answered(app, method, trick, []) is is_open, (method, trick)


@pytest.mark.parametrize("path", ["/health", "/classify", "/model"])
def test_no_other_origin_is_let_in(app: FastAPI, path: str) -> None:
    client = TestClient(app, raise_server_exceptions=False)
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for method in ("OPTIONS", "GET", "POST"):
        answer = client.request(method, path, headers={**asked, "X-API-Key": KEY})
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_ready_is_open_and_says_that_it_is_not(app: FastAPI) -> None:
    answer = TestClient(app).get("/ready")
    assert (answer.status_code, answer.json()["code"]) == (503, "loading")
    assert answer.headers["retry-after"]


def test_the_factory_reads_the_file_that_the_variable_names(tmp_path, monkeypatch):
    file = tmp_path / "serve.json"
    file.write_text(json.dumps({"model": "m", "allow_anonymous": True, "queue": 3}))
    monkeypatch.setenv("MEDCLIP_CONFIG", str(file))
    monkeypatch.setenv("MEDCLIP_BATCH", "7")
    settings = create_app().state.serving.current.settings
    assert (settings.queue, settings.batch) == (3, 7)
    monkeypatch.setenv("MEDCLIP_MAX_HITS", "7")
    with pytest.raises(ConfigError, match="MEDCLIP_MAX_HITS"):
        create_app()


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(ServeSettings(model="none", allow_anonymous=True)).openapi()


def test_the_document_asks_for_keys_where_they_are_needed_and_nowhere_else(app, document) -> None:
    tree = app.openapi()
    assert set(tree["components"]["securitySchemes"]) == {"key", "bearer"}
    for path, methods in tree["paths"].items():
        for operation in methods.values():
            assert bool(operation["security"]) is (path not in OPEN_PATHS), path
    assert "securitySchemes" not in document["components"]


def test_every_failure_is_documented_with_its_status_code_and_line(document) -> None:
    codes: dict[str, set[str]] = {}
    for path, methods in document["paths"].items():
        (operation,) = methods.values()
        for status, answer in operation["responses"].items():
            if int(status) < 400:
                continue
            schema = answer["content"]["application/json"]["schema"]
            for code in schema["properties"]["code"]["enum"]:
                codes.setdefault(path, set()).add(code)
                texts = {ERRORS.get(code), (IMAGE_STATUS.get(code, 422), REASONS.get(code))}
                lines = [line for own, line in texts - {None} if own == int(status)]
                assert any(f"`{code}`: {line}" in answer["description"] for line in lines), code
    assert len(codes) >= 9
    for path in ("/classify", "/ground", "/retrieve", "/pixels"):
        assert set(REASONS) - {"missing", "constant"} <= codes[path]
        assert {"overloaded", "deadline", "body_deadline", "malformed_body"} <= codes[path]
    # A method that is in no operation, and a client that hears nothing any more.
    assert set(ERRORS) - set().union(*codes.values()) == {"method_not_allowed", "client_gone"}
    assert "ValidationError" not in str(document)  # the framework's own words


README = (API / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^curl (.+)$", README, re.MULTILINE)


def test_the_readme_names_every_route_and_has_an_example_of_every_question(document) -> None:
    for path in document["paths"]:
        assert path in README, path
    routes = {example.rsplit("/", 1)[1] for example in EXAMPLES}
    assert {"classify", "ground", "retrieve", "pixels", "model", "ready"} <= routes


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_readme_runs(client: httpx.Client, example: str) -> None:
    *words, url = shlex.split(example)
    fields: dict[str, list[str]] = {}
    files = []
    for option, value in zip(words[::2], words[1::2], strict=True):
        name, _, content = value.partition("=")
        if content == "@image.dcm":
            files.append((name, ("image.dcm", dicom_bytes(ramp(96, 64)))))
        elif option == "-F":
            fields.setdefault(name, []).append(content)
        else:
            assert option == "-o"
    path = url.removeprefix("http://127.0.0.1:8000")
    method = "POST" if "-F" in words else "GET"
    answer = client.request(method, path, files=files, data=fields)
    assert answer.status_code == 200, answer.text
    assert "-o" in words or answer.json()
