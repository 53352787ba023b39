"""GET /model: what answers here, what it was made from, and what it is not for."""

from fastapi import APIRouter

from medclip_dcl.schemas import ModelAnswer

from ..dependencies import CurrentState
from ..errors import ApiError, documented
from ..settings import MAX_FIELD_KB, MAX_FINDINGS, MAX_HITS, MAX_PHRASES, MAX_TEXT_CHARS

router = APIRouter(tags=["service"])

_LIMITS = {
    "max_field_kb": MAX_FIELD_KB,
    "max_phrases": MAX_PHRASES,
    "max_findings": MAX_FINDINGS,
    "max_text_chars": MAX_TEXT_CHARS,
    "max_hits": MAX_HITS,
}


@router.get("/model", responses=documented("loading", "model_unusable"))
def model(serving: CurrentState) -> ModelAnswer:
    """Give the model's card, the index's counts and the limits."""
    published = serving.published
    try:
        artifact = serving.index.artifact
        counts = artifact.summary
        # "films" is what clients of earlier versions read.
        index = {"digest": artifact.digest, **counts, "films": counts["images"]}
    except ApiError:
        index = None
    fitted = published.calibration
    calibration = None if fitted is None else fitted.model_dump(mode="json")
    settings = serving.settings
    return ModelAnswer(
        digest=published.digest,
        card={**published.card, "calibration": calibration},
        index=index,
        limits={"max_body_mb": settings.max_body_mb, **_LIMITS, "deadline_s": settings.deadline_s},
    )
