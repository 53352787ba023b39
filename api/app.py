"""The service: `uvicorn --factory api.app:create_app`, or `python -m api`."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.formparsers import MultiPartParser

from medclip_dcl.core.plugins import ROUTES, load_plugins
from medclip_dcl.core.tables import SPLITS

from .auth import OPEN_PATHS, read_auth
from .errors import add_handlers
from .logging import Metrics
from .middleware import RequestMiddleware
from .model_manager import ModelManager, fetch_model
from .routes import classify, embed, ground, retrieve, service, viewer
from .settings import (
    FILE_VARIABLE,
    MAX_FIELD_KB,
    MAX_FIELDS,
    MAX_FINDINGS,
    MAX_ID_CHARS,
    MAX_IMAGES,
    MAX_PHRASES,
    MAX_TEXT_CHARS,
    MEBIBYTE,
    ServeSettings,
    read_service_settings,
)

_ROUTERS = (classify, ground, embed, retrieve, viewer, service)


def create_app(settings: ServeSettings | None = None) -> FastAPI:
    """Make the service; it loads the model once it is started, and `/ready` says when it has.

    Args:
        settings: its settings; None: from the file that `MEDCLIP_CONFIG` names and the
            other `MEDCLIP_*` variables.

    Raises:
        ConfigError: a setting is unknown or malformed, or there is neither a key nor
            permission to do without one.
    """
    if settings is None:
        file = os.environ.get(FILE_VARIABLE)
        settings = fetch_model(read_service_settings(Path(file) if file else None, os.environ))
    # uvicorn's own access log would repeat query strings.
    logging.getLogger("uvicorn.access").disabled = True
    # What is sent stays in memory: no temporary files.
    MultiPartParser.spool_max_size = settings.max_body_mb * MEBIBYTE
    metrics = Metrics()
    app = FastAPI(
        title="medclip-dcl",
        version="1",  # that of the paths below /v1
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if settings.publish_schema else None,
        redirect_slashes=False,
        form_limits={
            "max_files": 1,
            "max_fields": MAX_FIELDS,
            "max_part_size": MAX_FIELD_KB * 1024,
        },
    )
    app.state.serving = ModelManager(settings, metrics)
    add_handlers(app)
    auth = read_auth(settings)
    if (keys := auth.keys) is not None:
        metrics.keys_current.set_function(lambda: float(keys.is_current))
    app.add_middleware(RequestMiddleware, settings=settings, auth=auth, metrics=metrics)
    app.include_router(viewer.pages)
    load_plugins(settings.plugins)
    for router in [*(module.router for module in _ROUTERS), *(make() for make in ROUTES.values())]:
        app.include_router(router)
        app.include_router(router, prefix="/v1", include_in_schema=False)
    install_openapi(app, settings)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    serving: ModelManager = app.state.serving
    duties = [serving.load_and_watch(app), serving.give_memory_back()]
    tasks = [asyncio.create_task(duty) for duty in duties]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        serving.close()


_ABOUT = (
    "Research use only, not a medical device. Every route is reachable under `/v1` too. Empty "
    "fields count as absent ones. Nothing that is sent is stored."
)
_WORDS = r"^[^\u0000]*([^\s\u0000\u001c-\u001f\u0085]|\ufeff)[^\u0000]*$"
"""What is not text: nothing but spaces, or a zero character."""
_TEXT = {"minLength": 1, "maxLength": MAX_TEXT_CHARS, "pattern": _WORDS}
_BOX = {
    "type": "array",
    "items": {"type": "number", "minimum": 0},
    "minItems": 4,
    "maxItems": 4,
}
_COUNT = {"minItems": 1, "maxItems": MAX_IMAGES}
_OF_SEVERAL = ("/classify", "/ground", "/embed")
_IMAGES = "application/dicom, image/png, image/jpeg"
_EITHER = {
    "oneOf": [{"required": ["text"]}, {"required": ["image"]}],
    "dependentRequired": {"box": ["image"]},
}
"""What `/retrieve` is asked with: a sentence, or an image and perhaps a box on it."""
_EMBEDDED = {
    "oneOf": [
        {
            "required": ["text"],
            "properties": {"what": {"const": "global"}, "boxes": False, "image": False},
        },
        {
            "required": ["image"],
            "properties": {
                "what": {"enum": ["global", "regions"]},
                "boxes": False,
                "text": False,
            },
        },
        {
            "required": ["image", "what", "boxes"],
            "properties": {"what": {"const": "box"}, "text": False},
        },
    ]
}
"""What `/embed` is asked with: sentences, or images and perhaps a box on each; not both."""

_EXAMPLES: dict[str, dict[str, Any]] = {
    "/classify": {
        "explain": True,
        "findings": [
            {
                "name": "effusion",
                "positive": ["Pleural effusion", "Effusions"],
                "negative": "No pleural effusion",
            }
        ],
    },
    "/ground": {"phrase": ["left pleural effusion", "enlarged heart"], "threshold": 0.2},
    "/embed": {"text": ["No pleural effusion.", "Enlarged heart."], "format": "base64"},
    "/retrieve": {"target": "image", "text": "No pleural effusion.", "k": 5, "view": ["AP"]},
}
"""Fields of an example per form; an image, which is bytes, stands in none."""


def install_openapi(app: FastAPI, settings: ServeSettings) -> None:
    """Make an app, which has all its routes, describe itself as it is set up."""
    made: dict[str, Any] = {}

    def document() -> dict[str, Any]:
        if not made:
            made.update(_document(app, settings))
        return made

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, settings: ServeSettings) -> dict[str, Any]:
    tree: dict[str, Any] = get_openapi(
        title=app.title, version=app.version, description=_ABOUT, routes=app.routes
    )
    schemas = tree["components"]["schemas"]
    if settings.key_file:
        tree["components"]["securitySchemes"] = {
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            "bearer": {"type": "http", "scheme": "bearer"},
        }
    for path, operations in tree["paths"].items():
        for operation in operations.values():
            if settings.key_file:
                is_open = path in OPEN_PATHS
                operation["security"] = [] if is_open else [{"key": []}, {"bearer": []}]
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]  # FastAPI's own words, which nobody hears
            for status, answer in operation["responses"].items():
                answer["headers"] = _headers(status) | answer.get("headers", {})
            body = operation.get("requestBody")
            if body is not None:
                _describe_body(path, body, schemas, settings)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    return tree


def _describe_body(
    path: str, body: dict[str, Any], schemas: dict[str, Any], settings: ServeSettings
) -> None:
    """Put limits and an example to a form."""
    (form,) = body["content"].values()
    schema = schemas[form["schema"]["$ref"].rpartition("/")[2]]
    schema["title"] = f"Form of {path}"
    fields = schema["properties"]
    limits = _limits() | (_limits_of_embed() if path == "/embed" else {})
    if path in _OF_SEVERAL:
        limits["image"] = _COUNT
    for name, field in fields.items():
        if "anyOf" in field:  # null cannot be sent in a form
            (sent,) = (kind for kind in field.pop("anyOf") if kind != {"type": "null"})
            field |= sent
        if field.get("default") == "":  # an absent one
            del field["default"]
        field |= limits.get(name, {})
    if path == "/retrieve":
        schema |= _EITHER
    if path == "/embed":
        schema |= _EMBEDDED
    files = f"{MAX_IMAGES} files" if path in _OF_SEVERAL else "one file"
    body["description"] = (
        f"A form of at most {settings.max_body_mb} MiB with at most {files} and "
        f"{MAX_FIELDS} other fields, each of at most {MAX_FIELD_KB} KiB."
    )
    written = {"image": _IMAGES} | dict.fromkeys(("findings", "box", "boxes"), "application/json")
    form["encoding"] = {
        name: {"contentType": kind} for name, kind in written.items() if name in fields
    }
    if path in _EXAMPLES:
        form["example"] = _EXAMPLES[path]


def _limits() -> dict[str, dict[str, Any]]:
    """Field of a form -> its limits, in JSON Schema's words."""
    return {
        "text": _TEXT,
        "phrase": {
            "minItems": 1,
            "maxItems": MAX_PHRASES,
            "items": {"type": "string", **_TEXT},
        },
        "split": {"items": {"type": "string", "enum": list(SPLITS)}},
        "finding": {"items": {"type": "string", "maxLength": MAX_ID_CHARS}},
        "view": {"items": {"type": "string", "maxLength": MAX_ID_CHARS}},
        "findings": {
            "type": "array",
            "items": _finding({"type": "string", **_TEXT}),
            "minItems": 1,
            "maxItems": MAX_FINDINGS,
            "description": "what to look for, as JSON; each name once, and at most "
            f"{8 * MAX_FINDINGS} prompts in all; absent: the model's own findings",
        },
        "box": _BOX,
    }


def _limits_of_embed() -> dict[str, dict[str, Any]]:
    return {
        "text": {**_COUNT, "items": {"type": "string", **_TEXT}},
        "boxes": {"type": "array", "items": _BOX, **_COUNT},
    }


def _finding(text: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": text,
            "label": {"type": "string"},
            "positive": _side(text, least=1),
            "negative": _side(text, least=1),
        },
        "required": ["name", "positive", "negative"],  # without: for models with a bank of images
        "additionalProperties": False,
    }


def _side(text: dict[str, Any], least: int) -> dict[str, Any]:
    return {"anyOf": [text, {"type": "array", "items": text, "minItems": least}]}


def _headers(status: str) -> dict[str, Any]:
    """Headers of an answer; every one has an id."""
    plain = {"type": "string"}
    headers: dict[str, Any] = {
        "X-Request-ID": {
            "description": "under which the log knows the request; the client's own where it "
            "is one plain word of at most 64 characters",
            "required": True,
            "schema": {**plain, "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
        }
    }
    if status == "401":
        headers["WWW-Authenticate"] = {"required": True, "schema": {"const": "Bearer"}}
    if status == "503":
        headers["Retry-After"] = {
            "description": "seconds, where trying again helps",
            "schema": {"type": "integer", "minimum": 1},
        }
    return headers
