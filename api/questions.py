"""POST /classify, /ground, /embed and /retrieve: what is asked about images and sentences."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from fastapi import APIRouter, Depends, File, Form, Request, Response, UploadFile
from pydantic import BaseModel
from pydantic_core import from_json
from torch import Tensor
from torch.nn import functional

from medclip_dcl.core.errors import CheckpointError, ImageError
from medclip_dcl.core.tables import SPLITS
from medclip_dcl.data.grayscale import SquareImage
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.models.similarity import box_vectors, global_vectors
from medclip_dcl.retrieval.search import Filters, Query
from medclip_dcl.schemas import (
    ClassifyAnswer,
    ClassifyAnswers,
    EmbedAnswer,
    GroundAnswer,
    GroundAnswers,
    ImageFacts,
    RefusedImage,
    RetrieveAnswer,
)

from .errors import ApiError, documented
from .model_manager import CurrentState, ServingState
from .settings import MAX_HITS, MAX_ID_CHARS, MAX_IMAGES, MAX_PHRASES, MEBIBYTE
from .uploads import (
    KINDS,
    OptionalImage,
    PixelBox,
    answer_each,
    parse_box,
    parse_findings,
    plain_text,
    plain_texts,
    read_all,
    whole_form,
)

router = APIRouter(tags=["questions"], dependencies=[Depends(whole_form)])

_FILES = File(description=f"{KINDS}; several times")

_What = Literal["global", "regions"]
_Encoding = Literal["json", "base64"]
_Several = TypeVar("_Several", ClassifyAnswers, GroundAnswers)
_Floats = npt.NDArray[np.floating[Any]]

_JSON_BYTES = 24  # of a number in JSON, at most
_BASE64 = 4 / 3
_NO_INDEX = ("no_index", "loading", "index_unusable", "index_mismatch")


@dataclass(frozen=True)
class _Question:
    """A question about images: those of a forward pass whose questions are equal share products."""

    ask: Callable[..., Iterator[Any]]
    given: tuple[Any, ...]

    def __call__(self, regions: Tensor | None, images: Sequence[SquareImage]) -> Iterator[Any]:
        return self.ask(regions, images, *self.given)


@router.post(
    "/classify",
    response_model=ClassifyAnswer | ClassifyAnswers,
    form_limits={"max_files": MAX_IMAGES},
    responses=documented("invalid_query", has_form=True, has_image=True),
)
async def classify(
    request: Request,
    serving: CurrentState,
    image: Annotated[list[UploadFile], _FILES],
    findings: Annotated[
        str, Form(description="what to look for, as JSON; empty: the model's own findings")
    ] = "",
    explain: Annotated[bool, Form(description="whether grids and boxes are wanted")] = False,
) -> Any:
    """Score findings on an image by their prompts; of several images each has its answer."""
    model = serving.predictor
    parsed = parse_findings(findings, model.findings)
    chosen = model.findings if parsed is None else parsed
    question = _Question(model.answer_findings, (chosen, explain))

    async def one(square: SquareImage) -> ClassifyAnswer:
        answer: ClassifyAnswer
        answer = await serving.batcher.submit(request, model, square, question)
        serving.metrics.note_answer(answer, own=parsed is None)
        return answer

    answers = await answer_each(request, serving, await read_all(image), one)
    return await _one_or_all(request, serving, answers, ClassifyAnswers)


@router.post(
    "/ground",
    response_model=GroundAnswer | GroundAnswers,
    form_limits={"max_files": MAX_IMAGES},
    responses=documented("no_regions", has_form=True, has_image=True),
)
async def ground(
    request: Request,
    serving: CurrentState,
    phrase: Annotated[list[str], Form(description="a sentence; may be given several times")],
    image: Annotated[list[UploadFile], _FILES],
    threshold: Annotated[
        float | None,
        Form(ge=-1, le=1, allow_inf_nan=False, description="score from which boxes are traced"),
    ] = None,
) -> Any:
    """Score every region of an image against phrases; of several images each has its answer."""
    phrases, model = plain_texts(phrase, "phrase", MAX_PHRASES), serving.predictor
    if not model.has_regions:
        raise ApiError("no_regions")
    question = _Question(model.answer_phrases, (tuple(phrases), threshold))

    async def one(square: SquareImage) -> GroundAnswer:
        answer: GroundAnswer
        if model.model.image.is_pooled:  # its patches are of another pass, which alone is run
            answer = await serving.batcher.ask(request, lambda: next(question(None, [square])))
        else:
            answer = await serving.batcher.submit(request, model, square, question)
        serving.metrics.note_facts(model.digest, answer.image)
        return answer

    answers = await answer_each(request, serving, await read_all(image), one)
    return await _one_or_all(request, serving, answers, GroundAnswers)


@router.post(
    "/embed",
    response_model=EmbedAnswer,
    form_limits={"max_files": MAX_IMAGES},
    responses=documented("no_regions", has_form=True, has_image=True),
)
async def embed(
    request: Request,
    serving: CurrentState,
    image: Annotated[list[UploadFile] | None, _FILES] = None,
    text: Annotated[
        list[str] | None, Form(description="a sentence, instead of images; several times")
    ] = None,
    what: Annotated[_What, Form(description="of which part of the images")] = "global",
    encoding: Annotated[
        _Encoding, Form(alias="format", description="how the numbers are written")
    ] = "json",
) -> Response:
    """Encode images or sentences as unit vectors of the space in which the model compares them."""
    sentences = plain_texts(filter(None, text or ()), "text", MAX_IMAGES)
    if bool(sentences) == bool(image):
        raise ApiError("invalid_request", "text, image: One of the two")
    if sentences and what != "global":
        raise ApiError("invalid_request", "what: Of a sentence, global alone")
    model = serving.predictor
    if what != "global" and not model.has_regions:
        raise ApiError("no_regions")
    images: Sequence[ImageFacts | RefusedImage] = ()
    if sentences:
        vectors = await _embed_sentences(request, serving, sentences)
    else:
        files = await read_all(image or ())
        vectors, images = await _embed_images(request, serving, files, what)
    check_size(vectors, encoding, serving.settings.max_body_mb * MEBIBYTE)
    head = EmbedAnswer(
        model=model.digest,
        engine=model.engine.name,
        precision=model.engine.precision,
        what=what,
        dim=vectors.shape[-1],
        shape=list(vectors.shape),
        images=list(images),
    )
    write = _with_base64 if encoding == "base64" else _with_json
    return await _json(request, serving, partial(write, head, vectors))


@router.post("/embeddings", include_in_schema=False)
async def embeddings(request: Request, serving: CurrentState) -> Response:
    """Answer in OpenAI's form: a string is a sentence, a data URL an image; nothing is fetched."""
    body = _read_openai(await request.body())
    model, dim = serving.predictor, serving.predictor.config.model.similarity.dim
    if body.dimensions not in (None, dim):
        raise ApiError("invalid_request", f"dimensions: {dim}, or left out")
    files = {at: _data_of(item) for at, item in enumerate(body.input) if item.startswith("data:")}
    texts = {at: plain_text(item, "input") for at, item in enumerate(body.input) if at not in files}
    vectors: _Floats = np.zeros((len(body.input), dim), np.float32)
    flags: dict[int, dict[str, list[str]]] = {}
    if texts:
        vectors[[*texts]] = await _embed_sentences(request, serving, [*texts.values()])
    if files:
        own, images = await _embed_images(request, serving, [*files.values()], "global")
        for at, facts in zip(files, images, strict=True):
            if isinstance(facts, RefusedImage):
                raise ImageError(facts.code, facts.message)
            flags[at] = {"flags": facts.flags}
        vectors[[*files]] = own
    encoding: _Encoding = "base64" if body.encoding_format == "base64" else "json"
    check_size(vectors, encoding, serving.settings.max_body_mb * MEBIBYTE)
    rows = [_base64(row) if encoding == "base64" else row.tolist() for row in vectors]
    data = [
        {"object": "embedding", "index": at, "embedding": row, **flags.get(at, {})}
        for at, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    tree = {"object": "list", "data": data, "model": model.digest, "usage": usage}
    return await _json(request, serving, lambda: json.dumps(tree).encode())


class _OpenAi(BaseModel, extra="forbid"):
    """Question in OpenAI's form; `model` and `user` are not read: there is one model."""

    input: list[str]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    model: object = None
    user: object = None


def _read_openai(body: bytes) -> _OpenAi:
    try:
        tree = from_json(body.removeprefix(b"\xef\xbb\xbf"))
        if isinstance(tree, dict) and isinstance(tree.get("input"), str):
            tree["input"] = [tree["input"]]
        parsed = _OpenAi.model_validate(tree)
    except (ValueError, TypeError) as error:
        rule = "input: A string or a list of strings in JSON; encoding_format: float or base64"
        rule += "; dimensions: A number; model and user are not read, others not taken"
        raise ApiError("invalid_request", rule) from error
    if not 0 < len(parsed.input) <= MAX_IMAGES:
        raise ApiError("invalid_request", f"input: 1 to {MAX_IMAGES}")
    if any("://" in item.lstrip().partition(" ")[0] for item in parsed.input):
        raise ApiError("invalid_request", "input: Images as data URLs, since nothing is fetched")
    return parsed


def _data_of(url: str) -> bytes:
    head, _, text = url.partition(",")
    try:
        if not head.endswith(";base64"):
            raise ValueError("not in base64")
        text = "".join(text.split()).rstrip("=")  # as browsers read it
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as error:
        raise ApiError("invalid_request", "input: data:image/png;base64, and the file") from error


def check_size(vectors: _Floats, encoding: _Encoding, max_bytes: int) -> None:
    """Refuse an answer that would be larger than a body may be; ApiError."""
    size = vectors.size * _JSON_BYTES if encoding == "json" else vectors.nbytes * _BASE64
    if size > max_bytes:
        rule = "image: Fewer, or in base64: the answer would exceed max_body_mb"
        raise ApiError("invalid_request", rule)


async def _embed_sentences(
    request: Request, serving: ServingState, texts: Sequence[str]
) -> _Floats:
    model = serving.predictor
    vectors = await serving.batcher.ask(request, lambda: model.embed_sentences(texts).cpu())
    return _finite(vectors.numpy())


async def _embed_images(
    request: Request, serving: ServingState, files: Sequence[bytes], what: _What
) -> tuple[_Floats, list[ImageFacts | RefusedImage]]:
    """Decode and encode images; NaN stands for the vectors of one that is refused."""
    model = serving.predictor
    question = _Question(_encoded, (model, what))

    async def one(square: SquareImage) -> tuple[_Floats, ImageFacts]:
        answered: tuple[_Floats, ImageFacts]
        answered = await serving.batcher.submit(request, model, square, question)
        serving.metrics.note_facts(model.digest, answered[1])
        return answered

    answers = await answer_each(request, serving, files, one)
    facts = [item if isinstance(item, RefusedImage) else item[1] for item in answers]
    good = [item[0] for item in answers if not isinstance(item, RefusedImage)]
    grid = (0, 0) if what == "regions" else ()  # nothing says how many there would be
    shape = good[0].shape if good else (*grid, model.config.model.similarity.dim)
    refused = np.full(shape, np.nan, np.float32)
    vectors = [refused if isinstance(item, RefusedImage) else item[0] for item in answers]
    return np.stack(vectors), facts


def _finite(vectors: _Floats) -> _Floats:
    if not np.isfinite(vectors).all():
        raise CheckpointError("the model gave a vector that is not finite; train it again")
    return vectors


def _encoded(
    regions: Tensor, images: Sequence[SquareImage], model: Predictor, what: _What
) -> Iterator[tuple[_Floats, ImageFacts]]:
    if what == "global":
        vectors = global_vectors(regions)
    else:  # BioViL's keep their lengths, which weigh them in their mean alone
        vectors = functional.normalize(model.located(regions, images), dim=-1)
    return zip(_finite(vectors.cpu().numpy()), map(model.facts_of, images), strict=True)


def _box_vectors(
    regions: Tensor, images: Sequence[SquareImage], model: Predictor, shares: PixelBox
) -> Iterator[Tensor]:
    boxes = torch.tensor([shares] * len(images), device=regions.device)
    return iter(box_vectors(model.located(regions, images), boxes, torch.arange(len(images))))


def _base64(vectors: _Floats) -> str:
    return b64encode(vectors.astype("<f4").tobytes()).decode("ascii")


def _with_base64(head: EmbedAnswer, vectors: _Floats) -> bytes:
    return head.model_copy(update={"base64": _base64(vectors)}).model_dump_json().encode()


def _with_json(head: EmbedAnswer, vectors: _Floats) -> bytes:
    # Input by input: json holds the interpreter until it returns, and others want a turn.
    rows = ",".join(
        "null" if np.isnan(row).all() else json.dumps(row.tolist(), separators=(",", ":"))
        for row in vectors
    )
    return f'{head.model_dump_json(exclude={"vectors"})[:-1]},"vectors":[{rows}]}}'.encode()


@router.post(
    "/retrieve",
    responses=documented(
        *("invalid_query", "no_regions", "engine_unavailable", *_NO_INDEX),
        has_form=True,
        has_image=True,
    ),
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
    if box and image is None:
        raise ApiError("invalid_request", "box: Together with an image alone")
    if text:
        text = plain_text(text, "text")
    model, index = serving.predictor, serving.index
    filters = Filters(
        splits=_names("split", split, SPLITS),
        views=_names("view", view, index.studies.views),
        findings=_names("finding", finding, index.studies.findings),
        exclude_patient=exclude_patient,
    )
    vector = regions = None
    if image is None:
        (vector,) = await serving.batcher.ask(request, lambda: model.embed_sentences([text]))
    elif box:
        question = _Question(_box_vectors, (model, parse_box(box, image, model)))
        vector = await serving.batcher.submit(request, model, image, question)
    else:
        regions = await serving.batcher.submit(request, model, image, lambda own, _: own)
    query = Query(target, k, vector, regions, filters)
    hits = await serving.search_slots.run(request, lambda: index.search(query))
    return RetrieveAnswer(model=model.digest, index=index.artifact.digest, hits=hits)


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


def _names(field: str, given: list[str] | None, allowed: tuple[str, ...] = ()) -> frozenset[str]:
    names = frozenset(filter(None, given or ()))
    if allowed and not names <= {*allowed}:
        raise ApiError("invalid_request", f"{field}: One of {', '.join(allowed)}")
    if any(len(name) > MAX_ID_CHARS for name in names):
        raise ApiError("invalid_request", f"{field}: At most {MAX_ID_CHARS} characters")
    return names


async def _one_or_all(
    request: Request, serving: ServingState, answers: Sequence[Any], kind: type[_Several]
) -> Any:
    """Answer about a single image as such, else about all; one that is refused alone has raised."""
    if len(answers) == 1:
        return answers[0]
    several = kind(model=serving.predictor.digest, answers=answers)
    return await _json(request, serving, several.model_dump_json)


async def _json(request: Request, serving: ServingState, write: Any) -> Response:
    """Answer with what `write` makes in a thread: large answers would hold the event loop."""
    body = await serving.draw_slots.run(request, write)
    return Response(body, media_type="application/json")
