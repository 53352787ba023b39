"""What bears an artifact's name is whole; what was written before a kill is found again."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from medclip_dcl.artifact import (
    HEADER,
    Artifact,
    Kind,
    changed_parts,
    drafting,
    make_recipe,
    open_artifact,
)
from medclip_dcl.errors import (
    ArtifactCorrupt,
    ArtifactError,
    ArtifactMissing,
    ArtifactStale,
    ArtifactUnwritable,
)
from medclip_dcl.files import STAGED, write_text

KIND = Kind("thing", 1, "make_thing")
COSTLY = Kind("thing", 1, "make_thing", costly=True)


def make(path: Path, text: str = "content", **settings: float) -> Artifact:
    with drafting(path, KIND, make_recipe(KIND, settings, {})) as draft:
        write_text(draft.directory / "data.txt", text)
        return draft.seal({"rows": 1})


def test_sealed_artifact_opens_with_what_was_written(tmp_path: Path) -> None:
    sealed = make(tmp_path / "thing", a=0.2)
    opened = open_artifact(tmp_path / "thing", KIND)
    assert opened == sealed
    assert opened.file("data.txt").read_text() == "content"
    assert opened.recipe["settings"] == {"a": 0.2}
    assert opened.summary == {"rows": 1}


def test_digest_depends_on_content_alone(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one", a=1), make(tmp_path / "two", a=2)
    other = make(tmp_path / "three", text="other", a=1)
    assert one.digest == two.digest != other.digest
    assert one.recipe_digest == other.recipe_digest != two.recipe_digest


@pytest.mark.parametrize("position", range(7))
def test_every_flipped_byte_is_detected(tmp_path: Path, position: int) -> None:
    file = make(tmp_path / "thing").file("data.txt")
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(ArtifactCorrupt, match="rerun make_thing"):
        open_artifact(tmp_path / "thing", KIND)


def test_truncated_missing_or_added_file_is_detected(tmp_path: Path) -> None:
    for number, harm in enumerate(
        (
            lambda path: (path / "data.txt").write_bytes(b"c"),
            lambda path: (path / "data.txt").unlink(),
            lambda path: (path / "more.txt").write_text("x"),
        )
    ):
        path = tmp_path / str(number)
        make(path)
        harm(path)
        with pytest.raises(ArtifactCorrupt):
            open_artifact(path, KIND, verify=False)


@pytest.mark.parametrize("field", ["digest", "recipe", "files"])
def test_tampered_header_is_detected(tmp_path: Path, field: str) -> None:
    make(tmp_path / "thing", a=1)
    header = tmp_path / "thing" / HEADER
    tree = json.loads(header.read_text())
    tree[field] = {"other": 1} if field != "digest" else "0" * 64
    header.write_text(json.dumps(tree))
    with pytest.raises(ArtifactCorrupt):
        open_artifact(tmp_path / "thing", KIND)


def test_absent_artifact_names_the_job_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ArtifactMissing, match="run make_thing first"):
        open_artifact(tmp_path / "thing", KIND)


def test_other_format_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "thing")
    with pytest.raises(ArtifactStale, match="version 1"):
        open_artifact(tmp_path / "thing", Kind("thing", 2, "make_thing"))


def test_draft_of_the_same_recipe_is_resumed_and_of_another_is_not(tmp_path: Path) -> None:
    path = tmp_path / "thing"
    recipe = make_recipe(KIND, {"a": 1}, {})
    with drafting(path, KIND, recipe) as draft:
        write_text(draft.directory / "part.txt", "done")
    assert not path.exists()
    with drafting(path, KIND, recipe) as draft:
        assert draft.resumed
        assert (draft.directory / "part.txt").read_text() == "done"
    with drafting(path, KIND, make_recipe(KIND, {"a": 2}, {})) as draft:
        assert not draft.resumed
        assert not (draft.directory / "part.txt").exists()


def test_every_flipped_or_missing_byte_of_the_header_is_detected(tmp_path: Path) -> None:
    make(tmp_path / "thing", a=1)
    header = tmp_path / "thing" / HEADER
    whole = header.read_bytes()
    for place in range(0, len(whole), 7):
        for bit in (1, 8, 32):
            flipped = bytes([whole[place] ^ bit])
            header.write_bytes(whole[:place] + flipped + whole[place + 1 :])
            with pytest.raises((ArtifactCorrupt, ArtifactStale)):
                open_artifact(tmp_path / "thing", KIND)
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        header.write_bytes(whole[:length])
        with pytest.raises(ArtifactCorrupt):
            open_artifact(tmp_path / "thing", KIND)
    header.write_bytes(whole)
    open_artifact(tmp_path / "thing", KIND)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(1, 5))
def test_a_draft_outlives_a_kill_at_every_step_of_sealing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    path, recipe = tmp_path / "thing", make_recipe(KIND, {"a": 1}, {})
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

    with drafting(path, KIND, recipe) as draft:
        write_text(draft.directory / "data.txt", "done")
        with monkeypatch.context() as patch:
            for name in ("replace", "unlink"):
                patch.setattr(Path, name, dies(getattr(Path, name)))
            patch.setattr(shutil, "rmtree", dies(shutil.rmtree))
            with pytest.raises(Killed):
                draft.seal({})
    with drafting(path, KIND, recipe) as draft:
        assert draft.resumed
        assert (draft.directory / "data.txt").read_text() == "done"
        assert set(draft.seal({}).files) == {"data.txt"}
    assert open_artifact(path, KIND).file("data.txt").read_text() == "done"


def test_what_a_killed_writer_left_half_written_is_not_sealed(tmp_path: Path) -> None:
    recipe = make_recipe(KIND, {}, {})
    with drafting(tmp_path / "thing", KIND, recipe) as draft:
        write_text(draft.directory / "data.txt", "done")
        (draft.directory / f"{STAGED}data.txt.abc").write_text("do")
    with drafting(tmp_path / "thing", KIND, recipe) as draft:
        assert draft.resumed
        assert set(draft.seal({}).files) == {"data.txt"}


def test_a_costly_draft_of_another_recipe_is_refused_by_name_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "thing"
    with drafting(path, COSTLY, make_recipe(COSTLY, {"a": 1}, {})):
        pass
    with drafting(path, COSTLY, make_recipe(COSTLY, {"a": 2}, {})) as draft:
        assert not draft.resumed  # nothing was lost: the first draft was empty
        write_text(draft.directory / "part.txt", "hours")
    with (
        pytest.raises(ArtifactStale, match=r"settings\.a: 2 -> 3.*delete that folder"),
        drafting(path, COSTLY, make_recipe(COSTLY, {"a": 3}, {})),
    ):
        pass
    with drafting(path, COSTLY, make_recipe(COSTLY, {"a": 2}, {})) as draft:
        assert draft.resumed
        assert (draft.directory / "part.txt").read_text() == "hours"


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
    assert open_artifact(tmp_path / "thing", KIND) == old
    assert make(tmp_path / "thing", text="new", a=1).recipe["settings"] == {"a": 1}


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
    assert open_artifact(tmp_path / "thing", KIND) == old


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
    assert open_artifact(tmp_path / "thing", KIND).digest == old.digest
    with drafting(tmp_path / "thing", KIND, make_recipe(KIND, {"a": 2}, {})) as draft:
        assert draft.resumed
        draft.seal({})
    assert open_artifact(tmp_path / "thing", KIND).file("data.txt").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"thing", ".thing.lock"}


def test_second_writer_is_refused(tmp_path: Path) -> None:
    recipe = make_recipe(KIND, {}, {})
    with (
        drafting(tmp_path / "thing", KIND, recipe),
        pytest.raises(ArtifactError, match="another process"),
        drafting(tmp_path / "thing", KIND, recipe),
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
    assert changed_parts(old, new) == ["settings.eta.a: 0.2 -> 0.3"]
