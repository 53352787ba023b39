"""Seal a model again in its place, as a job does: python -m tests.docker.sealing FOLDER."""

import shutil
import sys
from pathlib import Path

from medclip_dcl.artifacts.files import write_bytes
from medclip_dcl.artifacts.frame import drafting, open_artifact
from medclip_dcl.artifacts.published import KIND

if __name__ == "__main__":
    old = open_artifact(Path(sys.argv[1]), KIND)
    with drafting(old.path, KIND, old.recipe) as draft:
        for name in old.files:
            (draft.directory / name).parent.mkdir(exist_ok=True)
            write_bytes(draft.directory / name, (old.path / name).read_bytes())
        draft.seal(old.summary)
    shutil.rmtree(old.path.with_name(f".{old.path.name}.retired"), ignore_errors=True)
