"""Everything that can be asked for, and how: routes, methods, credentials, tricks with paths."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.types import Message

OPEN = frozenset({"/", "/static/viewer.js", "/static/viewer.css"}) | {
    f"{version}/{name}" for version in ("", "/v1") for name in ("health", "ready")
}
"""Paths that answer anyone; written down here, apart from the service's own list."""

KEYED = frozenset({"/openapi.json", "/static/{name}"}) | {
    f"{version}/{name}"
    for version in ("", "/v1")
    for name in (
        "classify",
        "ground",
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
    first, rest = path[1:2], path[2:]
    yield path
    yield from (f"/{path}", f"//{path}", f"{path}/", f"{path}//", f"{path}/.", f"{path}/..")
    yield from (
        f"/./{path[1:]}",
        f"/x/..{path}",
        f"/%2e%2e{path}",
        f"/%2e{path}",
        f"/x/%2e%2e{path}",
    )
    yield from (
        path.upper(),
        path.title(),
        f"{path};a=b",
        f"{path}?key=x",
        f"{path}%00",
        f"{path}%20",
    )
    yield from (f"{path}%2f", f"/%2f{path[1:]}", path.replace("/", "%2f"), f"\\{path[1:]}")
    yield from (
        f"/v1{path}",
        f"/v2{path}",
        f"/health/..{path}",
        f"/health%2f..{path}",
        f"{path}%0d%0a",
    )
    yield from (f"/static/..{path}", f"/static/..%2f{path[1:]}", f"/{path[1:].swapcase()}")
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
        "bearer alone": [(other, b"Bearer")],
        "other header": [(b"x-api-token", right), (b"proxy-authorization", bearer)],
        "cookie": [(b"cookie", b"x-api-key=" + right)],
    }


@dataclass(frozen=True)
class Surface:
    """What asking an app in every way gave.

    Attributes:
        asked: requests.
        breaches: those that were answered though they should not have been.
        refused: those that were not answered though they brought the key, or needed none.
    """

    asked: int
    breaches: tuple[str, ...]
    refused: tuple[str, ...]


def try_everything(app: FastAPI, key: str, every: int = 1) -> Surface:
    """Ask for each route with each method, credential and trick.

    Args:
        app: the service, which knows the key alone.
        key: the key.
        every: ask for one in so many combinations.

    Returns:
        What came of it.
    """
    logging.getLogger("medclip.service").disabled = True
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
        answered = _status(app, method, path, wrong[name]) not in {401, 403}
        if answered is not is_open:
            (refused if is_open else breaches).append(f"{method} {path} {name}")
    for path in paths:
        for right in ((b"x-api-key", key.encode()), (b"authorization", b"bearer " + key.encode())):
            asked += 1
            if _status(app, "GET", path, [right]) in {401, 403}:
                refused.append(f"GET {path} with the key")
    logging.getLogger("medclip.service").disabled = False
    return Surface(asked, tuple(breaches), tuple(refused))


def _status(app: FastAPI, method: str, raw: str, headers: list[tuple[bytes, bytes]]) -> int:
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

    step = app(scope, receive, send)
    try:
        step.send(None)  # nothing is waited for on the way to a refusal
    except StopIteration:
        return statuses[0]
    step.close()
    return statuses[0] if statuses else asyncio.run(_whole(app, scope, receive, send, statuses))


async def _whole(app: FastAPI, scope: dict, receive: object, send: object, seen: list[int]) -> int:
    await app(scope, receive, send)
    return seen[0]
