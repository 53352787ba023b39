"""A stage that is killed after a unit of its work goes on from it and ends with the same bytes.

No worker of it outlives it. `benchmarks.reliability` kills every command at each of its writes, and
at random moments.
"""

import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from medclip_dcl.core.artifact import read_artifact_header
from medclip_dcl.synthetic import tree
from pipelines.job import main_of
from pipelines.stages import STAGES
from tests.support import forkserver
from tests.support.corpus import TINY_DEMO
from tests.support.processes import options

DEADLINE_S = 120
SETTINGS = (
    *TINY_DEMO,
    *("language_model.steps=40", "language_model.hidden_size=16", "language_model.layers=1"),
    *("language_model.vocabulary=300", "train.steps=24"),
)
UNITS = {
    "generate_studies": ".studies.draft/parts/*.json",
    "prepare_images": ".prepared.draft/shard-*",
    "fit_language_model": ".language_model.draft/fit_state.safetensors",
    "score_sentences": ".likelihoods.draft/parts/part-*",
    "train": "checkpoints/step-*",
}
"""Stage -> what a whole unit of its work leaves."""
RUN = ("generate_studies", "build_manifest", "prepare_images", "split_sentences", "read_claims",
       "fit_language_model", "score_sentences", "build_eta_cache", "train")  # fmt: skip


def use_small_units() -> None:
    tree.UNIT_PATIENTS = 8


def words(work: Path, *more: str) -> list[str]:
    return ["--config", "demo", *options([*SETTINGS, f"work={work}", *more])]


def digest(work: Path, stage: str) -> str:
    return read_artifact_header(work / STAGES[stage].makes).digest


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    work = tmp_path_factory.mktemp("whole") / "work"
    for stage in RUN:
        assert main_of(stage)(words(work)) == 0
    return work


@pytest.mark.parametrize("stage", UNITS)
def test_a_killed_stage_goes_on_and_ends_with_the_same_bytes(whole, tmp_path, monkeypatch, stage):
    monkeypatch.setattr(tree, "UNIT_PATIENTS", 8)
    made = STAGES[stage].makes
    work = shutil.copytree(whole, tmp_path / "work", ignore=shutil.ignore_patterns(made))
    shutil.rmtree(work / "checkpoints", ignore_errors=True)
    start = ("pipelines.train", words(work))  # on as many threads, or it rounds otherwise
    if stage != "train":
        start = ("pipelines.__main__", [stage, *words(work, "workers=2")])
    before = (f"{__name__}:use_small_units", ())
    process = forkserver.start(*start, tmp_path / "log", before=before)
    end = time.monotonic() + DEADLINE_S
    while not any(work.glob(UNITS[stage])):
        assert process.is_alive(), (tmp_path / "log").read_text()
        assert time.monotonic() < end
        time.sleep(0.001)
    workers = psutil.Process(process.pid).children()
    process.kill()
    process.join()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []
    assert process.exitcode == -signal.SIGKILL
    units = {path: path.stat().st_ino for path in work.glob(UNITS[stage])}
    assert units
    assert not (work / made).exists()
    assert main_of(stage)(words(work)) == 0
    assert digest(work, stage) == digest(whole, stage)
    for path, inode in units.items():  # units that became files of the artifact
        final = work / made / path.name
        assert not final.exists() or final.stat().st_ino == inode, path.name
