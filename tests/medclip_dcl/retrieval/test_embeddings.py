from pathlib import Path

import numpy as np
import pytest

from medclip_dcl.core.errors import ArtifactCorrupt
from medclip_dcl.core.tables import write_array
from medclip_dcl.retrieval.embeddings import Shards, open_shards, shard_name

ROWS, SHARD_ROWS = 10, 4


def written(folder: Path, rows: int = ROWS) -> np.ndarray:
    regions = np.random.default_rng(0).standard_normal((rows, 2, 3, 5)).astype(np.float16)
    for shard in range(-(-rows // SHARD_ROWS)):
        part = regions[shard * SHARD_ROWS : (shard + 1) * SHARD_ROWS]
        write_array(folder / shard_name("regions", shard), part)
    return regions


def opened(folder: Path, rows: int = ROWS, dim: int = 5) -> Shards:
    return open_shards(folder.joinpath, "regions", rows, SHARD_ROWS, dim)


def test_rows_are_read_across_shards_as_stored(tmp_path: Path) -> None:
    regions, shards = written(tmp_path), opened(tmp_path)
    rows = np.array([9, 0, 3, 4, 4])
    np.testing.assert_array_equal(shards.gather(rows), regions[rows])
    np.testing.assert_array_equal(shards.whole(), regions)


@pytest.mark.parametrize(("rows", "dim"), [(9, 5), (12, 5), (ROWS, 4)])
def test_shards_of_another_size_are_refused(tmp_path: Path, rows: int, dim: int) -> None:
    written(tmp_path)
    with pytest.raises(ArtifactCorrupt, match="rebuild it"):
        opened(tmp_path, rows, dim)
