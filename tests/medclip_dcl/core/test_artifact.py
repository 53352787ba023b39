"""What bears an artifact's name is whole; what was written before a kill is found again."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from medclip_dcl.core import artifact
from medclip_dcl.core.artifact import HEADER, ArtifactType, make_fingerprint, open_artifact
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import ArtifactCorrupt, ArtifactStale, ArtifactUnreadable
from medclip_dcl.core.files import sha256_file, write_text
from medclip_dcl.data.limits import ImagesConfig
from tests.support.headers import ARTIFACT, change_header, make
from tests.support.users import PLAIN_USER, enterable_folder, plain_user


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
        with write_artifact(path, ARTIFACT, make_fingerprint(ARTIFACT, {}, {})) as writer:
            (writer.directory / "folder").mkdir()
            for file in ("data.txt", "folder/more.txt"):
                write_text(writer.directory / file, "content")
            writer.commit({})
        mode = (path / name).stat().st_mode
        (path / name).chmod(0)
        words = f"cannot be read by uid {PLAIN_USER}, .*chmod"
        with plain_user(), pytest.raises(ArtifactUnreadable, match=words):
            open_artifact(path, ARTIFACT)
        if name in {HEADER, "."}:
            with plain_user(), pytest.raises(ArtifactUnreadable, match=words):
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
    names: list[str] = []

    def sha256(file: Path) -> str:
        names.append(file.name)
        return sha256_file(file)

    monkeypatch.setattr(artifact, "sha256_file", sha256)
    open_artifact(made.path, ARTIFACT)
    return names


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
    forged = json.dumps(
        {"digest": settled.digest, "files": {"data.txt": artifact.file_stamp(file)}}
    )
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
