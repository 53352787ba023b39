"""What bears an artifact's name is whole; what was written before a kill is found again."""

import errno
import hashlib
import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fixtures.headers import made_by_other_code
from benchmarks.fixtures.users import PLAIN_USER, enterable_folder, plain_user
from medclip_dcl.artifact import (
    HEADER,
    Artifact,
    ArtifactType,
    changed_code,
    fingerprint_changes,
    json_digest,
    make_fingerprint,
    open_artifact,
    read_artifact_header,
    read_object,
    remove_retired,
    write_artifact,
)
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.errors import (
    ArtifactCorrupt,
    ArtifactError,
    ArtifactMissing,
    ArtifactStale,
    ArtifactUnreadable,
    ArtifactUnwritable,
)
from medclip_dcl.files import STAGED, write_text

ARTIFACT = ArtifactType("thing", 1, "make_thing")
COSTLY = ArtifactType("thing", 1, "make_thing", costly=True)


def make(path: Path, text: str = "content", **settings: float) -> Artifact:
    with write_artifact(path, ARTIFACT, make_fingerprint(ARTIFACT, settings, {})) as writer:
        write_text(writer.directory / "data.txt", text)
        return writer.commit({"rows": 1})


def test_sealed_artifact_opens_with_what_was_written(tmp_path: Path) -> None:
    sealed = make(tmp_path / "thing", a=0.2)
    opened = open_artifact(tmp_path / "thing", ARTIFACT)
    assert opened == sealed
    assert opened.file("data.txt").read_text() == "content"
    assert opened.fingerprint["settings"] == {"a": 0.2}
    assert opened.summary == {"rows": 1}


def test_a_fingerprint_names_settings_and_the_content_of_inputs(tmp_path: Path) -> None:
    source = make(tmp_path / "source")
    settings = {"images": ImagesConfig(size_px=64), "shares": (0.1, 0.2)}
    tree = make_fingerprint(ARTIFACT, settings, {"source": source, "table": "ab12"})
    assert (tree["kind"], tree["version"]) == ("thing", 1)
    assert tree["inputs"] == {"source": source.digest, "table": "ab12"}
    assert tree["settings"]["images"]["size_px"] == 64
    assert tree["settings"]["shares"] == [0.1, 0.2]  # as it is read back


def test_a_digest_is_the_sha256_of_sorted_json_in_ascii() -> None:
    expected = hashlib.sha256(b'{"a":[1,null],"b":"\\u00e9"}').hexdigest()
    assert json_digest({"b": "é", "a": [1, None]}) == expected


def test_the_origin_has_versions_and_how_long_it_took(tmp_path: Path) -> None:
    origin = make(tmp_path / "thing").origin
    assert origin["packages"]["numpy"] == np.__version__
    assert 0 <= origin["seconds"] < 60


def test_an_object_is_read_or_its_file_is_named(tmp_path: Path) -> None:
    for text, fault in (('{"a": 1}', ""), ("[1]", "holds no object"), ("{", "cannot be read")):
        artifact = make(tmp_path / "thing", text)
        if fault:
            with pytest.raises(ArtifactCorrupt, match=rf"data.txt of .* {fault}"):
                read_object(artifact, "data.txt", ARTIFACT)
        else:
            assert read_object(artifact, "data.txt", ARTIFACT) == {"a": 1}
    with pytest.raises(ArtifactCorrupt, match=r"thing holds no 'other\.txt'"):
        read_object(artifact, "other.txt", ARTIFACT)


def test_digest_depends_on_content_alone(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one", a=1), make(tmp_path / "two", a=2)
    other = make(tmp_path / "three", text="other", a=1)
    assert one.digest == two.digest != other.digest
    assert one.fingerprint_digest == other.fingerprint_digest != two.fingerprint_digest


@pytest.mark.parametrize("name", ["artifact.json", "data.txt", "folder", "."])
def test_what_may_not_be_read_is_denied_by_name_and_not_called_damaged(name: str) -> None:
    with enterable_folder() as folder:
        with write_artifact(
            folder / "thing", ARTIFACT, make_fingerprint(ARTIFACT, {}, {})
        ) as writer:
            write_text(writer.directory / "data.txt", "content")
            (writer.directory / "folder").mkdir()
            write_text(writer.directory / "folder" / "more.txt", "content")
            writer.commit({})
        denied = folder / "thing" / name
        mode = denied.stat().st_mode
        denied.chmod(0)
        words = f"cannot be read by uid {PLAIN_USER}, .*chmod"
        with plain_user(), pytest.raises(ArtifactUnreadable, match=words):
            open_artifact(folder / "thing", ARTIFACT)
        if name in {HEADER, "."}:
            with plain_user(), pytest.raises(ArtifactUnreadable, match=words):
                read_artifact_header(folder / "thing")
        denied.chmod(mode)
        with plain_user():
            open_artifact(folder / "thing", ARTIFACT)


@pytest.mark.parametrize("position", range(7))
def test_every_flipped_byte_is_detected(tmp_path: Path, position: int) -> None:
    file = make(tmp_path / "thing").file("data.txt")
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(ArtifactCorrupt, match="rerun make_thing"):
        open_artifact(tmp_path / "thing", ARTIFACT)


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


def test_truncated_missing_or_added_file_is_detected(tmp_path: Path) -> None:
    for number, harm in enumerate(
        (
            lambda path: (path / "data.txt").write_bytes(b"c"),
            lambda path: (path / "data.txt").unlink(),
            lambda path: (path / "more.txt").write_text("x"),
            lambda path: os.mkfifo(path / "pipe"),
            lambda path: (path / "link").symlink_to(tmp_path),
            lambda path: (path / "lost").symlink_to("nothing"),
            lambda path: [(path / "data.txt").unlink(), os.mkfifo(path / "data.txt")],
            lambda path: bind(path / "socket"),
        )
    ):
        path = tmp_path / str(number)
        make(path)
        harm(path)
        with pytest.raises(ArtifactCorrupt):
            open_artifact(path, ARTIFACT, verify=False)


def test_hidden_names_are_no_part_of_an_artifact(tmp_path: Path) -> None:
    made = make(tmp_path / "thing")
    for name in (".gitattributes", ".git/objects/ab", ".cache/x"):
        (tmp_path / "thing" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "thing" / name).write_text("x")
    assert open_artifact(tmp_path / "thing", ARTIFACT) == made


@pytest.mark.parametrize("field", ["digest", "fingerprint", "files"])
def test_tampered_header_is_detected(tmp_path: Path, field: str) -> None:
    make(tmp_path / "thing", a=1)
    header = tmp_path / "thing" / HEADER
    tree = json.loads(header.read_text())
    tree[field] = {"other": 1} if field != "digest" else "0" * 64
    header.write_text(json.dumps(tree))
    with pytest.raises(ArtifactCorrupt):
        open_artifact(tmp_path / "thing", ARTIFACT)


@pytest.mark.parametrize("name", ["digest", "fingerprint_digest"])
def test_a_header_that_contradicts_itself_is_damaged(tmp_path: Path, name: str) -> None:
    make(tmp_path / "thing", a=1)
    header = tmp_path / "thing" / HEADER
    tree = json.loads(header.read_text()) | {name: "0" * 64}
    del tree["checksum"]
    tree["checksum"] = json_digest(tree)
    header.write_text(json.dumps(tree, indent=1, sort_keys=True) + "\n")
    with pytest.raises(ArtifactCorrupt, match=r"header of .* is damaged; rerun make_thing"):
        open_artifact(tmp_path / "thing", ARTIFACT)


@pytest.mark.parametrize("text", ["", "{", "5\n", "[]\n", "{}\n", None])
def test_a_header_that_is_none_is_damage_and_nothing_else(tmp_path: Path, text: str | None) -> None:
    make(tmp_path / "thing")
    header = tmp_path / "thing" / HEADER
    if text is None:
        header.unlink()
    else:
        header.write_text(text)
        with pytest.raises(ArtifactCorrupt, match="rerun make_thing"):
            open_artifact(tmp_path / "thing", ARTIFACT)
    with pytest.raises(ArtifactCorrupt, match="rerun its job"):
        read_artifact_header(tmp_path / "thing")


def test_absent_artifact_names_the_job_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ArtifactMissing, match="run make_thing first"):
        open_artifact(tmp_path / "thing", ARTIFACT)


def test_other_format_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "thing")
    with pytest.raises(ArtifactStale, match="version 1"):
        open_artifact(tmp_path / "thing", ArtifactType("thing", 2, "make_thing"))


def test_an_artifact_of_an_earlier_format_is_refused_as_stale(tmp_path: Path) -> None:
    make(tmp_path / "thing")
    header = tmp_path / "thing" / HEADER
    tree = json.loads(header.read_text())
    tree["recipe"] = tree.pop("fingerprint")
    del tree["checksum"]
    tree["checksum"] = json_digest(tree)
    header.write_text(json.dumps(tree, indent=1, sort_keys=True) + "\n")
    with pytest.raises(ArtifactStale, match=r"earlier version of this project; rerun make_thing"):
        open_artifact(tmp_path / "thing", ARTIFACT)


def test_a_costly_draft_of_an_earlier_format_is_refused_and_kept(tmp_path: Path) -> None:
    draft = tmp_path / ".thing.draft"
    draft.mkdir()
    write_text(draft / "recipe.json", "{}")
    write_text(draft / "part.txt", "hours")
    with (
        pytest.raises(ArtifactStale, match=r"by an earlier version.*delete that folder"),
        write_artifact(tmp_path / "thing", COSTLY, make_fingerprint(COSTLY, {}, {})),
    ):
        pass
    assert (draft / "part.txt").read_text() == "hours"


def test_draft_of_the_same_recipe_is_resumed_and_of_another_is_not(tmp_path: Path) -> None:
    path = tmp_path / "thing"
    fingerprint = make_fingerprint(ARTIFACT, {"a": 1}, {})
    with write_artifact(path, ARTIFACT, fingerprint) as writer:
        write_text(writer.directory / "part.txt", "done")
    assert not path.exists()
    with write_artifact(path, ARTIFACT, fingerprint) as writer:
        assert writer.resumed
        assert (writer.directory / "part.txt").read_text() == "done"
    with write_artifact(path, ARTIFACT, make_fingerprint(ARTIFACT, {"a": 2}, {})) as writer:
        assert not writer.resumed
        assert not (writer.directory / "part.txt").exists()


@pytest.mark.parametrize(
    ("note", "header"), [("{", None), ("[]", None), (None, "{}"), (None, "[]"), ("{", "{")]
)
def test_a_draft_that_does_not_say_what_it_is_of_is_begun_again(
    tmp_path: Path, note: str | None, header: str | None
) -> None:
    draft = tmp_path / ".thing.draft"
    draft.mkdir()
    for name, text in (("fingerprint.json", note), (HEADER, header), ("part.txt", "half")):
        if text is not None:
            write_text(draft / name, text)
    with write_artifact(tmp_path / "thing", ARTIFACT, make_fingerprint(ARTIFACT, {}, {})) as writer:
        assert not writer.resumed
        assert not (draft / "part.txt").exists()


def test_every_flipped_or_missing_byte_of_the_header_is_detected(tmp_path: Path) -> None:
    make(tmp_path / "thing", a=1)
    header = tmp_path / "thing" / HEADER
    whole = header.read_bytes()
    for index in range(0, len(whole), 7):
        for bit in (1, 8, 32):
            flipped = bytes([whole[index] ^ bit])
            header.write_bytes(whole[:index] + flipped + whole[index + 1 :])
            with pytest.raises((ArtifactCorrupt, ArtifactStale)):
                open_artifact(tmp_path / "thing", ARTIFACT)
    for text in (b"", whole[:1], whole[: len(whole) // 2], whole[:-1], whole + b"\n"):
        header.write_bytes(text)
        with pytest.raises(ArtifactCorrupt):
            open_artifact(tmp_path / "thing", ARTIFACT)
    header.write_bytes(whole)
    open_artifact(tmp_path / "thing", ARTIFACT)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(1, 5))
def test_a_draft_outlives_a_kill_at_every_step_of_sealing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    path, fingerprint = tmp_path / "thing", make_fingerprint(ARTIFACT, {"a": 1}, {})
    make(path, text="old")
    steps = 0

    def dies(real):  # type: ignore[no-untyped-def]
        def one(*args, **more):  # type: ignore[no-untyped-def]
            nonlocal steps
            steps += 1
            if steps == step:
                raise Killed
            return real(*args, **more)

        return one

    with write_artifact(path, ARTIFACT, fingerprint) as writer:
        write_text(writer.directory / "data.txt", "done")
        with monkeypatch.context() as patch:
            for name in ("replace", "unlink"):
                patch.setattr(Path, name, dies(getattr(Path, name)))
            patch.setattr(shutil, "rmtree", dies(shutil.rmtree))
            with pytest.raises(Killed):
                writer.commit({})
    with write_artifact(path, ARTIFACT, fingerprint) as writer:
        assert writer.resumed
        assert (writer.directory / "data.txt").read_text() == "done"
        assert set(writer.commit({}).files) == {"data.txt"}
    assert open_artifact(path, ARTIFACT).file("data.txt").read_text() == "done"


def test_what_a_killed_writer_left_half_written_is_not_sealed(tmp_path: Path) -> None:
    fingerprint = make_fingerprint(ARTIFACT, {}, {})
    with write_artifact(tmp_path / "thing", ARTIFACT, fingerprint) as writer:
        write_text(writer.directory / "data.txt", "done")
        (writer.directory / f"{STAGED}data.txt.abc").write_text("do")
    with write_artifact(tmp_path / "thing", ARTIFACT, fingerprint) as writer:
        assert writer.resumed
        assert set(writer.commit({}).files) == {"data.txt"}


def test_a_costly_draft_of_another_recipe_is_refused_by_name_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "thing"
    with write_artifact(path, COSTLY, make_fingerprint(COSTLY, {"a": 1}, {})):
        pass
    with write_artifact(path, COSTLY, make_fingerprint(COSTLY, {"a": 2}, {})) as writer:
        assert not writer.resumed  # nothing was lost: the first draft was empty
        write_text(writer.directory / "part.txt", "hours")
    with (
        pytest.raises(ArtifactStale, match=r"settings\.a: 2 -> 3.*delete that folder"),
        write_artifact(path, COSTLY, make_fingerprint(COSTLY, {"a": 3}, {})),
    ):
        pass
    with write_artifact(path, COSTLY, make_fingerprint(COSTLY, {"a": 2}, {})) as writer:
        assert writer.resumed
        assert (writer.directory / "part.txt").read_text() == "hours"


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("spared", [0, 2, 4, 6])
def test_a_disk_that_fails_is_named_and_spares_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int, spared: int
) -> None:
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


def test_an_artifact_that_cannot_be_put_in_place_leaves_the_old_one_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make(tmp_path / "thing", text="old")
    replace = Path.replace

    def fails(self: Path, target: Path) -> Path:
        if self.name == ".thing.draft":
            raise OSError(errno.EIO, "Input/output error")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(ArtifactUnwritable):
        make(tmp_path / "thing", text="new", a=2)
    assert open_artifact(tmp_path / "thing", ARTIFACT) == old


def test_an_old_artifact_left_after_the_commit_goes_once_the_new_one_is_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, retired = tmp_path / "thing", tmp_path / ".thing.retired"
    make(path, text="old")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_args, **_options: None)  # killed before it
        new = make(path, text="new", a=1)
    assert retired.is_dir()
    with write_artifact(path, ARTIFACT, new.fingerprint):  # another process is writing
        remove_retired(path)
    assert retired.is_dir()
    path.rename(tmp_path / "away")
    remove_retired(path)
    assert retired.is_dir()  # the only one there
    (tmp_path / "away").rename(path)
    remove_retired(path)
    assert not retired.exists()
    assert open_artifact(path, ARTIFACT) == new


def test_between_two_renames_the_old_artifact_still_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with write_artifact(
        tmp_path / "thing", ARTIFACT, make_fingerprint(ARTIFACT, {"a": 2}, {})
    ) as draft:
        assert draft.resumed
        found = open_artifact(tmp_path / "thing", ARTIFACT)
        assert (found.digest, found.path.name) == (old.digest, ".thing.retired")  # not its to move
    found = open_artifact(tmp_path / "thing", ARTIFACT)
    assert (found.digest, found.path) == (old.digest, tmp_path / "thing")  # nobody writes it now
    with write_artifact(
        tmp_path / "thing", ARTIFACT, make_fingerprint(ARTIFACT, {"a": 2}, {})
    ) as draft:
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


def test_a_writer_may_clear_its_draft_and_folders_above_it_are_made(tmp_path: Path) -> None:
    path = tmp_path / "above" / "work" / "thing"
    with write_artifact(path, ARTIFACT, make_fingerprint(ARTIFACT, {}, {})) as writer:
        for file in writer.directory.iterdir():
            file.unlink()
        write_text(writer.directory / "data.txt", "new")
        assert set(writer.commit({}).files) == {"data.txt"}


def test_second_writer_is_refused(tmp_path: Path) -> None:
    fingerprint = make_fingerprint(ARTIFACT, {}, {})
    with (
        write_artifact(tmp_path / "thing", ARTIFACT, fingerprint),
        pytest.raises(ArtifactError, match="another process"),
        write_artifact(tmp_path / "thing", ARTIFACT, fingerprint),
    ):
        pass


def test_remaking_replaces_the_artifact_and_leaves_no_litter(tmp_path: Path) -> None:
    make(tmp_path / "thing", text="old")
    make(tmp_path / "thing", text="new", a=2)
    assert (tmp_path / "thing" / "data.txt").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"thing", ".thing.lock"}


def test_changed_parts_name_what_differs() -> None:
    old = {"settings": {"eta": {"a": 0.2, "k": 1}}, "inputs": {"sentences": "aa"}}
    new = {"settings": {"eta": {"a": 0.3, "k": 1}}, "inputs": {"sentences": "aa"}}
    assert fingerprint_changes(old, new) == ["settings.eta.a: 0.2 -> 0.3"]
    old = {"a": 1, "b": {"c": 1}, "d": 4, "e": "x" * 58, "f": "x" * 59}
    assert fingerprint_changes(old, {"a": 1, "b": 2, "g": {"h": 0}}) == [
        'b: {"c": 1} -> 2',
        "d: 4 -> null",
        f'e: "{"x" * 58}" -> null',  # 60 characters; longer values are cut there
        f'f: "{"x" * 56}... -> null',
        'g: null -> {"h": 0}',
    ]


def test_an_artifact_knows_the_code_that_made_it_and_stays_valid(tmp_path: Path) -> None:
    sealed = make(tmp_path / "thing")
    assert changed_code(sealed) == []
    assert len(sealed.origin["code"]["medclip_dcl/files.py"]) == 16
    made_by_other_code(tmp_path / "thing", "medclip_dcl/files.py")
    opened = open_artifact(tmp_path / "thing", ARTIFACT)
    assert changed_code(opened) == ["medclip_dcl/files.py"]
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
            note.write_text(json.dumps(code | {"medclip_dcl/files.py": digest}))
    with write_artifact(tmp_path / "thing", ARTIFACT, fingerprint, same_code=same_code) as writer:
        assert writer.resumed is not (same_code and digest is not None)
        write_text(writer.directory / "data.txt", "content")
        assert set(writer.commit({}).files) == {"data.txt"}
