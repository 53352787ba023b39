"""Everything that can be asked for, and how: routes, methods, credentials, tricks with paths."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.types import Message

_STATIC = [file.name for file in (Path(__file__).parents[2] / "api/static").iterdir()]
OPEN = frozenset({"/", *(f"/static/{name}" for name in _STATIC if name != "index.html")}) | {
    f"{version}/{name}" for version in ("", "/v1") for name in ("health", "ready")
}
"""Paths that answer anyone; written down here, apart from the service's own list."""

KEYED = frozenset({"/openapi.json", "/static/{name}"}) | {
    f"{version}/{name}"
    for version in ("", "/v1")
    for name in (
        "classify",
        "ground",
        "embed",
        "embeddings",
        "retrieve",
        "pixels",
        "model",
        "metrics",
        "images/{image_id}",
    )
}
"""Routes that ask for a key. A new route belongs here, or above."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")


def routes_of(app: FastAPI) -> frozenset[str]:
    """The paths of all routes of an app, those of its routers included."""
    paths = (route.path or "" for route in iter_route_contexts(app.routes))
    return frozenset(path.replace(":path", "") for path in paths)


def tricks(path: str) -> Iterator[str]:
    """A path, and others that a proxy, a router or a careless check might take for it."""
    first, rest, bare = path[1:2], path[2:], path[1:]
    yield from (path, f"/{path}", f"//{path}", f"{path}/", f"{path}//", f"{path}/.", f"{path}/..")
    yield from (f"/./{bare}", f"/x/..{path}", f"/%2e%2e{path}", f"/%2e{path}", f"/x/%2e%2e{path}")
    yield from (path.upper(), path.title(), f"{path};a=b", f"{path}?key=x", f"{path}%00")
    yield from (f"{path}%20", f"{path}%2f", f"/%2f{bare}", path.replace("/", "%2f"), f"\\{bare}")
    yield from (f"/v1{path}", f"/v2{path}", f"/health/..{path}", f"/health%2f..{path}")
    yield from (f"{path}%0d%0a", f"/static/..{path}", f"/static/..%2f{bare}", f"/{bare.swapcase()}")
    if first:
        yield f"/%{ord(first):02x}{rest}"
        yield f"/%25{ord(first):02x}{rest}"


def credentials(key: str) -> dict[str, list[tuple[bytes, bytes]]]:
    """Ways not to have the key, by name."""
    right, bearer = key.encode(), b"Bearer " + key.encode()
    name, other = b"x-api-key", b"authorization"
    return {
        "none": [],
        "empty": [(name, b"")],
        "short by one": [(name, right[:-1])],
        "long by one": [(name, right + b"x")],
        "other case": [(name, right.swapcase())],
        "quoted": [(name, b'"' + right + b'"')],
        "zero at the end": [(name, right + b"\0")],
        "hash of it": [(name, b"0" * 64)],
        "twice": [(name, right), (name, right)],
        "right and wrong": [(name, right), (name, b"x" * 40)],
        "both headers": [(name, right), (other, bearer)],
        "bare": [(other, right)],
        "basic": [(other, b"Basic " + right)],
        "token": [(other, b"Token " + right)],
        "bearer alone": [(other, b"Bearer")],
        "other header": [(b"x-api-token", right), (b"proxy-authorization", bearer)],
        "cookie": [(b"cookie", b"x-api-key=" + right)],
    }


@dataclass(frozen=True)
class Surface:
    """What asking an app in every way gave."""

    asked: int
    breaches: tuple[str, ...]
    """Answered though they should not have been."""
    refused: tuple[str, ...]
    """Not answered though they brought the key, or needed none."""


def try_everything(app: FastAPI, key: str, every: int = 1) -> Surface:
    """Ask for each route with each method, credential and trick, or for one in `every` of them.

    The service knows `key` alone.
    """
    logging.getLogger("medclip.service").disabled = True
    with asyncio.Runner() as runner:
        found = _try_everything(runner, app, key, every)
    logging.getLogger("medclip.service").disabled = False
    return found


def _try_everything(runner: asyncio.Runner, app: FastAPI, key: str, every: int) -> Surface:
    paths = [path.replace("{image_id}", "x").replace("{name}", "x") for path in OPEN | KEYED]
    wrong = credentials(key)
    asked, breaches, refused = 0, [], []
    combinations = (
        (path, method, name)
        for path in sorted({trick for path in paths for trick in tricks(path)})
        for method in METHODS
        for name in wrong
    )
    for number, (path, method, name) in enumerate(combinations):
        if number % every:
            continue
        asked += 1
        is_open = unquote(path.partition("?")[0]) in OPEN
        answered = _status(runner, app, method, path, wrong[name]) not in {401, 403}
        if answered is not is_open:
            (refused if is_open else breaches).append(f"{method} {path} {name}")
    for path in paths:
        for right in ((b"x-api-key", key.encode()), (b"authorization", b"bearer " + key.encode())):
            asked += 1
            if _status(runner, app, "GET", path, [right]) in {401, 403}:
                refused.append(f"GET {path} with the key")
    return Surface(asked, tuple(breaches), tuple(refused))


def _status(
    runner: asyncio.Runner, app: FastAPI, method: str, raw: str, headers: list[tuple[bytes, bytes]]
) -> int:
    """Ask as the server would: the path decoded once, the query apart."""
    path, _, query = raw.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost"), *headers],
        "http_version": "1.1",
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "root_path": "",
        "app": app,
        "asgi": {"version": "3.0"},
    }
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    runner.run(_whole(app, scope, receive, send))
    return statuses[0]


async def _whole(app: FastAPI, scope: dict, receive: object, send: object) -> None:
    await app(scope, receive, send)
