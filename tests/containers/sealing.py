"""Commit a model again in its place, as a job does: python -m tests.containers.sealing FOLDER."""

import sys
from pathlib import Path

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.files import write_bytes
from medclip_dcl.inference.model_package import ARTIFACT

if __name__ == "__main__":
    old = open_artifact(Path(sys.argv[1]), ARTIFACT)
    with write_artifact(old.path, ARTIFACT, old.fingerprint) as writer:
        for name in old.files:
            (writer.directory / name).parent.mkdir(exist_ok=True)
            write_bytes(writer.directory / name, (old.path / name).read_bytes())
        writer.commit(old.summary)
