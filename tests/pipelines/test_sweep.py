"""A grid of settings: its points, slices, early ends, and what it writes."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml

from medclip_dcl.errors import ConfigError
from medclip_dcl.settings import read_yaml
from medclip_reporting.sweep import sweep_text
from pipelines.config import load_config
from pipelines.grid import Grid, grid_points
from pipelines.job import Job
from pipelines.runs import NOTE, Runs
from pipelines.sweep import FIGURES, FOLDER, main
from testing.corpus import write_config
from testing.evaluated import write_untrained

ROOT = Path(__file__).parents[2]
AXES = {"objective.floor": ["floor", "zero"], "eta.constant": [0.0, 0.1]}
TWO = {"objective.floor": ["zero"], "eta.constant": [0.0, 0.1]}
GRID = {
    "axes": TWO,
    "settings": {"eta.source": "constant"},
    "seeds": [0, 1],
    "figures": ["grounding.cnr", "boxes.own_recall"],
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_untrained(tmp_path_factory.mktemp("corpus") / "work")


def arguments_of(work, grid, **train):
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
    return [
        *("--config", str(config_file)),
        *("--grid", str(work / "little.yaml")),
        *("--processes", "1"),
    ]


def runs_of(work):
    notes = (work / FOLDER / "little").glob(f"*/*/{NOTE}")
    return {f"{note.parent.parent.name}/{note.parent.name}" for note in notes}


@pytest.fixture(scope="module")
def made(corpus, tmp_path_factory):
    """The two points over two seeds, in three slices that do not overlap."""
    work = shutil.copytree(corpus, tmp_path_factory.mktemp("made") / "work")
    arguments, seen = arguments_of(work, GRID), []
    slices = (
        ["--points", "0-0"],
        ["--points", "1", "--seeds", "0"],
        ["--points", "1", "--seeds", "1"],
    )
    for part in slices:
        assert not (work / FOLDER / "little" / FIGURES).exists()
        before = runs_of(work)
        assert main([*arguments, *part]) == 0
        seen.append(runs_of(work) - before)
    return work, seen


def test_points_are_every_combination_and_named_by_their_values():
    points = grid_points({**AXES, "row": {"a": {"train.steps": 2}, "b": {"train.steps": 3}}})
    assert len(points) == 8
    assert points[1].name == "floor=floor,constant=0.0,row=b"
    assert points[1].at == {"objective.floor": "floor", "eta.constant": 0.0, "row": "b"}
    assert points[1].changes == {"objective.floor": "floor", "eta.constant": 0.0, "train.steps": 3}
    alike = grid_points({"model.text.dim": ["a/b"], "model.similarity.dim": [1]})
    assert [point.name for point in alike] == ["model.text.dim=a_b,model.similarity.dim=1"]
    assert [point.name for point in grid_points({})] == [""]
    with pytest.raises(ConfigError, match="share a folder's name"):
        grid_points({"objective.similar_table": ["a/b", "a b"]})


def test_table_and_page_have_every_point(made):
    work, seen = made
    assert [len(runs) for runs in seen] == [2, 1, 1]  # of each slice alone
    folder = work / FOLDER / "little"
    tree = json.loads((folder / FIGURES).read_text(), parse_constant=pytest.fail)
    assert [point["name"] for point in tree["points"]] == [point.name for point in grid_points(TWO)]
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    for point, row in zip(tree["points"], rows, strict=True):
        cnr = point["figures"]["grounding.cnr"]
        assert float(row["grounding.cnr"]) == cnr["value"]
        assert (cnr["low"], cnr["n"]) == (None, 2)  # of two seeds there is no interval
        assert row["grounding.cnr low"] == ""
        assert (row["objective.floor"], row["seeds"]) == (point["at"]["objective.floor"], "2")
    assert tree["detectable"]["grounding.cnr"] > 0
    shown = " ".join(sweep_text(tree).split())
    assert f"80 % power at {tree['detectable']['grounding.cnr']:.2g}" in shown
    page = (folder / "sweep.html").read_text()
    assert "n = 2" in page
    assert "of fewer than 3 there is no interval" in page
    assert page.count("<svg ") == 4  # two axes, two figures
    assert 'aria-label="grounding.cnr against eta.constant, with 95 % intervals"' in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page.replace("https://www.w3.org", "")


def test_a_finished_grid_is_not_run_again_for_a_setting_of_speed(made, capsys):
    work, _ = made
    before = {note: note.stat().st_mtime_ns for note in work.rglob(NOTE)}
    assert main(arguments_of(work, GRID, save_every_steps=2, torch_threads=2)) == 0
    assert '"runs": 4, "done": 4' in capsys.readouterr().out
    assert {note: note.stat().st_mtime_ns for note in work.rglob(NOTE)} == before


def test_only_the_best_points_go_on_where_that_is_asked(corpus, tmp_path):
    work = shutil.copytree(corpus, tmp_path / "work")
    axes = {"eta.constant": [0.0, 0.1]}
    grid = GRID | {"axes": axes, "judge": "validation_report_auc", "keep": 1}
    assert main(arguments_of(work, grid)) == 0
    points = json.loads((work / FOLDER / "little" / FIGURES).read_text())["points"]
    best = max(points, key=lambda point: point["judged"])
    assert {point["name"]: len(point["seeds"]) for point in points} == {
        point["name"]: 2 if point is best else 1 for point in points
    }
    assert len(runs_of(work)) == 3


@pytest.mark.parametrize("recipe", ["table1", "train/mimic_cxr"])
@pytest.mark.parametrize(
    "grid", sorted((ROOT / "configs/sweeps").glob("*.yaml")), ids=lambda p: p.stem
)
def test_the_papers_own_grids_fit_every_recipe(grid, recipe, tmp_path):
    read = Grid.model_validate(read_yaml(grid, "grid"))
    job = Job("sweep", load_config(ROOT / f"configs/{recipe}.yaml"), tmp_path)
    points = grid_points(read.axes)
    runs = Runs(job, tmp_path, {key for point in points for key in point.changes})
    settings = [{**read.settings, **point.changes} for point in points]
    assert len(
        {runs.plan(point.name, 0, one).digest for point, one in zip(points, settings, strict=True)}
    ) == len(points)
    assert grid.name in (ROOT / "configs/README.md").read_text()


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (
            {"axes": {"evaluate.split": ["test"]}},
            "a grid changes ['evaluate'], which its runs share",
        ),
        ({"axes": {"eta.constant": [2]}}, "config of run constant=2: eta.constant = 2"),
        (
            {"axes": {"eta.constnt": [0.1]}},
            "eta.constnt is not a setting; did you mean eta.constant?",
        ),
        ({"axes": {}}, "axes = {}"),
        ({"axes": {"eta.a": [0.1]}, "keep": 1}, "keep needs a judge"),
        ({"axes": {"eta.a": [0.1]}, "points": 3}, "points is not a setting"),
    ],
)
def test_a_grid_that_cannot_run_is_refused_first(made, grid, words, capsys):
    work, _ = made
    assert main(arguments_of(work, grid)) == 2
    assert words in capsys.readouterr().err
