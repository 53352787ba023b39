"""Stages run on a work folder as its owner runs them, and what they leave in it."""

from pathlib import Path
from typing import Any

import yaml

from medclip_dcl.core.artifact import ArtifactType
from medclip_dcl.core.tables import TableFormat, read_table
from pipelines.__main__ import main
from tests.support.corpus import made
from tests.support.processes import options


def config_for(work: Path, **sections: Any) -> Path:
    """Write the config of a work folder next to it."""
    path = work.with_name(f"{work.name}.yaml")
    path.write_text(yaml.safe_dump({"work": str(work), **sections}), encoding="utf-8")
    return path


def run(stage: str, work: Path, *settings: str, code: int = 0, force: bool = False) -> None:
    """Run a stage by that config; every setting is `key=value`."""
    words = ["--config", str(work.with_name(f"{work.name}.yaml")), *options(settings)]
    assert main([stage, *words, *["--force"] * force]) == code


def rows(work: Path, kind: ArtifactType, form: TableFormat) -> list[dict[str, Any]]:
    return read_table(made(work, kind).path, form).to_pylist()
