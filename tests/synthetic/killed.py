"""A build of an index in a process of its own, killed in the middle."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARDS = ("--set", "index.shard_rows=1", "--set", "index.pictures=false")
"""Small shards, so that there are many moments."""


def killed_at_shard(
    config_file: Path, draft: Path, shard: int, meanwhile: Callable[[], object] | None = None
) -> int:
    """Build with `SHARDS` until a shard is there, then kill; give the exit code.

    `meanwhile` is called again and again as long as the build runs.
    """
    words = [sys.executable, "-m", "pipelines.build_index", "--config", str(config_file), *SHARDS]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (draft / f"pooled-{shard:05d}.npy").is_file():
            if meanwhile is None:
                time.sleep(0.0005)
            else:
                meanwhile()
        process.kill()
    return process.returncode
