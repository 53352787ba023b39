"""A grid of settings: its points, slices, and what it writes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from medclip_dcl.core.artifact import open_artifact, read_artifact_header
from medclip_dcl.core.errors import ArtifactMissing, ConfigError
from medclip_dcl.evaluation import results
from medclip_dcl.training import checkpoint, logging
from pipelines.__main__ import main
from pipelines.config import load_config
from pipelines.job import Job
from pipelines.sweep import FIGURES, FOLDER, LOG, Grid, Run, Sweep, grid_points, read_grid
from tests.support.corpus import write_config
from tests.support.jobs import write_evaluated

ROOT = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]
Tree = dict[str, Any]

JUDGE = "validation_report_auc"
ROWS: Tree = {
    "settings": {"eta.source": "constant", "objective.floor": "zero"},
    "rows": {
        "plain": {"settings": {"eta.constant": 0.1}, "published": {"signed CNR": 1.46}},
        "other": {"title": "theirs", "settings": {"eta.constant": 0.0}, "seeds": [4]},
    },
    "seeds": [0, 1],
    "figures": {"CNR": "grounding.cnr", "signed CNR": "grounding.cnr_signed"},
    "judge": JUDGE,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = write_evaluated(tmp_path_factory.mktemp("corpus") / "work")
    for name in ("model", "eta_cache"):  # which a run makes
        shutil.rmtree(work / name)
    return work


def arguments_of(work: Path, grid: Tree, **train: object) -> list[str]:
    config_file = write_config(
        work / "config.yaml",
        work,
        evaluate={"prompts": "${WORK}/prompts.yaml", "bootstrap": 30, "retrieval_pool": 4},
        source={"root": "${WORK}"},
        train={"steps": 4, "validate_every_steps": 2, "validate_images": 8, **train},
    )
    with config_file.open("a") as stream:
        stream.write("jobs: [train]\n")  # everything before it is there
    (work / "little.yaml").write_text(yaml.safe_dump(grid, sort_keys=False))
    return ["--config", str(config_file), "--grid", str(work / "little.yaml")]


def models_of(work: Path) -> dict[str, str]:
    """Digest of the model of each run."""
    folder = work / FOLDER / "little"
    return {
        str(path.parent.relative_to(folder)): read_artifact_header(path).digest
        for path in sorted(folder.rglob("model"))
    }


def read_tree(work: Path) -> Tree:
    return json.loads((work / FOLDER / "little" / FIGURES).read_text(), parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def made(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two points, one of them over two seeds, in slices that do not overlap."""
    work = shutil.copytree(corpus, tmp_path_factory.mktemp("made") / "work")
    arguments = arguments_of(work, ROWS)
    for part, runs in (("0", 2), ("other", 3)):
        assert main(["sweep", *arguments, "--points", part]) == 0
        assert len(models_of(work)) == runs  # of each slice alone
    assert not (work / FOLDER / "little" / FIGURES).exists()
    assert main(["sweep", *arguments]) == 0
    return work


def test_points_are_every_combination_and_named_by_their_values() -> None:
    axes = {"objective.floor": ["floor", "zero"], "eta.constant": [0.0, 0.1]}
    named = {"row": {"a": {"train.steps": 2}, "b": {"train.steps": 3}}}
    points = grid_points(Grid.model_validate({"axes": axes | named}))
    assert len(points) == 8
    assert points[1].name == "floor=floor,constant=0.0,row=b"
    assert points[1].at == {"objective.floor": "floor", "eta.constant": 0.0, "row": "b"}
    assert points[1].changes == {"objective.floor": "floor", "eta.constant": 0.0, "train.steps": 3}
    alike = {"axes": {"model.text.dim": ["a/b"], "model.similarity.dim": [1]}}
    (point,) = grid_points(Grid.model_validate(alike))
    assert point.name == "model.text.dim=a_b,model.similarity.dim=1"
    with pytest.raises(ConfigError, match="share a folder's name"):
        grid_points(Grid.model_validate({"axes": {"model.image.pretrained": ["a/b", "a b"]}}))


def test_the_tree_has_every_point_with_the_mean_of_its_runs(made: Path, capsys: Capture) -> None:
    tree = read_tree(made)
    first, second = tree["points"]
    assert (first["name"], first["seeds"], second["seeds"]) == ("plain", [0, 1], [4])
    folder = made / FOLDER / "little" / "plain"
    values = [
        results.read_figures(open_artifact(folder / f"seed-{seed}/results", results.ARTIFACT))
        ["questions"]["grounding"]["figures"]["cnr"]["value"]
        for seed in (0, 1)
    ]  # fmt: skip
    cnr = first["figures"]["CNR"]
    assert cnr["values"] == values
    assert cnr["value"] == pytest.approx(sum(values) / 2)
    assert cnr["deviation"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    before = models_of(made)
    speed = arguments_of(made, ROWS, save_every_steps=2)
    assert main(["sweep", *speed]) == 0  # settings of speed make no other model
    assert models_of(made) == before
    shown = capsys.readouterr().out
    for words in (f"{cnr['value']:.3f}+-{cnr['deviation']:.3f}", "theirs", "(1.46)"):
        assert words in shown


def test_a_changed_setting_makes_its_runs_anew_and_leaves_the_others(made: Path) -> None:
    before = models_of(made)
    rows = {**ROWS["rows"], "other": {"settings": {"eta.constant": 0.15}, "seeds": [4]}}
    assert main(["sweep", *arguments_of(made, {**ROWS, "rows": rows}), "--points", "other"]) == 0
    after = models_of(made)
    assert [name for name in before if before[name] != after[name]] == ["other/seed-4"]


def test_the_table_has_what_chose_each_run_on_validation(made: Path) -> None:
    row = read_tree(made)["points"][0]
    judged = row["figures"]["validation"]["values"]
    assert (row["seeds"], len(judged)) == ([0, 1], 2)
    for seed, score in zip(row["seeds"], judged, strict=True):
        log = logging.read_metrics(made / FOLDER / f"little/plain/seed-{seed}/checkpoints")
        values = [line[JUDGE] for line in log if line.get(JUDGE) is not None]
        assert len(values) == 2
        assert score == pytest.approx(max(values), abs=1e-4)


def test_of_a_loss_the_lowest_is_best(tmp_path: Path) -> None:
    run = Run("a", 0, tmp_path, {})
    log = checkpoint.ARTIFACT.at(tmp_path)
    log.mkdir()
    lines = [{"step": 1}] + [{"step": s, "validation_auc": v, "validation_loss": v}
                             for s, v in ((2, 0.7), (4, float("nan")), (6, 0.6))]  # fmt: skip
    (log / logging.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert (run.judged("validation_auc"), run.judged("validation_loss")) == (0.7, 0.6)
    with pytest.raises(ArtifactMissing, match="has no cnr in its log; delete it and run again"):
        run.judged("cnr")


def test_a_run_that_fails_is_named_and_its_exit_code_is_passed_on(corpus, tmp_path, capsys):
    work = shutil.copytree(corpus, tmp_path / "work")
    grid = {"settings": {"eta.source": "pll"}, "rows": {"dcl_lm": {}}, "seeds": [0]}
    assert main(["sweep", *arguments_of(work, grid)]) == 4  # the corpus has no likelihoods
    assert "dcl_lm/seed-0 ended with exit code 4" in capsys.readouterr().err
    assert "likelihoods" in (work / FOLDER / "little/dcl_lm/seed-0" / LOG).read_text()


@pytest.mark.parametrize("recipe", ["table1", "train/mimic_cxr"])
@pytest.mark.parametrize(
    "grid", sorted((ROOT / "configs/sweeps").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_papers_own_grids_fit_every_recipe(grid: Path, recipe: str, tmp_path: Path) -> None:
    validating = ["train.validate_images=1000"]
    job = Job("sweep", load_config(ROOT / f"configs/{recipe}.yaml", validating), tmp_path)
    planned = Sweep(job, grid.stem, read_grid(grid)).plan()
    runs = [run for each in planned.values() for run in each]
    assert len({json.dumps(run.settings | {"work": ""}) for run in runs}) == len(runs)
    assert grid.name in (ROOT / "configs/README.md").read_text()


def test_table_1_has_the_papers_nine_rows_with_its_figures() -> None:
    grid = read_grid(ROOT / "configs/sweeps/table1.yaml")
    assert len({row.title.partition(",")[0] for row in grid.rows.values()}) == 9
    # Wang et al. 2023, Table 1: the last row's AUC, ACC, CNR, mIoU, Recall and MedR
    assert [*grid.rows["dcl_lm_2_35"].published.values()] == [0.86, 0.72, 1.49, 0.20, 0.30, 104]
    assert {title for row in grid.rows.values() for title in row.published} <= grid.figures.keys()


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"axes": {"evaluate.bootstrap": [9]}}, "a grid changes ['evaluate'], which its runs"),
        ({"axes": {"eta.constant": [2]}}, "constant=2: eta.constant = 2"),
        ({"axes": {"eta.constnt": [0.1]}}, "not a setting; did you mean eta.constant?"),
        ({"axes": {}}, "axes, or rows, name the points"),
        ({"axes": {"eta.a": [0.1]}, "rows": {"a": {}}}, "axes, or rows, name the points"),
        ({"axes": {"eta.a": []}}, "axes.eta.a"),
        ({"axes": {"eta.a": [0.1]}, "tune": {"eta.k": [0.1, 0.2]}}, "tune is not a setting"),
        ({"axes": {"eta.a": [0.1]}, "points": 3}, "points is not a setting"),
    ],
)  # fmt: skip
def test_a_grid_that_cannot_run_is_refused_first(tmp_path, grid, words, capsys):
    assert main(["sweep", *arguments_of(tmp_path, grid)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("part", ["7", "a=9"])
def test_a_slice_that_names_something_else_is_refused(made, part, capsys):
    assert main(["sweep", *arguments_of(made, ROWS), "--points", part]) == 2
    assert f"--points names ['{part}']; choose among" in capsys.readouterr().err
