"""POST /embed: vectors of images or sentences in the model's shared space."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from fastapi import APIRouter, Form, Request, Response
from torch import Tensor

from medclip_dcl.errors import CheckpointError, ImageError
from medclip_dcl.models.similarity import box_vectors, global_vectors
from medclip_dcl.schemas import EmbedAnswer, ImageFacts

from ..errors import ApiError, documented
from ..model_manager import CurrentState, ServingState
from ..settings import MAX_EMBEDDED, MEBIBYTE
from ..uploads import (
    FileContent,
    ImageFiles,
    PixelBox,
    Sentences,
    box_shares,
    decode_square,
    parse_boxes,
)

router = APIRouter(tags=["questions"])

_What = Literal["global", "regions", "box"]
_Floats = npt.NDArray[np.floating[Any]]
_Result = TypeVar("_Result")

_BATCHES = 2  # of one request at a time: one in the model while the next is decoded
_JSON_BYTES = 24  # of a number in JSON, at most
_BASE64 = 4 / 3


@router.post(
    "/embed",
    response_model=EmbedAnswer,
    form_limits={"max_files": MAX_EMBEDDED},
    responses=documented(has_form=True, has_image=True),
)
async def embed(
    request: Request,
    serving: CurrentState,
    files: ImageFiles,
    sentences: Sentences,
    what: Annotated[_What, Form(description="of which part of the images")] = "global",
    boxes: Annotated[
        str, Form(description="a box [x, y, width, height] on each image, pixels, as JSON")
    ] = "",
    dtype: Annotated[Literal["float32", "float16"], Form(description="of the numbers")] = "float32",
    encoding: Annotated[
        Literal["json", "base64"], Form(alias="format", description="how the numbers are written")
    ] = "json",
) -> Response:
    """Encode images or sentences as unit vectors of the space in which the model compares them."""
    if bool(sentences) == bool(files):
        raise ApiError("invalid_request", "text, image: One of the two")
    if sentences and what != "global":
        raise ApiError("invalid_request", "what: Of a sentence, global alone")
    if (what == "box") != bool(boxes):
        raise ApiError("invalid_request", "boxes: With what=box alone")
    model = serving.predictor
    images: Sequence[ImageFacts] = ()
    if sentences:
        found = await serving.batcher.ask(request, lambda: model.embed_sentences(sentences).cpu())
        vectors: _Floats = found.numpy()
    else:
        asked = parse_boxes(boxes, len(files)) if boxes else [None] * len(files)
        vectors, images = await _embed_images(request, serving, files, what, asked)
    if not np.isfinite(vectors).all():
        raise CheckpointError("the model gave a vector that is not finite; train it again")
    vectors = vectors.astype(np.dtype(dtype).newbyteorder("<"))
    check_size(vectors, encoding, serving.settings.max_body_mb * MEBIBYTE)
    head = EmbedAnswer(
        model=model.digest,
        engine=model.engine.name,
        precision=model.engine.precision,
        what=what,
        dim=vectors.shape[-1],
        shape=list(vectors.shape),
        dtype=dtype,
        images=list(images),
    )
    write = _with_base64 if encoding == "base64" else _with_json
    body = await serving.draw_slots.run(request, partial(write, head, vectors))
    return Response(body, media_type="application/json")


def check_size(vectors: _Floats, encoding: Literal["json", "base64"], max_bytes: int) -> None:
    """Refuse an answer that would be larger than a body may be; ApiError."""
    size = vectors.size * _JSON_BYTES if encoding == "json" else vectors.nbytes * _BASE64
    if size > max_bytes:
        rule = "image: Fewer, or in base64 or float16: the answer would exceed max_body_mb"
        raise ApiError("invalid_request", rule)


async def _embed_images(
    request: Request,
    serving: ServingState,
    files: Sequence[FileContent],
    what: _What,
    boxes: Sequence[PixelBox | None],
) -> tuple[_Floats, list[ImageFacts]]:
    """Decode and encode images, some at a time, so that other requests get their turn."""
    model = serving.predictor
    turns = asyncio.Semaphore(_BATCHES * serving.settings.batch)

    async def one(
        number: int, data: FileContent, box: PixelBox | None
    ) -> tuple[_Floats, ImageFacts]:
        async with turns:
            try:
                image = await decode_square(request, serving, data)
            except ImageError as error:
                error.add_note(f"(image {number} of {len(files)})")
                raise
            shares = box and box_shares(box, image, "boxes")

            def answer(part: Tensor) -> tuple[_Floats, ImageFacts]:
                vectors = _box_vector(part, shares) if shares else part
                is_beyond = model.is_out_of_range(image.pixels)
                return vectors.cpu().numpy(), ImageFacts.of(image, out_of_range=is_beyond)

            batched = global_vectors if what == "global" else None
            return await serving.batcher.submit(request, model, image.pixels, answer, batched)

    asked = enumerate(zip(files, boxes, strict=True), start=1)
    answers = await _together([one(number, *item) for number, item in asked])
    return np.stack([vectors for vectors, _ in answers]), [facts for _, facts in answers]


def _box_vector(regions: Tensor, shares: PixelBox) -> Tensor:
    boxes = torch.tensor([shares], device=regions.device)
    return box_vectors(regions[None], boxes, torch.zeros(1, dtype=torch.long))[0]


async def _together(work: Sequence[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """Run work side by side; the first that fails ends the rest, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(item) for item in work]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def _with_base64(head: EmbedAnswer, vectors: _Floats) -> bytes:
    text = b64encode(vectors.tobytes()).decode("ascii")
    return head.model_copy(update={"base64": text}).model_dump_json().encode()


def _with_json(head: EmbedAnswer, vectors: _Floats) -> bytes:
    # Input by input: json holds the interpreter until it returns, and others want a turn.
    rows = ",".join(json.dumps(row.tolist(), separators=(",", ":")) for row in vectors)
    return f'{head.model_dump_json(exclude={"vectors"})[:-1]},"vectors":[{rows}]}}'.encode()
