"""Small artifacts, and headers that are changed and signed again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from medclip_dcl.core.artifact import (
    HEADER,
    Artifact,
    ArtifactType,
    header_text,
    json_digest,
    make_fingerprint,
)
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.files import write_text

ARTIFACT = ArtifactType("thing", 1, "make_thing")
COSTLY = ArtifactType("thing", 1, "make_thing", costly=True)


def make(path: Path, text: str = "content", **settings: float) -> Artifact:
    """Make an artifact of one file, `data.txt`."""
    with write_artifact(path, ARTIFACT, make_fingerprint(ARTIFACT, settings, {})) as writer:
        write_text(writer.directory / "data.txt", text)
        return writer.commit({"rows": 1})


def change_header(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of an artifact; its checksum is right."""
    tree = json.loads((folder / HEADER).read_text(encoding="utf-8"))
    del tree["checksum"]
    change(tree)
    text = header_text({**tree, "checksum": json_digest(tree)})
    (folder / HEADER).write_text(text, encoding="utf-8")


def made_by_other_code(path: Path, name: str) -> None:
    """Let an artifact's header say that a module was another one when it was made."""
    change_header(path, lambda tree: tree["origin"]["code"].update({name: "0" * 16}))
