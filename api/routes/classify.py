"""POST /classify: which findings does a film show?"""

from typing import Annotated

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Form, Request

from api.dependencies import Film, Served
from api.failures import documented
from api.messages import ClassifyAnswer, FindingAnswer, ImageFacts
from api.uploads import parse_findings
from medclip_dcl.studies.images import GreyImage
from medclip_dcl.tasks.grounding import Grounding
from medclip_dcl.tasks.predictor import Predictor
from medclip_dcl.tasks.prompts import Finding

router = APIRouter(tags=["questions"])


@router.post("/classify", responses=documented("invalid_request", "invalid_query"))
async def classify(
    request: Request,
    serving: Served,
    film: Film,
    findings: Annotated[
        str, Form(description="JSON list of {name, positive, negative}; empty: the model's own")
    ] = "",
    explain: Annotated[bool, Form(description="whether heatmap grids are wanted")] = False,
) -> ClassifyAnswer:
    """Score findings on a film by their prompts."""
    asked = parse_findings(findings, serving.settings)
    model = serving.predictor
    return await serving.asking.run(request, lambda: _answer(model, film, asked, explain=explain))


def _answer(
    model: Predictor, film: GreyImage, asked: tuple[Finding, ...] | None, *, explain: bool
) -> ClassifyAnswer:
    square = model.square(film)
    regions = model.embed_images(square[None])
    scores = model.classify_regions(regions, asked)[0]
    heatmaps: list[npt.NDArray[np.float32] | None] = [None] * len(scores)
    if explain:
        wanted = model.findings if asked is None else asked
        height, width = film.pixels.shape
        heatmaps = [
            _mean_grid(model.ground_regions(regions[0], side, height, width))
            for side in (finding.positive for finding in wanted)
        ]
    return ClassifyAnswer(
        model=model.digest,
        image=ImageFacts.of(film, square),
        findings=[
            FindingAnswer.of(score, heatmap)
            for score, heatmap in zip(scores, heatmaps, strict=True)
        ],
    )


def _mean_grid(found: list[Grounding]) -> npt.NDArray[np.float32]:
    mean: npt.NDArray[np.float32] = np.mean([item.grid for item in found], axis=0)
    return mean
