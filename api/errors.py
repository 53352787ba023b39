"""Exception -> status, code and one fixed line: the one table of everything that can go wrong.

An answer never repeats what was sent. It carries a code, the line of this table, and
the id under which the log knows the request.
"""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from medclip_dcl.core.errors import EngineError, ImageError, QueryError
from medclip_dcl.data.limits import REASONS
from medclip_dcl.schemas import FailureAnswer

from .logging import state_of
from .settings import MAX_FIELD_KB, MAX_FIELDS

ERRORS: dict[str, tuple[int, str]] = {
    "malformed_body": (400, "the request is not well-formed HTTP and multipart within the limits"),
    "unauthorized": (401, "send the key as `Authorization: Bearer KEY` or `X-API-Key: KEY`"),
    "loopback_only": (403, "requests without a key are answered on loopback alone"),
    "not_found": (404, "no such route (lower case, no final slash, /v1 once), or indexed picture"),
    "method_not_allowed": (405, "the route does not know this method"),
    "body_deadline": (408, "the body took longer than body_deadline_s"),
    "body_too_large": (413, "the body is larger than max_body_mb"),
    "content_encoding": (415, "send the body without Content-Encoding"),
    "host_refused": (421, "the Host header names no host that is served here"),
    "invalid_request": (422, "a field is missing, of the wrong kind or beyond its limit"),
    "invalid_query": (422, "the question is malformed"),
    "no_regions": (422, "the model has a vector of a whole image alone, and locates no phrase"),
    "client_gone": (499, "the client closed the connection, or read its answer too slowly"),
    "internal": (500, "a fault of the service; the log knows it by the request id"),
    "overloaded": (503, "all places are taken; try again"),
    "deadline": (503, "the model was busy for longer than deadline_s; try again"),
    "out_of_memory": (503, "the device has no memory left for this request; try again"),
    "loading": (503, "the model is being loaded; try again"),
    "model_unusable": (503, "the model cannot be loaded; the log says why"),
    "no_index": (503, "the service runs without a retrieval index"),
    "index_unusable": (503, "the retrieval index cannot be opened; the log says why"),
    "index_mismatch": (503, "the retrieval index was built with another model"),
    "engine_unavailable": (503, "the engine that finds candidates does not answer; try again"),
}
"""Code -> status and line; refused images have the codes of `limits.REASONS`."""

IMAGE_STATUS = {
    "too_many_bytes": 413,
    "too_many_pixels": 413,
    "unknown_format": 415,
    "transfer_syntax": 415,
}
"""Status of a refused image by its reason; 422 for all others."""

_ALWAYS = (
    *("unauthorized", "loopback_only", "body_too_large"),
    *("content_encoding", "host_refused", "internal"),
)
_FORM = (
    *("malformed_body", "body_deadline", "invalid_request", "overloaded"),
    *("deadline", "out_of_memory", "loading", "model_unusable"),
)
_IMAGE = tuple(code for code in REASONS if code not in {"missing", "constant"})
_RETRY_AFTER_S = {
    "overloaded": 1,
    "deadline": 2,
    "out_of_memory": 5,
    "loading": 5,
    "engine_unavailable": 5,
}
_CODE_OF_STATUS = {
    400: "malformed_body",
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
}


class ApiError(HTTPException):
    """A request that ends here with one of the codes above.

    An HTTPException, since FastAPI lets no other pass while it reads a body.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        """`detail`: the field and the rule that it breaks, in words of ours alone."""
        super().__init__(ERRORS[code][0], code)
        self.code, self.detail_line = code, detail


def image_reason(error: ImageError) -> str:
    """Return the fixed line of a refused image."""
    return REASONS.get(error.code, "the image is refused")


def error_response(code: str, request_id: str, detail: str = "") -> JSONResponse:
    """Make the answer to a request that failed with a code of `ERRORS`."""
    status, line = ERRORS[code]
    response = _response(code, request_id, status, f"{line} ({detail})" if detail else line)
    if code in _RETRY_AFTER_S:
        response.headers["Retry-After"] = str(_RETRY_AFTER_S[code])
    if code == "unauthorized":
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def add_handlers(app: FastAPI) -> None:
    """Teach an app to answer every exception of the table."""
    for kind in (HTTPException, ImageError, QueryError, EngineError, RequestValidationError):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    state = state_of(request.scope)
    if isinstance(error, ImageError):
        state.code = error.code
        status, line = IMAGE_STATUS.get(error.code, 422), image_reason(error)
        return _response(error.code, state.request_id, status, line)
    state.code, detail = _code_and_detail(error)
    response = error_response(state.code, state.request_id, detail)
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response


def _code_and_detail(error: Exception) -> tuple[str, str]:
    """Name an error, and what of it the client may hear: fields, rules and words of ours."""
    if isinstance(error, ApiError):
        return error.code, error.detail_line
    if isinstance(error, RequestValidationError):
        return "invalid_request", _broken_rules(error)
    if isinstance(error, QueryError):
        return "invalid_query", str(error)  # it repeats nothing
    if isinstance(error, EngineError):
        return "engine_unavailable", ""
    assert isinstance(error, HTTPException)
    line = error.detail or ""
    remedies = (text for first, text in _FORM_REMEDIES.items() if line.startswith(first))
    return _CODE_OF_STATUS.get(error.status_code, "internal"), next(remedies, "")


# Kinds of pydantic's errors whose messages hold our rule and nothing of what was sent.
_RULES = frozenset(
    (
        *("missing", "literal_error", "string_too_long", "finite_number", "bool_parsing"),
        *("int_parsing", "int_parsing_size", "int_from_float", "float_parsing"),
        *("greater_than_equal", "less_than_equal"),
    )
)
_MOST_DETAILS = 3
_IMAGE_PART = "Send the file as a part `image` with a file name, and a boundary after the last part"
# What the parser of forms says, by its first words -> what to do; none of it was sent.
_FORM_REMEDIES = {
    "Missing boundary": "Content-Type names no boundary; let the client library write this header",
    "Part exceeded": f"a text field is larger than {MAX_FIELD_KB} KiB; send a file as a part with "
    "a file name, an image as the part `image`",
    "Field exceeded": f"a field is larger than {MAX_FIELD_KB} KiB; send files with multipart",
    "Too many files": "more files than the route takes",
    "Too many fields": f"more than {MAX_FIELDS} fields",
    "The Content-Disposition": "a part has no name; an image is the part `image`",
    "Invalid multipart": "the parts do not fit the boundary of Content-Type, or the end is missing",
}


def _broken_rules(error: RequestValidationError) -> str:
    rules = {  # places are names of parameters, which are ours
        str(item["loc"][1]): item["msg"] if item["type"] in _RULES else "Text without a file name"
        for item in error.errors()
        if len(item["loc"]) > 1
    }
    if "image" in rules:
        rules["image"] = _IMAGE_PART
    return "; ".join(f"{name}: {rule}" for name, rule in [*rules.items()][:_MOST_DETAILS])


def _response(code: str, request_id: str, status: int, line: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": line, "request_id": request_id}, status)


def documented(
    *codes: str, has_form: bool = False, has_image: bool = False
) -> dict[int | str, dict[str, Any]]:
    """Describe a route's failures as FastAPI's `responses` takes them: by status.

    `codes`: keys of `ERRORS`, besides those of every route, of every form and of every image.
    """
    of_status: dict[int, dict[str, str]] = {}
    for code in (*_ALWAYS, *(_FORM if has_form else ()), *codes):
        status, line = ERRORS[code]
        of_status.setdefault(status, {})[code] = line
    for code in _IMAGE if has_image else ():
        of_status.setdefault(IMAGE_STATUS.get(code, 422), {})[code] = REASONS[code]
    return {status: _described(lines) for status, lines in sorted(of_status.items())}


def _described(lines: dict[str, str]) -> dict[str, Any]:
    schema = {"properties": {"code": {"enum": list(lines)}}}
    return {
        "model": FailureAnswer,
        "description": "; ".join(f"`{code}`: {line}" for code, line in lines.items()),
        "content": {"application/json": {"schema": schema}},
    }
