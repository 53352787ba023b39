"""Readers of sources: what their inputs depend on, and where images lie."""

from pathlib import Path

from medclip_dcl.data.records import BoxTable, ImageRecord, Source, Study
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.sources.readers import images_root
from tests.support.records import studies


def test_inputs_change_with_each_table_file_and_card(tmp_path: Path) -> None:
    (tmp_path / "s1.txt").write_text("Clear.")
    table = tmp_path / "table.csv"
    table.write_text("a")
    reports = [Study("s1", "p1", "s1.txt")]

    def inputs(**more: object) -> dict[str, str]:
        raw = studies(tmp_path, studies=reports, tables={"table": table}, **more)
        raw.images.append(ImageRecord("a", "s1", "p1", "PA", "a.png"))
        return Source(raw, BoxTable([], set(), 0)).inputs

    first = inputs()
    assert set(first) == {"table", "files"}
    assert inputs(card={"name": "owner/set"}).keys() - first.keys() == {"card"}
    for file, changed in (("s1.txt", {"files"}), ("a.png", {"files"}), ("table.csv", {"table"})):
        before = inputs()
        (tmp_path / file).write_text(f"another {file}")
        assert {name for name, digest in inputs().items() if digest != before[name]} == changed


def test_images_are_read_where_they_are_unless_rows_were_written_out() -> None:
    for kind, folder in (("huggingface", "/out/rows"), ("table", "/data")):
        found = images_root(
            SourceConfig(root="/data", kind=kind),
            lambda text: Path(text.replace("${WORK}", "/out")),
        )
        assert found == Path(folder)
