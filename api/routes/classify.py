"""POST /classify: which findings does an image show?"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Form, Request
from torch import Tensor

from medclip_dcl.data.images import SquareImage
from medclip_dcl.inference import Finding, FindingScore, Grounding, Predictor
from medclip_dcl.schemas import ClassifyAnswer, FindingAnswer, ImageFacts

from ..errors import documented
from ..model_manager import CurrentState
from ..uploads import FormImage, parse_findings

router = APIRouter(tags=["questions"])


@router.post("/classify", responses=documented("invalid_query", has_form=True, has_image=True))
async def classify(
    request: Request,
    serving: CurrentState,
    image: FormImage,
    findings: Annotated[
        str, Form(description="what to look for, as JSON; empty: the model's own findings")
    ] = "",
    explain: Annotated[bool, Form(description="whether heatmap grids are wanted")] = False,
) -> ClassifyAnswer:
    """Score findings on an image by their prompts."""
    asked = parse_findings(findings)
    model = serving.predictor
    if asked is None and not explain:  # the usual question: one product for a whole batch
        return await serving.batcher.submit(
            request,
            model,
            image.pixels,
            lambda scores: _answer(model, image, scores, [None] * len(scores)),
            batched=model.classify_regions,
        )
    return await serving.batcher.submit(
        request,
        model,
        image.pixels,
        lambda regions: _looked_at(model, image, regions, asked, explain=explain),
    )


def _looked_at(
    model: Predictor,
    image: SquareImage,
    regions: Tensor,
    asked: tuple[Finding, ...] | None,
    *,
    explain: bool,
) -> ClassifyAnswer:
    scores = model.classify_regions(regions[None], asked)[0]
    heatmaps: list[npt.NDArray[np.float32] | None] = [None] * len(scores)
    if explain:
        wanted = model.findings if asked is None else asked
        height, width = image.height_px, image.width_px
        heatmaps = [
            _mean_grid(model.ground_regions(regions, side, height, width))
            for side in (finding.positive for finding in wanted)
        ]
    return _answer(model, image, scores, heatmaps)


def _answer(
    model: Predictor,
    image: SquareImage,
    scores: Sequence[FindingScore],
    heatmaps: Sequence[npt.NDArray[np.float32] | None],
) -> ClassifyAnswer:
    return ClassifyAnswer(
        model=model.digest,
        image=ImageFacts.of(image, out_of_range=model.is_out_of_range(image.pixels)),
        findings=[
            FindingAnswer.of(score, heatmap)
            for score, heatmap in zip(scores, heatmaps, strict=True)
        ],
    )


def _mean_grid(found: list[Grounding]) -> npt.NDArray[np.float32]:
    mean: npt.NDArray[np.float32] = np.mean([item.grid for item in found], axis=0)
    return mean
