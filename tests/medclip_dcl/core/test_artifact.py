"""What bears an artifact's name is whole; what was written before a kill is found again."""

import errno
import json
import os
import shutil
import stat
from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from medclip_dcl.core import artifact, artifact_writer, errors
from medclip_dcl.core.artifact import HEADER, ArtifactType, make_fingerprint, open_artifact
from medclip_dcl.core.errors import ArtifactCorrupt, ArtifactStale, ArtifactUnwritable
from medclip_dcl.core.files import STAGED, sha256_file, write_text
from medclip_dcl.data.limits import ImagesConfig
from tests.support.headers import ARTIFACT, COSTLY, change_header, made_by_other_code, make
from tests.support.users import PLAIN_USER, enterable_folder, plain_user


def begin(path: Path, kind=ARTIFACT, *, same_code: bool = False, **settings: object):
    """Begin to write an artifact of some settings, or go on with its draft."""
    fingerprint = make_fingerprint(kind, settings, {})
    return artifact_writer.write_artifact(path, kind, fingerprint, same_code=same_code)


def test_a_sealed_artifact_opens_and_is_named_by_settings_and_content(tmp_path):
    sealed = make(tmp_path / "thing", a=0.2)
    opened = open_artifact(tmp_path / "thing", ARTIFACT)
    assert opened == sealed
    assert opened.file("data.txt").read_text() == "content"
    assert (opened.fingerprint["settings"], opened.summary) == ({"a": 0.2}, {"rows": 1})
    settings = {"images": ImagesConfig(size_px=64), "shares": (0.1, 0.2)}
    tree = make_fingerprint(ARTIFACT, settings, {"source": sealed, "table": "ab12"})
    assert (tree["kind"], tree["version"]) == ("thing", 1)
    assert tree["inputs"] == {"source": sealed.digest, "table": "ab12"}
    assert tree["settings"]["images"]["size_px"] == 64
    assert tree["settings"]["shares"] == [0.1, 0.2]  # as it is read back
    one, two = make(tmp_path / "one", a=1), make(tmp_path / "two", a=2)
    other = make(tmp_path / "three", text="other", a=1)
    assert one.digest == two.digest != other.digest
    assert one.fingerprint_digest == other.fingerprint_digest != two.fingerprint_digest


def test_an_object_is_read_or_its_file_is_named(tmp_path: Path) -> None:
    assert artifact.read_object(make(tmp_path / "thing", '{"a": 1}'), "data.txt", ARTIFACT) == {
        "a": 1
    }
    for text, name, fault in (
        ("[1]", "data.txt", "data.txt of .* holds no object"),
        ("{", "data.txt", "data.txt of .* cannot be read"),
        ("{}", "other.txt", r"thing holds no 'other\.txt'"),
    ):
        with pytest.raises(ArtifactCorrupt, match=fault):
            artifact.read_object(make(tmp_path / "thing", text), name, ARTIFACT)


@pytest.mark.parametrize("name", ["artifact.json", "data.txt", "folder", "."])
def test_what_may_not_be_read_is_denied_by_name_and_not_called_damaged(name: str) -> None:
    with enterable_folder() as folder:
        path = folder / "thing"
        with begin(path) as writer:
            (writer.directory / "folder").mkdir()
            for file in ("data.txt", "folder/more.txt"):
                write_text(writer.directory / file, "content")
            writer.commit({})
        mode = (path / name).stat().st_mode
        (path / name).chmod(0)
        words = f"cannot be read by uid {PLAIN_USER}, .*chmod"
        with plain_user(), pytest.raises(errors.ArtifactUnreadable, match=words):
            open_artifact(path, ARTIFACT)
        if name in {HEADER, "."}:
            with plain_user(), pytest.raises(errors.ArtifactUnreadable, match=words):
                artifact.read_artifact_header(path)
        (path / name).chmod(mode)
        with plain_user():
            open_artifact(path, ARTIFACT)


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: (path / "data.txt").write_bytes(b"c"),
        lambda path: (path / "data.txt").unlink(),
        lambda path: (path / "more.txt").write_text("x"),
        lambda path: os.mkfifo(path / "pipe"),
        lambda path: (path / "link").symlink_to(path.parent),
        lambda path: (path / "lost").symlink_to("nothing"),
        lambda path: [(path / "data.txt").unlink(), os.mkfifo(path / "data.txt")],
        lambda path: os.mknod(path / "socket", stat.S_IFSOCK),
    ],
)
def test_truncated_missing_or_added_file_is_detected(tmp_path: Path, harm) -> None:
    harm(make(tmp_path / "thing").path)
    with pytest.raises(ArtifactCorrupt):
        open_artifact(tmp_path / "thing", ARTIFACT, verify=False)


def test_hidden_names_are_no_part_of_an_artifact(tmp_path: Path) -> None:
    made = make(tmp_path / "thing")
    for name in (".gitattributes", ".git/objects/ab", ".cache/x"):
        (tmp_path / "thing" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "thing" / name).write_text("x")
    assert open_artifact(tmp_path / "thing", ARTIFACT) == made


@pytest.mark.parametrize("name", ["digest", "fingerprint_digest"])
def test_a_header_that_contradicts_itself_is_damaged(tmp_path: Path, name: str) -> None:
    change_header(make(tmp_path / "thing", a=1).path, lambda tree: tree.update({name: "0" * 64}))
    with pytest.raises(ArtifactCorrupt, match=r"header of .* is damaged; rerun make_thing"):
        open_artifact(tmp_path / "thing", ARTIFACT)


def test_earlier_formats_are_refused_as_stale(tmp_path):
    made = make(tmp_path / "thing").path
    with pytest.raises(ArtifactStale, match="version 1"):
        open_artifact(made, ArtifactType("thing", 2, "make_thing"))
    change_header(made, lambda tree: tree.update(recipe=tree.pop("fingerprint")))
    with pytest.raises(ArtifactStale, match=r"earlier version of this project; rerun make_thing"):
        open_artifact(made, ARTIFACT)


@pytest.mark.parametrize("text", ["", "{", "5\n", "[]\n", "{}\n", None])
def test_a_header_that_is_none_is_damage_and_nothing_else(tmp_path: Path, text: str | None) -> None:
    header = make(tmp_path / "thing").path / HEADER
    header.unlink()
    if text is not None:
        header.write_text(text)
        with pytest.raises(ArtifactCorrupt, match="rerun make_thing"):
            open_artifact(tmp_path / "thing", ARTIFACT)
    with pytest.raises(ArtifactCorrupt, match="rerun its job"):
        artifact.read_artifact_header(tmp_path / "thing")


@pytest.mark.parametrize(("name", "step"), [(HEADER, 23), ("data.txt", 1)])
def test_every_flipped_or_missing_byte_is_detected(tmp_path, name, step):
    file = make(tmp_path / "thing", a=1).path / name
    whole = file.read_bytes()
    for number, index in enumerate(range(0, len(whole), step)):
        flipped = bytes([whole[index] ^ (1, 8, 32)[number % 3]])
        file.write_bytes(whole[:index] + flipped + whole[index + 1 :])
        with pytest.raises((ArtifactCorrupt, ArtifactStale), match="make_thing"):
            open_artifact(tmp_path / "thing", ARTIFACT)
    for text in (b"", whole[:1], whole[: len(whole) // 2], whole[:-1], whole + b"\n"):
        file.write_bytes(text)
        with pytest.raises(ArtifactCorrupt):
            open_artifact(tmp_path / "thing", ARTIFACT)
    file.write_bytes(whole)
    open_artifact(tmp_path / "thing", ARTIFACT)


def test_changed_parts_name_what_differs() -> None:
    old = {"a": 1, "b": {"c": {"k": 1, "l": 0.2}}, "d": 4, "e": "x" * 58, "f": "x" * 59}
    new = {"a": 1, "b": {"c": {"k": 1, "l": 0.3}}, "d": {"c": 1}, "g": {"h": 0}}
    assert artifact.fingerprint_changes(old, new) == [
        "b.c.l: 0.2 -> 0.3",
        'd: 4 -> {"c": 1}',
        f'e: "{"x" * 58}" -> null',  # 60 characters; longer values are cut there
        f'f: "{"x" * 56}... -> null',
        'g: null -> {"h": 0}',
    ]
    assert artifact.fingerprint_changes({"b": {"c": 1}}, {"b": 2}) == ['b: {"c": 1} -> 2']


# --- Files that were hashed before


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> artifact.Artifact:
    """An artifact whose files were there for a while when they were hashed."""
    monkeypatch.setattr(artifact, "_TICK_NS", 0)
    return open_artifact(make(tmp_path / "thing").path, ARTIFACT)


def hashed_files(made: artifact.Artifact, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that opening an artifact hashes."""
    sha256 = Mock(side_effect=sha256_file)
    monkeypatch.setattr(artifact, "sha256_file", sha256)
    open_artifact(made.path, ARTIFACT)
    return [call.args[0].name for call in sha256.call_args_list]


def test_a_file_is_hashed_once_and_again_after_a_copy_or_a_change(settled, tmp_path, monkeypatch):
    assert hashed_files(settled, monkeypatch) == []
    copied = shutil.copytree(settled.path, tmp_path / "copied")  # the note too, and all mtimes
    copy = open_artifact(copied, ARTIFACT, verify=False)
    file, times = settled.file("data.txt"), settled.file("data.txt").stat()
    assert copy.file("data.txt").stat().st_mtime_ns == times.st_mtime_ns
    assert hashed_files(copy, monkeypatch) == ["data.txt"]
    assert hashed_files(copy, monkeypatch) == []
    file.write_bytes(b"CONTENT")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # what changed it hides that
    with pytest.raises(ArtifactCorrupt, match=r"data\.txt .* damaged"):
        open_artifact(settled.path, ARTIFACT)


def test_what_a_disk_changes_by_itself_is_found_by_verification_alone(
    settled: artifact.Artifact,
) -> None:
    file = settled.file("data.txt")
    file.write_bytes(b"CONTENT")
    artifact.note_stamps(
        settled, {"data.txt": artifact.file_stamp(file)}
    )  # as if its times had stayed
    assert open_artifact(settled.path, ARTIFACT) == settled
    with pytest.raises(ArtifactCorrupt, match=r"data\.txt .* damaged"):
        artifact.verify_artifact(settled.path)


def test_a_file_that_is_as_young_as_its_note_is_hashed_again(tmp_path, monkeypatch):
    made = make(tmp_path / "thing")
    for _ in range(2):
        assert hashed_files(made, monkeypatch) == ["data.txt"]


@pytest.mark.parametrize("note", ["", "{}", "[]", '{"digest": 1, "files": 2}', "\xff"])
def test_a_damaged_note_is_no_note(settled, monkeypatch, note):
    artifact._note_of(settled).write_bytes(note.encode("latin-1"))
    assert hashed_files(settled, monkeypatch) == ["data.txt"]


def test_who_may_write_to_a_folder_cannot_vouch_for_it(settled, tmp_path, monkeypatch):
    file, note = settled.file("data.txt"), artifact._note_of(settled)
    assert settled.path not in note.parents
    file.write_bytes(b"CONTENT")  # as long as what was hashed
    stamps = {"data.txt": artifact.file_stamp(file)}
    forged = json.dumps({"digest": settled.digest, "files": stamps})
    shared = tmp_path / "shared/medclip-dcl"
    (shared / "verified").mkdir(parents=True)
    shared.chmod(0o777)
    (shared / "verified" / note.name).write_text(forged)
    for name in (".verified", f".{note.name}"):
        (settled.path / name).write_text(forged)
    for folder in (os.environ["XDG_CACHE_HOME"], str(shared.parent)):
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        with pytest.raises(ArtifactCorrupt, match=r"data\.txt .* damaged"):
            open_artifact(settled.path, ARTIFACT)


def test_notes_on_artifacts_of_long_ago_are_removed(settled, tmp_path, monkeypatch):
    monkeypatch.setattr(artifact, "_MOST_NOTES", 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = [open_artifact(make(tmp_path / f"thing-{number}").path, ARTIFACT) for number in range(4)]
    notes = {file.name for file in artifact._note_of(settled).parent.iterdir()}
    assert notes == {artifact._note_of(item).name for item in made[2:]}


# --- Drafts and commits


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
    faults = chain([None] * spared, repeat(OSError(fault, os.strerror(fault))))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=faults))
        with pytest.raises(ArtifactUnwritable, match=os.strerror(fault)):
            make(tmp_path / "thing", text="new", a=1)
    assert open_artifact(tmp_path / "thing", ARTIFACT) == old
    assert make(tmp_path / "thing", text="new", a=1).fingerprint["settings"] == {"a": 1}


def test_an_old_artifact_goes_once_the_new_one_that_replaced_it_is_reused(tmp_path, monkeypatch):
    path, retired = tmp_path / "thing", tmp_path / ".thing.retired"
    make(path, text="old")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_args, **_options: None)  # killed before it
        new = make(path, text="new", a=1)
    with begin(path, a=1):  # another process is writing
        artifact.remove_retired(path)
    path.rename(tmp_path / "away")
    artifact.remove_retired(path)
    assert retired.is_dir()  # the only one there
    (tmp_path / "away").rename(path)
    artifact.remove_retired(path)
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
    refused = pytest.raises(errors.ArtifactError, match="another process")
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
