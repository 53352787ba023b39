"""One running service for all tests over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The process that hands out tests reads this file, and would spend seconds on these.
if TYPE_CHECKING:
    import httpx

    from tests.support.service import Service


@pytest.fixture(scope="session")
def folder(published: Path) -> Path:
    """A committed model and index."""
    return published


@pytest.fixture(scope="session")
def service(folder: Path) -> "Iterator[Service]":
    """The service on them."""
    from tests.support.service import running

    with running(folder, max_body_mb=4, publish_schema=True) as service:
        yield service


@pytest.fixture(scope="session")
def client(service: "Service") -> "Iterator[httpx.Client]":
    """A client of the service."""
    with service.client() as client:
        yield client


@pytest.fixture(scope="session")
def dicom() -> bytes:
    """An image whose brightness is turned round, 96 pixels high and 64 wide."""
    from tests.support.dicom import dicom_bytes, ramp

    return dicom_bytes(ramp(96, 64), photometric="MONOCHROME1")
