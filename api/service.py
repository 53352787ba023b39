"""GET /health, /ready, /metrics, /model: the state of the service, facts about the model.

GET / is the viewer, one page with its modules and style sheet; POST /pixels gives what it draws.
"""

import json
from pathlib import Path

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from medclip_dcl.inference.heads import HeadCard
from medclip_dcl.schemas import HeadFacts, ModelAnswer, RefusedFinding, State

from .auth import STATIC
from .errors import ApiError, documented
from .model_manager import CurrentState
from .settings import MAX_FIELD_KB, MAX_FINDINGS, MAX_HITS, MAX_IMAGES, MAX_PHRASES, MAX_TEXT_CHARS
from .uploads import WholeImage, whole_form

router = APIRouter(tags=["service"])
pages = APIRouter(include_in_schema=False)

_PAGE = (Path(__file__).parent / "static/index.html").read_bytes()
_FILES = {name: file.read_bytes() for name, file in STATIC.items()}
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

_NOT_READY = ("loading", "model_unusable", "index_unusable", "index_mismatch")
_LIMITS = {
    "max_field_kb": MAX_FIELD_KB,
    "max_phrases": MAX_PHRASES,
    "max_findings": MAX_FINDINGS,
    "max_images": MAX_IMAGES,
    "max_text_chars": MAX_TEXT_CHARS,
    "max_hits": MAX_HITS,
}


@router.get("/model", responses=documented("loading", "model_unusable"))
def model(serving: CurrentState) -> ModelAnswer:
    """Return the model's card and heads, findings not to be read, the index, the limits."""
    model, settings = serving.predictor, serving.settings
    try:
        artifact = serving.index.artifact
        findings = list(serving.index.studies.findings)
        index = {"digest": artifact.digest, **artifact.summary, "findings": findings}
    except ApiError:
        index = None
    calibration, offsets = (
        None if fitted is None else fitted.model_dump(mode="json")
        for fitted in (model.calibration, model.offsets)
    )
    return ModelAnswer(
        digest=model.digest,
        card={**model.card, "calibration": calibration, "offsets": offsets},
        refused=[
            RefusedFinding(
                name=item.finding, reason=item.reason, correlation=item.correlation, auc=item.auc
            )
            for item in (model.calibration.findings if model.calibration else ())
            if item.is_refused
        ],
        heads=[_facts_of(head.card) for head in model.heads],
        index=index,
        limits={"max_body_mb": settings.max_body_mb, **_LIMITS, "deadline_s": settings.deadline_s},
        device=str(model.device),
        engine=model.engine.name,
        precision=model.engine.precision,
    )


@router.get("/health", responses=documented())
async def health(serving: CurrentState) -> State:
    """Say that the process lives; no key is asked for."""
    return State(status="ok", needs_key=bool(serving.settings.key_file))


@router.get("/ready", responses=documented(*_NOT_READY))
async def ready(serving: CurrentState) -> State:
    """Say that model and index are loaded and warm; no key is asked for."""
    serving.check()
    return State(status="ok", needs_key=bool(serving.settings.key_file))


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "the figures"}, **documented()},
)
async def metrics(serving: CurrentState) -> Response:
    """Return Prometheus metrics."""
    figures = generate_latest(serving.metrics.registry)
    return Response(figures, headers={"Content-Type": CONTENT_TYPE_LATEST})


@pages.get("/")
async def page() -> Response:
    """Return the page."""
    return _answer(_PAGE, "text/html; charset=utf-8")


@pages.get("/static/{name}")
async def static(name: str) -> Response:
    """Return a file of the page; any other name is not found."""
    if name not in _FILES:
        raise ApiError("not_found")
    return _answer(_FILES[name], _TYPES[Path(name).suffix])


def _facts_of(card: HeadCard) -> HeadFacts:
    return HeadFacts(
        **card.model_dump(include=set(HeadFacts.model_fields)),
        calibrated=card.calibration.curve is not None,
        note=card.calibration.reason,
    )


def _answer(data: bytes, kind: str) -> Response:
    return Response(data, headers={"Content-Type": kind, "Cache-Control": "no-cache"})


@router.post(
    "/pixels",
    dependencies=[Depends(whole_form)],
    response_class=Response,
    responses={
        200: {
            "description": "16-bit little-endian greys, row by row, described by the header "
            "X-Image",
            "content": {"application/octet-stream": {}},
        },
        **documented(has_form=True, has_image=True),
    },
)
def pixels(image: WholeImage) -> Response:
    """Decode an image and give its pixels back."""
    height, width = image.pixels.shape
    facts = {
        "width": width,
        "height": height,
        "spacing_mm": image.spacing_mm,
        "window": image.window,
        "bits_stored": image.bits_stored,
        "source": image.source,
        "inverted": image.inverted,
    }
    greys = image.pixels.astype("<u2", copy=False).tobytes()
    headers = {"X-Image": json.dumps(facts)}
    return Response(greys, media_type="application/octet-stream", headers=headers)
