"""One running service for all tests over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.dicom import dicom_bytes, ramp
from tests.support.service import Service, running


@pytest.fixture(scope="session")
def folder(published: Path) -> Path:
    """A committed model and index."""
    return published


@pytest.fixture(scope="session")
def service(folder: Path) -> Iterator[Service]:
    """The service on them."""
    with running(folder, max_body_mb=4, publish_schema=True) as service:
        yield service


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[httpx.Client]:
    """A client of the service."""
    with service.client() as client:
        yield client


@pytest.fixture(scope="session")
def dicom() -> bytes:
    """An image whose brightness is turned round, 96 pixels high and 64 wide."""
    return dicom_bytes(ramp(96, 64), photometric="MONOCHROME1")
