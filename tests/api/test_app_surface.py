"""Every route asks for a key or for none, and nothing but the key passes for it."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from api.app import create_app
from api.settings import ServeSettings
from tests.api.test_middleware import exchange
from tests.support.wire import KEY

STATIC = [file.name for file in (Path(__file__).parents[2] / "api/static").iterdir()]
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
