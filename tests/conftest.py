"""What every test gets: fixed seeds, one thread, no network."""

import gc
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["PROGRESS_FORMAT"] = "json"  # what jobs report, as tests read it

import jaxtyping
import numpy as np
import pytest

# Notes on hashed artifacts and engines' graphs are the tests' own, and stay for the next run.
_CACHE = Path(tempfile.gettempdir()) / f"medclip-tests-{os.geteuid()}"
os.environ.setdefault("XDG_CACHE_HOME", str(_CACHE))
_MEMORY = Path("/dev/shm")  # a file that is written over waits for a disk, there for none
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def pytest_collection_finish() -> None:
    """Let the collector pass over what was imported: half a million objects that no test frees."""
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    import torch  # not for the process that only hands out tests

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (libraries still draw from it)
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` formats a stack a missing GPU
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse connections that leave this machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if self.family in {socket.AF_INET, socket.AF_INET6}:
            host = address[0] if isinstance(address, tuple) else address
            if host not in {"127.0.0.1", "::1", "localhost"}:
                raise OSError("tests may not leave this machine")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and its index, for tests that only read it or serve it."""
    from tests.support.service import store  # not for the process that only hands out tests

    return store(tmp_path_factory.mktemp("published"))


@pytest.fixture
def test_data() -> Path:
    """The folder of real test data that TEST_DATA names."""
    folder = os.environ.get("TEST_DATA", "")
    if not folder:
        pytest.skip("TEST_DATA is not set: no real data at hand")
    return Path(folder)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Let wrong arguments through to the code, which has to refuse them by itself."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
