"""The service: `uvicorn --factory api.app:create_app`, or `python -m api`."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.formparsers import MultiPartParser

from medclip_dcl.core.plugins import ROUTES, load_plugins

from . import questions, service
from .auth import OPEN_PATHS, read_auth
from .errors import add_handlers
from .logging import Metrics
from .middleware import RequestMiddleware
from .model_manager import ModelManager, fetch_model
from .settings import (
    FILE_VARIABLE,
    MAX_FIELD_KB,
    MAX_FIELDS,
    MEBIBYTE,
    ServeSettings,
    read_service_settings,
)


def create_app(settings: ServeSettings | None = None) -> FastAPI:
    """Make the service; it loads the model once it is started, and `/ready` says when it has.

    Args:
        settings: its settings; None: from the file that `MEDCLIP_CONFIG` names and the
            other `MEDCLIP_*` variables.

    ConfigError where a setting is unknown or malformed, or there is neither a key nor permission to
    do without one.
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
    app.include_router(service.pages)
    load_plugins(settings.plugins)
    for router in (questions.router, service.router, *(make() for make in ROUTES.values())):
        app.include_router(router)
        app.include_router(router, prefix="/v1", include_in_schema=False)
    # made once, and when it is first asked for
    document = cache(partial(_document, app, needs_key=bool(settings.key_file)))
    app.openapi = document  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    serving: ModelManager = app.state.serving
    task = asyncio.create_task(serving.load_and_watch())
    try:
        yield
    finally:
        task.cancel()
        serving.close()


_ABOUT = (
    "Research use only, not a medical device. Every route is reachable under `/v1` too. Empty "
    "fields count as absent ones. Nothing that is sent is stored. `/model` gives the limits."
)


def _document(app: FastAPI, *, needs_key: bool) -> dict[str, Any]:
    tree: dict[str, Any] = get_openapi(
        title=app.title, version=app.version, description=_ABOUT, routes=app.routes
    )
    if needs_key:
        tree["components"]["securitySchemes"] = {
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            "bearer": {"type": "http", "scheme": "bearer"},
        }
    for path, operations in tree["paths"].items():
        for operation in operations.values():
            if needs_key:
                is_open = path in OPEN_PATHS
                operation["security"] = [] if is_open else [{"key": []}, {"bearer": []}]
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]  # FastAPI's own words, which nobody hears
    for name in ("HTTPValidationError", "ValidationError"):
        tree["components"]["schemas"].pop(name, None)
    return tree
