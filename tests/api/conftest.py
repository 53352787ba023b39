"""Two running services for all tests over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The process that hands out tests reads this file, and would spend seconds on these.
if TYPE_CHECKING:
    import httpx

    from tests.support.service import Service


@pytest.fixture(scope="session")
def service(published: Path) -> "Iterator[Service]":
    """The service on a model and its index."""
    from tests.support.service import running

    with running(published, max_body_mb=4, publish_schema=True) as service:
        yield service


@pytest.fixture(scope="session")
def client(service: "Service") -> "Iterator[httpx.Client]":
    """A client of the service."""
    with service.client() as client:
        yield client


@pytest.fixture(scope="session")
def doubtful_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with heads and a range, whose first finding was refused."""
    from medclip_dcl.inference.predictor import load
    from tests.support.published import add_heads, publish, random_range, refuse

    folder = tmp_path_factory.mktemp("doubtful")
    model = refuse(publish(folder / "model", known=random_range()), "effusion", "no decision")
    add_heads(model, load(model.path, "cpu").config.model.similarity.dim)
    return folder


@pytest.fixture(scope="session")
def doubtful(doubtful_folder: Path) -> "Iterator[Service]":
    """The service on that model, without an index."""
    from tests.support.service import running

    with running(doubtful_folder, index="") as service:
        yield service


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the key `tests.support.wire.KEY`."""
    from tests.support.wire import KEY

    path = tmp_path_factory.mktemp("keys") / "key"
    path.write_text(KEY)
    path.chmod(0o400)
    return path
