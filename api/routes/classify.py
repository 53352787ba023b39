"""POST /classify: which findings does an image show?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from torch import Tensor

from medclip_dcl.data.grayscale import SquareImage
from medclip_dcl.inference.grounding import locate
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.schemas import ClassifyAnswer, ClassifyAnswers

from ..errors import documented
from ..model_manager import CurrentState
from ..settings import MAX_IMAGES
from ..uploads import ImageFiles, answer_each, parse_findings

router = APIRouter(tags=["questions"])


@router.post(
    "/classify",
    response_model=ClassifyAnswer | ClassifyAnswers,
    form_limits={"max_files": MAX_IMAGES},
    responses=documented("invalid_query", has_form=True, has_image=True),
)
async def classify(
    request: Request,
    serving: CurrentState,
    files: ImageFiles,
    findings: Annotated[
        str, Form(description="what to look for, as JSON; empty: the model's own findings")
    ] = "",
    explain: Annotated[bool, Form(description="whether grids and boxes are wanted")] = False,
) -> ClassifyAnswer | Response:
    """Score findings on an image by their prompts; of several images each has its answer."""
    model = serving.predictor
    asked = parse_findings(findings, model.findings)
    question = _Question(model, model.findings if asked is None else asked, explain)

    async def one(_place: int, image: SquareImage) -> ClassifyAnswer:
        answer = await serving.batcher.submit(
            request, model, image.pixels, lambda part: question.answer(image, *part), question
        )
        serving.metrics.note_answer(answer, own=asked is None)
        return answer

    answers = await answer_each(request, serving, files, one)
    if len(answers) == 1 and isinstance(answers[0], ClassifyAnswer):
        return answers[0]
    several = ClassifyAnswers(model=model.digest, answers=answers)
    body = await serving.draw_slots.run(request, several.model_dump_json)
    return Response(body, media_type="application/json")


@dataclass(frozen=True)
class _Question:
    """Question about images: where it is equal, one product answers a whole batch."""

    model: Predictor
    findings: tuple[Finding, ...]
    explain: bool

    def __call__(self, regions: Tensor) -> Iterator[tuple[Any, Any, Tensor]]:
        scores = self.model.classify_regions(regions, self.findings)
        grids = [None] * len(regions)
        if self.explain and not self.model.model.image.is_pooled:
            grids = list(self.model.finding_grids(regions, self.findings))
        return zip(scores, grids, regions, strict=True)

    def answer(
        self, image: SquareImage, scores: Any, grids: Any, regions: Tensor
    ) -> ClassifyAnswer:
        """Answer for one image of a batch."""
        size, model = (image.height_px, image.width_px), self.model
        found = None
        if self.explain and model.has_regions and grids is None:  # patches are of another pass
            patches = model.embed_regions(image.pixels[None])
            grids = model.finding_grids(patches, self.findings)[0]
        if grids is not None:
            found = [locate(grid, *size, None, model.window(*size)) for grid in grids]
        heads = self.model.answer_heads(regions[None], image.pixels[None])[0]
        return ClassifyAnswer.of(self.model, image, scores, self.findings, found, heads)
