"""POST /embed, and /embeddings in OpenAI's form: vectors in the model's shared space."""

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from fastapi import APIRouter, Form, Request, Response
from pydantic import BaseModel
from pydantic_core import from_json
from torch import Tensor

from medclip_dcl.core.errors import CheckpointError, ImageError
from medclip_dcl.data.grayscale import SquareImage
from medclip_dcl.models.similarity import box_vectors, global_vectors
from medclip_dcl.schemas import EmbedAnswer, ImageFacts, RefusedImage

from ..errors import ApiError, documented
from ..model_manager import CurrentState, ServingState
from ..settings import MAX_IMAGES, MEBIBYTE
from ..uploads import (
    OptionalFiles,
    PixelBox,
    Sentences,
    answer_each,
    box_shares,
    parse_boxes,
    plain_text,
)

router = APIRouter(tags=["questions"])

_What = Literal["global", "regions", "box"]
_Floats = npt.NDArray[np.floating[Any]]

_JSON_BYTES = 24  # of a number in JSON, at most
_BASE64 = 4 / 3


@router.post(
    "/embed",
    response_model=EmbedAnswer,
    form_limits={"max_files": MAX_IMAGES},
    responses=documented(has_form=True, has_image=True),
)
async def embed(
    request: Request,
    serving: CurrentState,
    files: OptionalFiles,
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
    if what != "global" and not model.has_regions:
        raise ApiError("no_regions")
    images: Sequence[ImageFacts | RefusedImage] = ()
    if sentences:
        found = await serving.batcher.ask(request, lambda: model.embed_sentences(sentences).cpu())
        vectors: _Floats = found.numpy()
    else:
        asked = parse_boxes(boxes, len(files)) if boxes else [None] * len(files)
        vectors, images = await _embed_images(request, serving, files, what, asked)
    read = [not isinstance(item, RefusedImage) for item in images] or slice(None)
    if not np.isfinite(vectors[read]).all():
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


@router.post("/embeddings", include_in_schema=False)
async def embeddings(request: Request, serving: CurrentState) -> Response:
    """Answer in OpenAI's form: a string is a sentence, a data URL an image; nothing is fetched."""
    asked = _read_openai(await request.body())
    model, dim = serving.predictor, serving.predictor.config.model.similarity.dim
    if asked.dimensions not in (None, dim):
        raise ApiError("invalid_request", f"dimensions: {dim}, or left out")
    files = {at: _data_of(item) for at, item in enumerate(asked.input) if item.startswith("data:")}
    texts = {
        at: plain_text(item, "input") for at, item in enumerate(asked.input) if at not in files
    }
    vectors: _Floats = np.zeros((len(asked.input), dim), np.float32)
    flags: dict[int, list[str]] = {}
    if texts:
        found = await serving.batcher.ask(
            request, lambda: model.embed_sentences([*texts.values()]).cpu()
        )
        vectors[[*texts]] = found.numpy()
    if files:
        own, images = await _embed_images(
            request, serving, [*files.values()], "global", [None] * len(files)
        )
        for at, facts in zip(files, images, strict=True):
            if isinstance(facts, RefusedImage):
                raise ImageError(facts.code, facts.message)
            flags[at] = facts.flags
        vectors[[*files]] = own
    if not np.isfinite(vectors).all():
        raise CheckpointError("the model gave a vector that is not finite; train it again")
    encoding: Literal["json", "base64"] = "base64" if asked.encoding_format == "base64" else "json"
    check_size(vectors, encoding, serving.settings.max_body_mb * MEBIBYTE)
    data = [
        {
            "object": "embedding",
            "index": at,
            "embedding": row.tolist()
            if encoding == "json"
            else b64encode(row.astype("<f4").tobytes()).decode("ascii"),
            **({"flags": flags[at]} if at in flags else {}),
        }
        for at, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    tree = {"object": "list", "data": data, "model": model.digest, "usage": usage}
    body = await serving.draw_slots.run(request, lambda: json.dumps(tree).encode())
    return Response(body, media_type="application/json")


class _OpenAi(BaseModel):
    """Question in OpenAI's form; `model` and `user` are not read: there is one model."""

    input: list[str]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


def _read_openai(body: bytes) -> _OpenAi:
    try:
        tree = from_json(body)
        if isinstance(tree, dict) and isinstance(tree.get("input"), str):
            tree["input"] = [tree["input"]]
        asked = _OpenAi.model_validate(tree)
    except (ValueError, TypeError) as error:
        rule = "input: A string or a list of strings in JSON; encoding_format: float or base64"
        raise ApiError("invalid_request", rule) from error
    if not 0 < len(asked.input) <= MAX_IMAGES:
        raise ApiError("invalid_request", f"input: 1 to {MAX_IMAGES}")
    if any(item.lower().startswith(("http://", "https://", "file:")) for item in asked.input):
        raise ApiError("invalid_request", "input: Images as data URLs, since nothing is fetched")
    return asked


def _data_of(url: str) -> bytes:
    head, _, text = url.partition(",")
    try:
        if not head.endswith(";base64"):
            raise ValueError("not in base64")
        return b64decode(text, validate=True)
    except ValueError as error:
        raise ApiError("invalid_request", "input: data:image/png;base64, and the file") from error


def check_size(vectors: _Floats, encoding: Literal["json", "base64"], max_bytes: int) -> None:
    """Refuse an answer that would be larger than a body may be; ApiError."""
    size = vectors.size * _JSON_BYTES if encoding == "json" else vectors.nbytes * _BASE64
    if size > max_bytes:
        rule = "image: Fewer, or in base64 or float16: the answer would exceed max_body_mb"
        raise ApiError("invalid_request", rule)


async def _embed_images(
    request: Request,
    serving: ServingState,
    files: Sequence[bytes],
    what: _What,
    boxes: Sequence[PixelBox | None],
) -> tuple[_Floats, list[ImageFacts | RefusedImage]]:
    """Decode and encode images; NaN stands for the vectors of one that is refused."""
    model = serving.predictor
    batched = global_vectors if what == "global" else None

    async def one(place: int, image: SquareImage) -> tuple[_Floats, ImageFacts]:
        box = boxes[place]
        shares = box and box_shares(box, image, model, "boxes")

        def answer(part: Tensor) -> tuple[_Floats, ImageFacts]:
            if what != "global" and model.model.image.is_pooled:  # patches are of another pass
                part = model.embed_regions(image.pixels[None])[0]
            vectors = _box_vector(part, shares) if shares else part
            is_beyond = model.is_out_of_range(image.pixels)
            return vectors.cpu().numpy(), ImageFacts.of(image, out_of_range=is_beyond)

        found = await serving.batcher.submit(request, model, image.pixels, answer, batched)
        serving.metrics.note_facts(model.digest, found[1])
        return found

    answers = await answer_each(request, serving, files, one)
    good = [item for item in answers if not isinstance(item, RefusedImage)]
    if not good:
        grid = (0, 0) if what == "regions" else ()  # nothing says how many there would be
        shape = (len(files), *grid, model.config.model.similarity.dim)
        refusals = [item for item in answers if isinstance(item, RefusedImage)]
        return np.full(shape, np.nan, np.float32), [*refusals]
    refused = np.full_like(good[0][0], np.nan)
    vectors = [refused if isinstance(item, RefusedImage) else item[0] for item in answers]
    facts = [item if isinstance(item, RefusedImage) else item[1] for item in answers]
    return np.stack(vectors), facts


def _box_vector(regions: Tensor, shares: PixelBox) -> Tensor:
    boxes = torch.tensor([shares], device=regions.device)
    return box_vectors(regions[None], boxes, torch.zeros(1, dtype=torch.long))[0]


def _with_base64(head: EmbedAnswer, vectors: _Floats) -> bytes:
    text = b64encode(vectors.tobytes()).decode("ascii")
    return head.model_copy(update={"base64": text}).model_dump_json().encode()


def _with_json(head: EmbedAnswer, vectors: _Floats) -> bytes:
    # Input by input: json holds the interpreter until it returns, and others want a turn.
    rows = ",".join(
        "null" if np.isnan(row).all() else json.dumps(row.tolist(), separators=(",", ":"))
        for row in vectors
    )
    return f'{head.model_dump_json(exclude={"vectors"})[:-1]},"vectors":[{rows}]}}'.encode()
