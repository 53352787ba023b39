"""What bears an artifact's name is whole; what was written before a kill is found again."""

import json
from pathlib import Path

import pytest

from medclip_dcl.artifacts.files import write_text
from medclip_dcl.artifacts.frame import (
    HEADER,
    Artifact,
    Kind,
    changed_parts,
    drafting,
    make_recipe,
    open_artifact,
)
from medclip_dcl.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactStale

KIND = Kind("thing", 1, "make_thing")


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
