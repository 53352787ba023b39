"""What is wrong with an answer is seen, and what is right is not taken for wrong."""

import pytest

from benchmarks.reliability.service import _KEY, _faults
from tests.support.hostile import CANARY
from tests.support.wire import Answer, Request

KNOWN = {("/classify", "post"): {"422 invalid_request", "503 overloaded"}}
FAILED = b'{"code": "%s", "message": "x", "request_id": "y"}'


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (Answer(200, b"", b"{}"), []),
        (Answer(422, b"", FAILED % b"invalid_request"), []),
        (Answer(503, b"", FAILED % b"overloaded"), []),
        (Answer(400, b"", b"Invalid HTTP request received."), []),
        (Answer(0, b"", b""), ["silent"]),
        (Answer(500, b"", b"x"), ["faults"]),
        (Answer(502, b"", b"x"), ["faults"]),
        (Answer(422, b"", FAILED % b"internal"), ["undocumented"]),
        (Answer(418, b"", FAILED % b"invalid_request"), ["undocumented"]),
        (Answer(200, b"", CANARY.encode()), ["echoes"]),
        (Answer(200, b"X-A: " + _KEY.encode(), b""), ["echoes"]),
    ],
)
def test_an_answer_is_judged(answer: Answer, wrong: list[str]) -> None:
    for path in ("/classify", "/v1/classify"):
        assert list(_faults(Request(path), answer, KNOWN)) == wrong


def test_an_unknown_route_has_nothing_documented() -> None:
    assert list(_faults(Request("/nowhere"), Answer(404, b"", FAILED % b"not_found"), KNOWN)) == []
