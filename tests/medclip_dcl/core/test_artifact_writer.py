"""Drafts: what was written before a kill is found again, and a commit is whole or not there."""

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medclip_dcl.core import artifact_writer
from medclip_dcl.core.artifact import HEADER, make_fingerprint, open_artifact, remove_retired
from medclip_dcl.core.errors import ArtifactError, ArtifactStale, ArtifactUnwritable
from medclip_dcl.core.files import STAGED, write_text
from tests.support.headers import ARTIFACT, COSTLY, made_by_other_code, make


def begin(path: Path, kind=ARTIFACT, *, same_code: bool = False, **settings: object):
    """Begin to write an artifact of some settings, or go on with its draft."""
    fingerprint = make_fingerprint(kind, settings, {})
    return artifact_writer.write_artifact(path, kind, fingerprint, same_code=same_code)


def test_a_draft_is_resumed_by_its_recipe_alone_and_seals_nothing_half_written(tmp_path) -> None:
    path = tmp_path / "above" / "thing"
    with begin(path, a=1) as writer:
        write_text(writer.directory / "part.txt", "done")
    assert not path.exists()
    with begin(path, a=1) as writer:
        assert writer.resumed
        assert (writer.directory / "part.txt").read_text() == "done"
    with begin(path, a=2) as writer:
        assert not writer.resumed
        assert not (writer.directory / "part.txt").exists()
    with begin(path, a=1) as writer:
        write_text(writer.directory / "part.txt", "done")
        (writer.directory / f"{STAGED}part.txt.abc").write_text("do")
    with begin(path, a=1) as writer:
        assert writer.resumed
        assert set(writer.commit({}).files) == {"part.txt"}


@pytest.mark.parametrize(
    ("note", "header"), [("{", None), ("[]", None), (None, "{}"), (None, "[]"), ("{", "{")]
)
def test_a_draft_that_does_not_say_what_it_is_of_is_begun_again(tmp_path, note, header):
    draft = tmp_path / ".thing.draft"
    draft.mkdir()
    for name, text in (("draft.json", note), (HEADER, header), ("part.txt", "half")):
        if text is not None:
            write_text(draft / name, text)
    with begin(tmp_path / "thing") as writer:
        assert not writer.resumed
        assert not (draft / "part.txt").exists()


@pytest.mark.parametrize("step", range(1, 5))
def test_a_draft_outlives_a_kill_at_every_step_of_sealing(tmp_path, monkeypatch, step):
    path, steps = tmp_path / "thing", iter(range(1, 100))
    make(path, text="old")

    def dying(real):
        def one(*args, **more):
            if next(steps) == step:
                raise KeyboardInterrupt
            return real(*args, **more)

        return one

    with begin(path, a=1) as writer:
        write_text(writer.directory / "data.txt", "done")
        with monkeypatch.context() as patch:
            for place, name in ((Path, "replace"), (Path, "unlink"), (shutil, "rmtree")):
                patch.setattr(place, name, dying(getattr(place, name)))
            with pytest.raises(KeyboardInterrupt):
                writer.commit({})
    with begin(path, a=1) as writer:
        assert writer.resumed
        assert (writer.directory / "data.txt").read_text() == "done"
        assert set(writer.commit({}).files) == {"data.txt"}
    assert open_artifact(path, ARTIFACT).file("data.txt").read_text() == "done"


def test_a_costly_draft_of_another_recipe_or_format_is_refused_by_name_and_kept(tmp_path):
    path = tmp_path / "thing"
    with begin(path, COSTLY, a=1):
        pass
    with begin(path, COSTLY, a=2) as writer:
        assert not writer.resumed  # nothing was lost: the first draft was empty
        write_text(writer.directory / "part.txt", "hours")
    old = tmp_path / ".other.draft"
    old.mkdir()
    for name in ("recipe.json", "part.txt"):
        write_text(old / name, "hours")
    for name, words in (
        ("thing", r"settings\.a: 2 -> 3.*delete that folder"),
        ("other", r"by an earlier version.*delete that folder"),
    ):
        with pytest.raises(ArtifactStale, match=words), begin(tmp_path / name, COSTLY, a=3):
            pass
    assert (old / "part.txt").read_text() == "hours"
    with begin(path, COSTLY, a=2) as writer:
        assert writer.resumed
        assert (writer.directory / "part.txt").read_text() == "hours"


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("spared", [0, 2, 4, 6])
def test_a_disk_that_fails_is_named_and_spares_what_was_there(tmp_path, monkeypatch, fault, spared):
    old = make(tmp_path / "thing", text="old")
    fsync, calls = os.fsync, iter(range(100))

    def fails(handle: int) -> None:
        if next(calls) >= spared:
            raise OSError(fault, os.strerror(fault))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(ArtifactUnwritable, match=os.strerror(fault)):
        make(tmp_path / "thing", text="new", a=1)
    monkeypatch.setattr(os, "fsync", fsync)
    assert open_artifact(tmp_path / "thing", ARTIFACT) == old
    assert make(tmp_path / "thing", text="new", a=1).fingerprint["settings"] == {"a": 1}


def test_an_old_artifact_goes_once_the_new_one_that_replaced_it_is_reused(tmp_path, monkeypatch):
    path, retired = tmp_path / "thing", tmp_path / ".thing.retired"
    make(path, text="old")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_args, **_options: None)  # killed before it
        new = make(path, text="new", a=1)
    with begin(path, a=1):  # another process is writing
        remove_retired(path)
    path.rename(tmp_path / "away")
    remove_retired(path)
    assert retired.is_dir()  # the only one there
    (tmp_path / "away").rename(path)
    remove_retired(path)
    assert not retired.exists()
    assert open_artifact(path, ARTIFACT) == new


def test_between_two_renames_the_old_artifact_still_opens(tmp_path, monkeypatch):
    old = make(tmp_path / "thing", text="old")
    replace = Path.replace

    def fails_for_good(self: Path, target: Path) -> Path:
        if self.name in {".thing.draft", ".thing.retired"}:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fails_for_good)
        with pytest.raises(ArtifactUnwritable):
            make(tmp_path / "thing", text="new", a=2)
    assert not (tmp_path / "thing").exists()
    with begin(tmp_path / "thing", a=2) as draft:
        assert draft.resumed
        found = open_artifact(tmp_path / "thing", ARTIFACT)
        assert (found.digest, found.path.name) == (old.digest, ".thing.retired")  # not its to move
    found = open_artifact(tmp_path / "thing", ARTIFACT)
    assert (found.digest, found.path) == (old.digest, tmp_path / "thing")  # nobody writes it now
    with begin(tmp_path / "thing", a=2) as draft:
        draft.commit({})
    assert open_artifact(tmp_path / "thing", ARTIFACT).file("data.txt").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"thing", ".thing.lock"}


def test_an_old_artifact_that_a_kill_left_is_not_read_in_place_of_the_new(tmp_path: Path) -> None:
    make(tmp_path / ".thing.retired", text="old")
    new = make(tmp_path / "thing", text="new")
    make(tmp_path / ".thing.retired", text="old")
    assert open_artifact(tmp_path / "thing", ARTIFACT) == new
    assert make(tmp_path / "thing", text="newer").file("data.txt").read_text() == "newer"
    assert not (tmp_path / ".thing.retired").exists()


def test_second_writer_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(ArtifactError, match="another process")
    with begin(tmp_path / "thing"), refused, begin(tmp_path / "thing"):
        pass


def test_a_killed_run_goes_on_after_its_last_unit_and_nothing_of_it_is_sealed(tmp_path):
    asked: list[int] = []
    done: list[int] = []

    def doubled(part: Sequence[int]) -> list[dict[str, Any]]:
        asked.extend(part)
        if asked == [*range(6)]:
            raise KeyboardInterrupt
        return [{"value": 2 * item} for item in part]

    with pytest.raises(KeyboardInterrupt):
        artifact_writer.map_resumable(tmp_path, "x", range(6), 2, doubled, lambda _: None)
    rows = artifact_writer.map_resumable(tmp_path, "x", range(6), 2, doubled, done.append)
    assert asked[6:] == [4, 5]
    assert [row["value"] for row in rows] == [0, 2, 4, 6, 8, 10]
    assert done == [2, 2, 2]
    (tmp_path / "kept").touch()
    artifact_writer.remove_resumable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_an_artifact_knows_the_code_that_made_it_and_stays_valid(tmp_path):
    sealed = make(tmp_path / "thing")
    assert sealed.origin["packages"]["numpy"] == np.__version__
    assert 0 <= sealed.origin["seconds"] < 60
    assert artifact_writer.changed_code(sealed) == []
    assert len(sealed.origin["code"]["medclip_dcl/core/files.py"]) == 16
    made_by_other_code(tmp_path / "thing", "medclip_dcl/core/files.py")
    opened = open_artifact(tmp_path / "thing", ARTIFACT)
    assert artifact_writer.changed_code(opened) == ["medclip_dcl/core/files.py"]
    assert (opened.digest, opened.fingerprint) == (sealed.digest, sealed.fingerprint)


@pytest.mark.parametrize("same_code", [True, False])
@pytest.mark.parametrize("digest", ["0" * 16, None])
def test_a_draft_of_other_code_is_resumed_unless_the_same_is_asked_for(tmp_path, same_code, digest):
    with begin(tmp_path / "thing") as writer:
        note = writer.directory / "draft.json"
        if digest:
            draft = json.loads(note.read_text())
            draft["code"]["medclip_dcl/core/files.py"] = digest
            note.write_text(json.dumps(draft))
    with begin(tmp_path / "thing", same_code=same_code) as writer:
        assert writer.resumed is not (same_code and digest is not None)
        write_text(writer.directory / "data.txt", "content")
        assert set(writer.commit({}).files) == {"data.txt"}
