"""An old index that does not serve is counted, and kills come where one replaces the other."""

import multiprocessing
import shutil
import signal
from pathlib import Path

import pytest

from benchmarks.fixtures.corpus import write_config
from benchmarks.reliability.crash_targets import TINY, IndexSwap, arm, write_fixture
from medclip_dcl.artifact import ArtifactType, make_fingerprint
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.files import write_text
from pipelines.build_index import main

ARTIFACT = ArtifactType("index", 1, "build_index")


def build(work: Path) -> None:
    config_file = write_config(work / "config.yaml", work, **TINY["build_index"])
    assert main(["--config", str(config_file)]) == 0


def test_an_index_that_is_gone_damaged_or_answers_otherwise_is_counted(tmp_path: Path) -> None:
    base = write_fixture(tmp_path / "base", build)
    new = Path(shutil.copytree(base, tmp_path / "new"))
    build(new)
    index_swap = IndexSwap.between(base, new)
    for work in (base, new):
        index_swap.ask(work)
    (base / "index").rename(base / ".index.retired")
    index_swap.ask(base)
    assert index_swap.counts() == {"asked": 3, "unserved": 0, "replacing": 1}

    for part in ("pooled-00003.npy", "artifact.json"):
        path = new / "index" / part
        whole = path.read_bytes()
        path.write_bytes(whole[:-2] + b"00")
        index_swap.ask(new)
        path.write_bytes(whole)
    assert index_swap.unserved == 2
    shutil.rmtree(base / "index")
    index_swap.ask(base)
    assert index_swap.unserved == 3
    otherwise = IndexSwap(index_swap.digest, old=index_swap.new, new=index_swap.old)
    otherwise.ask(new)
    assert otherwise.unserved == 1


def test_an_old_index_that_answers_as_the_new_one_proves_nothing(tmp_path: Path) -> None:
    work = write_fixture(tmp_path / "base", build)
    shutil.rmtree(work / "model")
    shutil.copytree(work / "old_model", work / "model")
    with pytest.raises(ValueError, match="give them other models"):
        IndexSwap.between(work, work)


def write(work: Path, text: str) -> None:
    with write_artifact(
        ARTIFACT.at(work), ARTIFACT, make_fingerprint(ARTIFACT, {"text": text}, {})
    ) as writer:
        write_text(writer.directory / "text", text)
        writer.commit({})


def armed(work: Path, name: str) -> None:
    arm(name)
    write(work, "new")


@pytest.mark.parametrize(("name", "left"), [("index", None), (".index.draft", "new")])
def test_a_writer_is_killed_after_the_first_rename_or_the_second(
    tmp_path: Path, name: str, left: str | None
) -> None:
    write(tmp_path, "old")
    process = multiprocessing.get_context("fork").Process(target=armed, args=(tmp_path, name))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / ".index.retired/text").read_text() == "old"
    folder = tmp_path / "index/text"
    assert (folder.read_text() if folder.exists() else None) == left
