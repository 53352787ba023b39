"""One tiny corpus for all tests that only read it."""

from pathlib import Path

import pytest

from tests.support.corpus import write_corpus


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 training studies, of which every fourth has two images, and 8 of validation."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "work")
