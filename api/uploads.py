"""The parts of a form, as dependencies of routes: images, phrases, a box, findings."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, File, Request, UploadFile
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.grayscale import GreyImage, SquareImage
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.inference.prompts import Finding, parse_prompts
from medclip_dcl.schemas import RefusedImage

from .errors import ApiError, image_reason
from .model_manager import CurrentState, ServingState
from .settings import MAX_FINDINGS, MAX_TEXT_CHARS

_Answer = TypeVar("_Answer")
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
PixelBox = tuple[_Number, _Number, _Number, _Number]
"""x, y, width, height."""
_BATCHES = 2  # of one request at a time: one in the model while the next is decoded
_BOX = TypeAdapter(PixelBox)


async def read_all(uploads: Iterable[UploadFile]) -> list[bytes]:
    """Take the content of files out of the form, which needs no copy of it."""
    contents = []
    for upload in uploads:
        contents.append(await upload.read())
        await upload.close()
    return contents


async def _decode_square(request: Request, serving: ServingState, data: bytes) -> SquareImage:
    """Decode an image in its turn, as the model sees it; ImageError where it is refused."""
    decoder, model = serving.decoder, serving.predictor
    images = model.config.images
    try:
        return await serving.decode_slots.run(
            request,
            lambda: decoder.square(data, images.size_px, equalize=images.equalize, fit=images.fit),
        )
    except ImageError as error:
        serving.metrics.note_image(model.digest, error.code)
        raise


async def answer_each(
    request: Request,
    serving: ServingState,
    files: Sequence[bytes],
    answer: Callable[[SquareImage], Awaitable[_Answer]],
) -> list[_Answer | RefusedImage]:
    """Decode images and answer each, some at a time, so that other requests get their turn.

    `answer` gets an image as the model sees it. One of several that cannot be read is refused in
    its place; a single one refuses the request with its ImageError.
    """
    turns = asyncio.Semaphore(_BATCHES * serving.settings.batch)

    async def one(data: bytes) -> _Answer | RefusedImage:
        async with turns:
            try:
                image = await _decode_square(request, serving, data)
            except ImageError as error:
                if len(files) == 1:
                    raise
                return RefusedImage(code=error.code, message=image_reason(error))
            return await answer(image)

    return await _together([one(data) for data in files])


async def _together(work: Sequence[Coroutine[Any, Any, _Answer]]) -> list[_Answer]:
    """Run work side by side; the first that fails ends the rest, and its error is raised."""
    if len(work) == 1:  # no task of its own for the usual question
        return [await work[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(item) for item in work]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


_FORMS = {"", "multipart/form-data", "application/x-www-form-urlencoded"}
_NO_FORM = "not multipart/form-data, as curl -F sends it; JSON, base64 and bare files are not read"


async def whole_form(request: Request) -> None:
    """Refuse what would be dropped in silence: other bodies, unknown or repeated fields."""
    body, url = request.scope["route"].body_field, request.query_params
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and url:
        raise ApiError("invalid_request", "the URL takes no parameters; send fields in the body")
    if body is None:
        return
    if kind not in _FORMS:
        raise ApiError("invalid_request", _NO_FORM)
    fields = {info.alias: info for info in body.field_info.annotation.model_fields.values()}
    form = (await request.form()).multi_items()
    sent = Counter(name for name, value in form if getattr(value, "size", value))
    if any(info.is_required() and name not in sent for name, info in fields.items()):
        return  # whose refusal says more
    if not fields.keys() >= sent.keys():
        raise ApiError("invalid_request", f"an unknown field; there are {', '.join(fields)}")
    for name, times in sent.items():
        if times > 1 and "list[" not in str(fields[name].annotation):
            raise ApiError("invalid_request", f"{name}: Once")


KINDS = "an image: DICOM, PNG or JPEG"


async def _optional_image(
    request: Request,
    serving: CurrentState,
    image: Annotated[UploadFile | None, File(description=KINDS)] = None,
) -> SquareImage | None:
    if image is None:
        return None
    return await _decode_square(request, serving, *await read_all([image]))


async def _whole_image(
    request: Request, serving: CurrentState, image: Annotated[UploadFile, File(description=KINDS)]
) -> GreyImage:
    (data,), decoder = await read_all([image]), serving.decoder
    return await serving.decode_slots.run(request, lambda: decoder.open(data))


OptionalImage = Annotated[SquareImage | None, Depends(_optional_image)]
"""The image of the form, where it has one, prepared for the model."""

WholeImage = Annotated[GreyImage, Depends(_whole_image)]
"""The image of the form with all its pixels."""


def plain_texts(texts: Iterable[str], field: str, most: int) -> list[str]:
    """Check the sentences of a field by `plain_text`; ApiError where they are more than `most`."""
    listed = list(texts)
    if len(listed) > most:
        raise ApiError("invalid_request", f"{field}: At most {most} times")
    return [plain_text(text, field) for text in listed]


def plain_text(text: str, field: str) -> str:
    """Check a sentence of a field that goes to the tokenizer, and collapse its whitespace.

    ApiError where it is empty, too long, or holds what is not text.
    """
    words = " ".join(text.split())
    surrogate = any(0xD800 <= ord(character) < 0xE000 for character in words)
    if not words or len(words) > MAX_TEXT_CHARS or "\0" in words or surrogate:
        rule = f"{field}: Text of 1 to {MAX_TEXT_CHARS} characters"
        raise ApiError("invalid_request", rule)
    if words[:2] in {'["', '{"'}:
        raise ApiError("invalid_request", f"{field}: One sentence, no JSON; several times")
    return words


def parse_box(text: str, image: SquareImage, model: Predictor) -> PixelBox:
    """Read a box, the JSON list [x, y, width, height] in pixels: shares of what the model sees.

    ApiError where it is malformed, empty or leaves the image, or the model has no vectors of parts
    of one.
    """
    try:
        x, y, width, height = _BOX.validate_json(text)
    except ValidationError as error:
        rule = "box: Four numbers in JSON, [x, y, width, height]"
        raise ApiError("invalid_request", rule) from error
    if not model.has_regions:
        raise ApiError("no_regions")
    height_px, width_px = image.height_px, image.width_px
    inside = x >= 0 and y >= 0 and x + width <= width_px and y + height <= height_px
    if min(width, height) < 1 or not inside:
        raise ApiError("invalid_request", "box: On the image, one pixel or more wide and high")
    seen = model.window(height_px, width_px)
    across, down = 1 / seen.width, 1 / seen.height
    return (x - seen.x) * across, (y - seen.y) * down, width * across, height * down


def parse_findings(text: str, own: Sequence[Finding] = ()) -> tuple[Finding, ...] | None:
    """Read the findings asked for, JSON as `parse_prompts` takes it; None for empty text.

    ApiError where it is not JSON, or beyond a limit; QueryError where an entry is malformed.
    """
    if not text:
        return None
    try:
        tree = from_json(text.removeprefix("\ufeff"), allow_inf_nan=False)
    except (ValueError, TypeError) as error:  # the second: what is not text
        raise ApiError("invalid_request", "findings: A list in JSON") from error
    findings = parse_prompts(tree, own)
    prompts = [side for finding in findings for side in (*finding.positive, *finding.negative)]
    if len(findings) > MAX_FINDINGS or len(prompts) > 8 * MAX_FINDINGS:
        rule = f"findings: At most {MAX_FINDINGS} with {8 * MAX_FINDINGS} prompts in all"
        raise ApiError("invalid_request", rule)
    for text in (*prompts, *(finding.name for finding in findings)):
        plain_text(text, "findings")
    return findings
