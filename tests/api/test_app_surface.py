"""Every route is known to need a key or none, and the matrix that tries them sees an open door.

`benchmarks.reliability.service` asks for all of them in every way.
"""

import logging
from pathlib import Path

import pytest
from fastapi import FastAPI

from api.app import create_app
from api.settings import ServeSettings
from tests.support.surface import KEYED, OPEN, routes_of, try_everything

KEY = "k" * 20 + "0123456789abcdef"


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    path = tmp_path / "key"
    path.write_text(KEY)
    path.chmod(0o400)
    return create_app(ServeSettings(model="none", key_file=str(path), publish_schema=True))


def test_every_route_is_classified(app: FastAPI) -> None:
    served = {path for path in OPEN if "/static/" not in path}  # one route gives the page's files
    assert routes_of(app) == served | KEYED

    @app.get("/fresh")
    async def fresh() -> None: ...

    assert routes_of(app) - OPEN - KEYED == {"/fresh"}


def test_a_door_that_stands_open_is_seen() -> None:
    app = create_app(ServeSettings(model="none", allow_anonymous=True))
    found = try_everything(app, KEY, 97)
    assert len(found.breaches) > 500
    assert not logging.getLogger("medclip.service").disabled
