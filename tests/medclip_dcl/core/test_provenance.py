"""Provenance: the code and the packages that made an artifact, and what differs now."""

import json
from pathlib import Path

import numpy as np
import pytest

from medclip_dcl.core.artifact import make_fingerprint, open_artifact
from medclip_dcl.core.artifact_writer import changed_code, write_artifact
from medclip_dcl.core.files import write_text
from tests.support.headers import ARTIFACT, made_by_other_code, make


def test_the_origin_has_versions_and_how_long_it_took(tmp_path: Path) -> None:
    origin = make(tmp_path / "thing").origin
    assert origin["packages"]["numpy"] == np.__version__
    assert 0 <= origin["seconds"] < 60


def test_an_artifact_knows_the_code_that_made_it_and_stays_valid(tmp_path: Path) -> None:
    sealed = make(tmp_path / "thing")
    assert changed_code(sealed) == []
    assert len(sealed.origin["code"]["medclip_dcl/core/files.py"]) == 16
    made_by_other_code(tmp_path / "thing", "medclip_dcl/core/files.py")
    opened = open_artifact(tmp_path / "thing", ARTIFACT)
    assert changed_code(opened) == ["medclip_dcl/core/files.py"]
    assert (opened.digest, opened.fingerprint) == (sealed.digest, sealed.fingerprint)


@pytest.mark.parametrize("same_code", [True, False])
@pytest.mark.parametrize("digest", ["0" * 16, None])
def test_a_draft_of_other_code_is_resumed_unless_the_same_is_asked_for(
    tmp_path: Path, *, same_code: bool, digest: str | None
) -> None:
    fingerprint = make_fingerprint(ARTIFACT, {}, {})
    with write_artifact(tmp_path / "thing", ARTIFACT, fingerprint) as writer:
        note = writer.directory / "code.json"
        code = json.loads(note.read_text())
        if digest:
            note.write_text(json.dumps(code | {"medclip_dcl/core/files.py": digest}))
    with write_artifact(tmp_path / "thing", ARTIFACT, fingerprint, same_code=same_code) as writer:
        assert writer.resumed is not (same_code and digest is not None)
        write_text(writer.directory / "data.txt", "content")
        assert set(writer.commit({}).files) == {"data.txt"}
