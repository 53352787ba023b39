"""A part of the hostile requests that `benchmarks.reliability.service` sends in full."""

import re

import pytest

from testing.hostile import CANARY, named
from testing.service import Service
from testing.wire import Request, exchange

NAMED = named()
KEY = "unused"  # the service of the tests asks for none


@pytest.mark.parametrize(
    "group", ["head:", "charset", "raw:", "form:", "GET", "method", "phrase: n"]
)
def test_hostile_requests_are_answered_without_a_fault_or_an_echo(
    service: Service, group: str
) -> None:
    chosen = {name: request for name, request in NAMED.items() if group in name}
    chosen = dict(list(chosen.items())[:: 1 + len(chosen) // 25])
    assert len(chosen) > 2
    wrong = [name for name, request in chosen.items() if not is_sound(service, request)]
    assert wrong == []
    with service.client() as client:
        assert client.get("/ready").status_code == 200
        assert CANARY not in client.get("/metrics").text
    assert CANARY not in service.log.read_text(encoding="utf-8")


def is_sound(service: Service, request: Request) -> bool:
    found = re.fullmatch(r"http://([^:]+):(\d+)/", service.url)
    assert found is not None
    answer = exchange((found[1], int(found[2])), request.encoded(KEY), patience_s=1.0)
    echoes = CANARY.encode() in answer.head + answer.body
    return not echoes and (answer.status < 500 or answer.status == 503)
