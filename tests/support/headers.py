"""Small artifacts, and headers that are changed and signed again."""

import json
from pathlib import Path

from medclip_dcl.core.artifact import HEADER, Artifact, ArtifactType, json_digest, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.files import write_text

ARTIFACT = ArtifactType("thing", 1, "make_thing")
COSTLY = ArtifactType("thing", 1, "make_thing", costly=True)


def make(path: Path, text: str = "content", **settings: float) -> Artifact:
    """Make an artifact of one file, `data.txt`."""
    with write_artifact(path, ARTIFACT, make_fingerprint(ARTIFACT, settings, {})) as writer:
        write_text(writer.directory / "data.txt", text)
        return writer.commit({"rows": 1})


def made_by_other_code(path: Path, name: str) -> None:
    """Let an artifact's header say that a module was another one when it was made."""
    header = path / HEADER
    tree = json.loads(header.read_text(encoding="utf-8"))
    assert name in tree["origin"]["code"]
    tree["origin"]["code"][name] = "0" * 16
    del tree["checksum"]
    tree["checksum"] = json_digest(tree)
    header.write_text(json.dumps(tree, indent=1, sort_keys=True) + "\n", encoding="utf-8")
