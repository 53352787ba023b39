"""What every test gets: no network beyond this machine, and the folder of real test data."""

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import loopback_only, published, test_data

if TYPE_CHECKING:  # not for the process that hands out tests
    from medclip_dcl.data.images import Decoder

__all__ = ["loopback_only", "published", "test_data"]


@pytest.fixture(autouse=True)
def silence_ends() -> Iterator[None]:
    """Undo what the gateway's commands do to their process, which tests share with others."""
    root, hook = logging.getLogger(), threading.excepthook
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    threading.excepthook = hook


@pytest.fixture(scope="session")
def decoder() -> "Iterator[Decoder]":
    """Two decode workers for all tests: each takes half a second to start."""
    from medclip_dcl.data.images import Decoder
    from medclip_dcl.data.limits import ImagesConfig

    with Decoder(ImagesConfig(), 2) as decoder:
        yield decoder
