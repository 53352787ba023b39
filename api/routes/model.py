"""GET /model: what answers here, what it was made from, and what it is not for."""

from fastapi import APIRouter

from api.dependencies import CurrentState
from api.failures import ApiError, documented
from api.messages import ModelAnswer

router = APIRouter(tags=["service"])

_LIMITS = (
    "max_body_mb",
    "max_field_kb",
    "max_phrases",
    "max_findings",
    "max_text_chars",
    "max_hits",
    "deadline_s",
)


@router.get("/model", responses=documented("loading", "model_unusable"))
def model(serving: CurrentState) -> ModelAnswer:
    """Give the model's card, the index's counts and the limits."""
    published = serving.published
    try:
        artifact = serving.index.artifact
        index = {"digest": artifact.digest, **artifact.summary}
    except ApiError:
        index = None
    fitted = published.calibration
    calibration = None if fitted is None else fitted.model_dump(mode="json")
    settings = serving.settings.model_dump()
    return ModelAnswer(
        digest=published.digest,
        card={**published.card, "calibration": calibration},
        index=index,
        limits={name: settings[name] for name in _LIMITS},
    )
