"""One stub of the service for the tests of a file."""

from collections.abc import Iterator

import pytest

from tests.support.stub_service import StubService, stub_service


@pytest.fixture(scope="module")
def service() -> Iterator[StubService]:
    with stub_service() as stub:
        yield stub
