"""What a config will take, before anything is prepared and after."""

from dataclasses import fields
from itertools import islice
from pathlib import Path

import pytest

from pipelines import plan
from pipelines.config import load_config
from testing.corpus import write_config, write_corpus

PAPER = "configs/train/mimic_cxr.yaml"
Answers = dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "work")


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the count of memory, most of a plan's time, where nothing is said about it."""
    nothing = plan.MemoryEstimate(*[1] * len(fields(plan.MemoryEstimate)))
    monkeypatch.setattr(plan, "estimate_training_memory", lambda *_: nothing)


def answers(
    capsys: pytest.CaptureFixture[str], config_file: Path | str, *more: str
) -> tuple[int, Answers, list[list[str]]]:
    """Exit code, state and words by question, and the rows of the table."""
    code = plan.main(["--config", str(config_file), *more])
    lines = capsys.readouterr().out.splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("false negatives"))
    found = {line[6:20].strip(): (line[:6].strip(), line[20:]) for line in lines[:head]}
    return code, found, [line.split("  ") for line in lines[head + 1 :]]


def test_a_recipe_without_data_is_planned_and_says_what_it_cannot_know(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXR_BERT", raising=False)
    monkeypatch.delenv("IMAGENET", raising=False)
    work = ("--set", f"work={tmp_path / 'work'}")
    code, found, _ = answers(capsys, PAPER, "--seconds", "0", *work)
    assert code == 0
    assert found["steps"][0] == found["disk"][0] == found["hours"][0] == "note"
    assert "give --studies" in found["steps"][1]
    assert "prepared" in found["disk"][1]
    assert "CXR_BERT" in found["text encoder"][1]
    assert "${IMAGENET}, which is not set; export IMAGENET" in found["image encoder"][1]
    assert "120.2 million parameters" in found["memory"][1]
    assert "global batch" not in found


def test_a_table_and_a_grid_are_planned_run_by_run(
    capsys: pytest.CaptureFixture[str],
    no_memory: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "runs_at_a_time", lambda: 4)
    more = ("--set", f"work={tmp_path}")
    more += ("--images-per-s", "1000", "--studies", "1000", "--table1")
    grid = tmp_path / "grid.yaml"
    grid.write_text("axes: {train.global_batch: [32, 64]}\nsettings: {train.steps: 1500}\n")
    _, found, _ = answers(capsys, "configs/table1.yaml", *more, "--grid", str(grid))
    # Nine rows of the paper and five of ours: 7 x 5 + 2 x 10, 5 + 4 x 10, and 2 + 2 + 2 + 5 tuned.
    hours = 111 * 750 * 64 / 1000 / 3600
    assert found["table1"][1].startswith(f"111 runs, {hours:.3g} hours of training")
    assert f"4 at a time by default here, {hours / 4:.3g} hours" in found["table1"][1]
    # Three seeds of 1,500 steps with 32 pairs and with 64.
    assert found["sweep"][1].startswith(f"6 runs, {3 * 1500 * 96 / 1000 / 3600:.3g} hours")
    grid.write_text("axes: {train.epochs: [1, 2]}\nsettings: {train.steps: null}\n")
    given = (*more[:2], "--images-per-s", "1000", "--grid", str(grid))
    _, found, _ = answers(capsys, "configs/table1.yaml", *given)
    assert found["sweep"][1] == "6 runs of epochs: give --studies for their hours"
    _, found, _ = answers(capsys, "configs/table1.yaml", "--seconds", "0", *more[:2], "--table1")
    assert found["table1"][1].startswith("111 runs; their hours are not known")


@pytest.mark.usefixtures("no_memory")
def test_numbers_that_are_given_give_passes_hours_and_bytes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ["--studies", "6400", "--images", "1000", "--images-per-s", "640"]
    more = ["--set", f"work={tmp_path / 'work'}", "--set", "train.steps=36000"]
    code, found, _ = answers(capsys, PAPER, *given, *more)
    assert code == 0
    assert "360.0 passes over 6400 training studies" in found["steps"][1]  # 100 steps a pass
    assert found["hours"] == ("ok", "1 at 640 images/s (as given), validation and saving apart")
    assert "prepared 0.262 GB" in found["disk"][1]  # 1000 * 512**2


def test_what_earlier_jobs_made_is_read(
    capsys: pytest.CaptureFixture[str], corpus: Path, tmp_path: Path
) -> None:
    config_file = write_config(tmp_path / "config.yaml", corpus)
    code, found, table = answers(capsys, config_file, "--seconds", "4")
    assert code == 0
    assert "4.0 passes over 24 training studies" in found["steps"][1]  # 12 steps of 3 a pass
    assert found["hours"][0] == "ok"
    assert "8 pairs a step" in found["hours"][1]
    assert "text encoder" not in found
    assert found["disk"][0] == "ok"
    (mean,) = (row for row in table if row[-1] and "mean" in "".join(row))
    assert float(mean[-1]) == pytest.approx(63 * 0.05)  # batches 8, 16, 32, 64


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize(
    ("settings", "state", "words"),
    [
        ("train.global_batch=8", "ok", "8 studies, in batches of 8"),
        ("train.global_batch=12", "note", "in batches of 8, with fewer negatives than the 11"),
        ("train.global_batch=18 train.processes=9", "fault", "the validation split has 8 studies"),
    ],
)
def test_a_small_validation_split_is_named_before_training(
    corpus: Path, tmp_path: Path, settings: str, state: str, words: str
) -> None:
    file = write_config(tmp_path / "config.yaml", corpus, train={"validate_every_steps": 5})
    config = load_config(file, settings.split())
    found = {item.question: item for item in islice(plan.plan(config, None, None, None, 0), 2)}
    assert found["validation"].state == state
    assert words in found["validation"].words


def test_weights_that_the_run_learns_before_are_not_missed(tmp_path: Path) -> None:
    changes = [f"work={tmp_path}", "model.image.pretrained=${WORK}/image_weights"]
    config = load_config(Path(PAPER), changes)
    found = [item.question for item in islice(plan.plan(config, None, None, None, 0), 2)]
    assert found == ["steps", "text encoder"]


def test_more_than_the_machine_has_is_a_fault(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    more = ["--seconds", "0", "--images", "10000000000", "--studies", "9"]
    code, found, _ = answers(
        capsys, PAPER, *more, "--set", f"work={tmp_path}", "--set", "train.global_batch=8192"
    )
    assert code == 2
    assert {name for name, (state, _) in found.items() if state == "fault"} == {
        "memory",
        "disk",
        "steps",
    }


@pytest.mark.usefixtures("no_memory")
def test_more_processes_leave_the_method_alone_and_larger_batches_do_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    more = ["--seconds", "0", "--set", f"work={tmp_path}", "--set", "train.processes=8"]
    _, found, _ = answers(capsys, PAPER, *more)
    assert found["processes"][1].startswith("8 share a batch of 64: N stays 63")
    assert "global batch" not in found
    _, found, _ = answers(capsys, PAPER, *more, "--set", "train.global_batch=512")
    state, words = found["global batch"]
    assert state == "note"
    assert "102 false negatives at the cap, not 12.6" in words  # .2 * 511, .2 * 63
    assert "eta.a=0.02466" in words  # .2 * 63 / 511
    _, found, _ = answers(
        capsys, PAPER, *more, "--set", "train.global_batch=512", "--set", "objective.kind=infonce"
    )
    assert {"global batch", "floor"}.isdisjoint(found)
