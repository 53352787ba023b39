"""milvus-lite on a file, in this process, or as a server of its own, on a free port of loopback."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import free_port, listens

PATIENCE_S = 60.0


@contextmanager
def milvus_file(folder: Path) -> Iterator[str]:
    """Return the path of a file, as an address; this process lets go of it at the end."""
    from milvus_lite.server_manager import server_manager_instance

    uri = str(folder / "vectors.db")
    try:
        yield uri
    finally:
        server_manager_instance.release_server(uri)


@contextmanager
def milvus_server(folder: Path) -> Iterator[str]:
    """Start the server on a folder; its address; stop it at the end."""
    port, end = free_port(), time.monotonic() + PATIENCE_S
    script = "import sys; from milvus_lite.cmdline import main; sys.exit(main())"
    words = ["server", "--data-dir", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.DEVNULL)
    try:
        while not listens(port):
            assert time.monotonic() < end, "the server did not start"
            assert process.poll() is None, "the server has ended"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
