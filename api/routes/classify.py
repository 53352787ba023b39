"""POST /classify: which findings does an image show?"""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from torch import Tensor

from medclip_dcl.schemas import ClassifyAnswer

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
    explain: Annotated[bool, Form(description="whether grids and boxes are wanted")] = False,
) -> ClassifyAnswer:
    """Score findings on an image by their prompts."""
    asked = parse_findings(findings)
    model = serving.predictor
    wanted = model.findings if asked is None else asked
    if asked is None and not explain:  # the usual question: one product for a whole batch
        return await serving.batcher.submit(
            request,
            model,
            image.pixels,
            lambda scores: ClassifyAnswer.of(model, image, scores, wanted, None),
            batched=model.classify_regions,
        )

    def look(regions: Tensor) -> ClassifyAnswer:
        scores = model.classify_regions(regions[None], wanted)[0]
        height, width = image.height_px, image.width_px
        found = model.locate_findings(regions, wanted, height, width) if explain else None
        return ClassifyAnswer.of(model, image, scores, wanted, found)

    return await serving.batcher.submit(request, model, image.pixels, look)
