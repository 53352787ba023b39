"""Work folders that several files read: what they need to change, they copy."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose prompts do not decide: random weights make almost one vector of all texts."""
    from tests.support.jobs import run_here, write_evaluated  # not for who hands out tests

    return run_here("evaluate", write_evaluated(tmp_path_factory.mktemp("evaluated") / "work"))


@pytest.fixture(scope="session")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose prompts decide, and whose score of pneumonia happens to rise with it."""
    from tests.support.jobs import write_evaluated
    from tests.support.published import publish

    work = write_evaluated(tmp_path_factory.mktemp("decided") / "work")
    publish(work / "model", ["elsewhere"], seed=37, centred=True)
    return work
