"""An index of many shards opens under a low limit of open files."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from medclip_dcl.core.errors import ArtifactCorrupt, TooManyOpenFiles
from medclip_dcl.core.files import raise_open_file_limit
from medclip_dcl.core.tables import map_array, read_table, write_array, write_table
from medclip_dcl.retrieval.embeddings import TEXTS, shard_name, write_pictures

SHARDS, LIMIT = 300, 256

# In a process of its own: a limit that was lowered cannot be raised again.
OPEN = f"""
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
from medclip_dcl.retrieval.embeddings import map_pictures, open_shards, shard_name
folder = Path(sys.argv[1])
shards = open_shards(folder.joinpath, "pooled", {2 * SHARDS}, 2, 3)
pictures = [map_pictures(folder / "pictures.arrow") for _ in range({LIMIT} + 1)]
print(shards.whole().sum(), len(pictures))
"""


def test_more_shards_than_a_process_may_open_files(tmp_path: Path) -> None:
    first = tmp_path / shard_name("pooled", 0)
    write_array(first, np.ones((2, 3), dtype=np.float32))
    for shard in range(1, SHARDS):
        (tmp_path / shard_name("pooled", shard)).hardlink_to(first)
    write_pictures(tmp_path / "pictures.arrow", [b"x"])
    command = [sys.executable, "-c", OPEN, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [f"{6.0 * SHARDS}", f"{LIMIT + 1}"], done.stderr


def test_a_full_table_of_files_is_not_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "texts-00000.npy"
    write_array(path, np.ones((2, 3), dtype=np.float32))
    write_table(tmp_path, TEXTS, [{"text_key": "k", "text": "t", "studies": 1}])
    read_table(tmp_path, TEXTS)  # what it imports is loaded
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with path.open("rb") as stream:
        lowest = stream.fileno()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        with pytest.raises(TooManyOpenFiles, match=rf"may open {lowest} files .*ulimit -n"):
            map_array(path, np.float32)
        with pytest.raises(TooManyOpenFiles, match=r"texts\.parquet"):
            read_table(tmp_path, TEXTS)
        raise_open_file_limit()
        assert map_array(path, np.float32).sum() == 6
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("size", [40, 140])
def test_an_array_that_is_cut_is_damaged(tmp_path: Path, size: int) -> None:
    path = tmp_path / "texts-00000.npy"
    write_array(path, np.ones((2, 3), dtype=np.float32))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArtifactCorrupt, match="cannot be read; rerun the job that made it"):
        map_array(path, np.float32)
