"""One stub of the service for the tests of a file, and the decode workers of all gateways."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # not for the process that hands out tests
    from medclip_dcl.data.images import Decoder
    from tests.support.stub_service import StubService


@pytest.fixture(scope="module")
def service() -> "Iterator[StubService]":
    from tests.support.stub_service import stub_service

    with stub_service() as stub:
        yield stub


@pytest.fixture(scope="session", autouse=True)
def shared_workers(decoder: "Decoder") -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "close", lambda: None)
        patch.setattr("medclip_hospital.gateway.stages.Decoder", lambda *_: decoder)
        yield
