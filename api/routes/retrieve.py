"""POST /retrieve and GET /images: which indexed images or sentences are closest?"""

from typing import Annotated, Literal

import torch
from fastapi import APIRouter, Form, Request, Response
from torch import Tensor

from medclip_dcl.core.tables import SPLITS
from medclip_dcl.data.grayscale import SquareImage
from medclip_dcl.models.similarity import box_vectors
from medclip_dcl.retrieval.search import Filters, Query
from medclip_dcl.schemas import HitAnswer, RetrieveAnswer

from ..errors import ApiError, documented
from ..model_manager import CurrentState, ServingState
from ..settings import MAX_HITS, MAX_ID_CHARS
from ..uploads import OptionalImage, parse_box, plain_text

router = APIRouter(tags=["questions"])

_NO_INDEX = ("no_index", "loading", "index_unusable", "index_mismatch")
_NO_ANSWER = ("engine_unavailable",)


@router.post(
    "/retrieve",
    responses=documented("invalid_query", *_NO_INDEX, *_NO_ANSWER, has_form=True, has_image=True),
)
async def retrieve(
    request: Request,
    serving: CurrentState,
    image: OptionalImage,
    target: Annotated[Literal["image", "text"], Form(description="what is wanted")],
    text: Annotated[str, Form(description="a sentence, instead of an image")] = "",
    box: Annotated[
        str, Form(description="[x, y, width, height] on the image, pixels, as JSON")
    ] = "",
    k: Annotated[int, Form(ge=1, le=MAX_HITS, description="hits at most")] = 10,
    split: Annotated[list[str] | None, Form(description="splits that may be hits")] = None,
    view: Annotated[list[str] | None, Form(description="view positions that may be hits")] = None,
    finding: Annotated[
        list[str] | None,
        Form(
            description="findings of which a hit has one at least, by its report or its labels; "
            "/model lists them: index.findings"
        ),
    ] = None,
    exclude_patient: Annotated[
        str, Form(max_length=MAX_ID_CHARS, description="patient whose images are left out")
    ] = "",
) -> RetrieveAnswer:
    """Rank indexed images or sentences by a sentence, an image, or a box of an image."""
    if bool(text) == (image is not None):
        raise ApiError("invalid_request", "text, image: One of the two")
    if text:
        text = plain_text(text, "text")
    model, index = serving.predictor, serving.index
    filters = Filters(
        splits=_names("split", split, SPLITS),
        views=_names("view", view),
        findings=_names("finding", finding, index.studies.findings),
        exclude_patient=exclude_patient,
    )
    box_shares = parse_box(box, image, model) if box and image is not None else None
    if box and box_shares is None:
        raise ApiError("invalid_request", "box: Together with an image alone")
    vector, regions = await _encoded(request, serving, text, image, box_shares)
    query = Query(target, k, vector, regions, filters)
    hits = await serving.search_slots.run(request, lambda: index.search(query))
    has_picture = target == "image" and index.settings.pictures
    return RetrieveAnswer(
        model=model.digest,
        index=index.artifact.digest,
        hits=[HitAnswer.of(hit, has_picture=has_picture) for hit in hits],
    )


@router.get(
    "/images/{image_id:path}",
    response_class=Response,
    responses={
        200: {"content": {"image/jpeg": {}}, "description": "the thumbnail"},
        **documented("not_found", *_NO_INDEX),
    },
)
def thumbnail(serving: CurrentState, image_id: str) -> Response:
    """Return the thumbnail of an indexed image."""
    picture = serving.index.picture(image_id)
    if picture is None:
        raise ApiError("not_found")
    return Response(picture, media_type="image/jpeg")


async def _encoded(
    request: Request,
    serving: ServingState,
    text: str,
    image: SquareImage | None,
    box_shares: tuple[float, float, float, float] | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Query vectors: one (a sentence, a box), or all regions of an image."""
    model = serving.predictor
    if image is None:
        vectors = await serving.batcher.ask(request, lambda: model.embed_sentences([text]))
        return vectors[0], None
    if box_shares and model.model.image.is_pooled:  # its patches are of another pass
        pixels = image.pixels[None]
        regions = await serving.batcher.ask(request, lambda: model.embed_regions(pixels)[0])
    else:
        regions = await serving.batcher.submit(request, model, image.pixels, lambda found: found)
    if box_shares is None:
        return None, regions
    boxes = torch.tensor([box_shares], device=regions.device)
    return box_vectors(regions[None], boxes, torch.zeros(1, dtype=torch.long))[0], None


def _names(field: str, given: list[str] | None, known: tuple[str, ...] = ()) -> frozenset[str]:
    names = frozenset(given or ())
    if known and not names <= {*known}:
        raise ApiError("invalid_request", f"{field}: One of {', '.join(known)}")
    if any(len(name) > MAX_ID_CHARS for name in names):
        raise ApiError("invalid_request", f"{field}: At most {MAX_ID_CHARS} characters")
    return names
