"""The search for canaries finds them wherever an artifact could hold one."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.reliability.privacy import HEADER, NAMES_PLACE, WORD, search


def write_to(base: Path, name: str) -> Path:
    path = base / "out" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def table(word: str) -> pa.Table:
    return pa.table({"id": ["a"] * 500, "path": [word] * 500})


@pytest.mark.parametrize("form", ["parquet", "arrow", "log", "json", "name"])
def test_header_canary_is_found_in_every_form(tmp_path: Path, form: str) -> None:
    path = write_to(tmp_path, f"work/x/t.{form}")
    if form == "parquet":
        pq.write_table(table(HEADER), path, compression="zstd")
    elif form == "arrow":
        with pa.ipc.new_file(path, table(HEADER).schema) as writer:
            writer.write_table(table(HEADER))
    elif form == "name":
        write_to(tmp_path, f"work/x/{HEADER}.bin").write_bytes(b"\0")
    else:
        path.write_bytes(b"\xff" + HEADER.lower().encode() + b"\xff")
    assert len(search(tmp_path)["header_leaks"]) == 1


def test_words_of_reports_may_stand_where_texts_are_kept_alone(tmp_path: Path) -> None:
    for name in ("work/sentences/sentences.parquet", "work/claims/claims.parquet"):
        pq.write_table(table(WORD), write_to(tmp_path, name))
    write_to(tmp_path, "logs/job.log").write_text(WORD)
    found = search(tmp_path)
    assert found["texts_kept"] == ["work/sentences/sentences.parquet"]
    assert found["text_leaks"] == ["logs/job.log", "work/claims/claims.parquet"]
    assert found["header_leaks"] == []


def test_names_of_files_may_stand_in_the_column_of_paths_alone(tmp_path: Path) -> None:
    pq.write_table(table(HEADER), write_to(tmp_path, NAMES_PLACE))
    assert search(tmp_path)["header_leaks"] == []
    columns = {"id": [HEADER], "path": ["a"]}
    pq.write_table(pa.table(columns), write_to(tmp_path, NAMES_PLACE))
    assert search(tmp_path)["header_leaks"] == [NAMES_PLACE]
