"""Tables in parts: however they are divided, the manifest is that of the whole."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medclip_dcl.data.manifest import write_manifest
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.errors import StudyError
from medclip_sources import table_parts
from medclip_sources.readers import read_source

COLUMNS = {"study_id": "s", "subject_id": "p", "report": "r", "split": "x"}
LABELLED = {**COLUMNS, "labels": {"Edema": "e", "Fracture": "f"}}


def settings(columns: dict[str, Any], table: Any = "t.csv") -> SourceConfig:
    return SourceConfig.model_validate(
        {"kind": "table", "table": table, "columns": columns, "max_reject_share": 0.9}
    )


def write_rows(path: Path, count: int = 400) -> None:
    """Write rows of which many repeat a study, name other patients or splits, or lack something."""
    rng = np.random.default_rng(3)
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["s", "p", "r", "x", "e", "f"])
        for study, patient in rng.integers(count // 2, size=(count, 2)).tolist():
            subject, study_id = f"p{patient // 4}", f"ß{study}"
            table.writerow(
                [
                    rng.choice([study_id] * 9 + ["", " "]),
                    rng.choice([subject, f" {subject} "] * 4 + ["", "  "]),
                    rng.choice(["FINDINGS: Clear.\nIMPRESSION: Normal.", f"No {study}.", "", "  "]),
                    rng.choice(["train", "Valid", "test", ""]),
                    rng.choice(["1", "0.0", "-1", "", "absent"]),
                    rng.choice(["true", "", "nan"]),
                ]
            )


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_a_manifest_in_parts_is_that_of_the_whole(
    tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_parts, "PART_ROWS", rows)
    write_rows(tmp_path / "t.csv")
    write_rows(tmp_path / "u.csv", 30)
    unnamed = {name: column for name, column in LABELLED.items() if name != "study_id"}
    of_table = {"train": "t.csv", "validate": "u.csv"}
    for number, given in enumerate(
        [
            settings(LABELLED),
            settings(COLUMNS, of_table),
            settings(unnamed),
            settings({**LABELLED, "subject_id": ""}, of_table),
        ]
    ):
        folders = []
        for in_parts in (False, True):
            source = read_source(given, lambda text: tmp_path / text, in_parts=in_parts)
            folders.append(tmp_path / f"{number}{in_parts}")
            folders[-1].mkdir()
            summary = write_manifest(folders[-1], source, given)
            (folders[-1] / "summary").write_text(f"{summary}{source.inputs}")
        whole, divided = ({f.name: f.read_bytes() for f in each.iterdir()} for each in folders)
        assert divided == whole
        assert len(whole) == 6


def test_nothing_is_read_before_a_part_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("s,p,r,x\na,b,Clear.,nowhere\n", encoding="utf-8")
    source = read_source(settings(COLUMNS), lambda text: tmp_path / text, in_parts=True)
    with pytest.raises(StudyError, match="row 0 of the table names no split"):
        write_manifest(tmp_path, source, settings(COLUMNS))


def test_images_and_lists_of_labels_are_read_whole() -> None:
    assert table_parts.has_parts(settings(LABELLED))
    for more in ({"path": "i"}, {"labels": "found"}):
        assert not table_parts.has_parts(settings({**COLUMNS, **more}))
