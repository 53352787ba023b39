"""GET /health, /ready, /metrics: for those who run the service."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from medclip_dcl.schemas import State

from ..dependencies import CurrentState
from ..errors import documented

router = APIRouter(tags=["service"])

_NOT_READY = ("loading", "model_unusable", "index_unusable", "index_mismatch")


@router.get("/health", responses=documented())
async def health() -> State:
    """Say that the process lives; no key is asked for."""
    return State(status="ok")


@router.get("/ready", responses=documented(*_NOT_READY))
async def ready(serving: CurrentState) -> State:
    """Say that model and index are loaded and warm; no key is asked for."""
    serving.check()
    return State(status="ok")


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "the figures"}, **documented()},
)
async def metrics(serving: CurrentState) -> Response:
    """Give Prometheus metrics."""
    figures = generate_latest(serving.metrics.registry)
    return Response(figures, headers={"Content-Type": CONTENT_TYPE_LATEST})
