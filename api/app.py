"""The service: `uvicorn --factory api.app:create_app`, or `python -m api`."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.formparsers import MultiPartParser

from medclip_dcl.core.plugins import ROUTES, load_plugins

from .auth import read_auth
from .errors import add_handlers
from .logging import Metrics
from .middleware import RequestMiddleware
from .model_manager import ModelManager, fetch_model
from .openapi import install_openapi
from .routes import classify, embed, ground, retrieve, service, viewer
from .settings import (
    FILE_VARIABLE,
    MAX_FIELD_KB,
    MAX_FIELDS,
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
