import json
import shutil

import pytest

from medclip_dcl.evaluation import results
from pipelines.__main__ import main
from pipelines.results import find_runs
from tests.support.evaluated import evaluate_here, write_evaluated
from tests.support.published import publish


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four random models, one folder each, examined on the same images."""
    folder = tmp_path_factory.mktemp("runs")
    work = write_evaluated(folder / "work")
    for seed in range(4):
        shutil.rmtree(work / "model", ignore_errors=True)
        publish(work / "model", seed=seed)
        evaluate_here(work)
        shutil.copytree(results.ARTIFACT.at(work), folder / f"seed-{seed}" / "results")
    for side, seeds in {"first": (0, 1), "second": (2, 3)}.items():
        for seed in seeds:
            shutil.copytree(folder / f"seed-{seed}", folder / side / f"seed-{seed}")
    return folder


def test_two_halves_of_random_models_are_compared_figure_by_figure(runs, tmp_path, capsys):
    output = tmp_path / "told.json"
    sides = [str(runs / side) for side in ("first", "second")]
    assert main(["compare", *sides, "--json", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "A: 2 run(s), B: 2 run(s); 1000 draws" in printed
    assert "grounding.miou" in printed
    tree = json.loads(output.read_text(), parse_constant=lambda name: pytest.fail(name))
    item = tree["grounding.miou"]
    assert item["estimate"]["value"] == pytest.approx(item["a"] - item["b"])
    assert item["estimate"]["low"] is None  # two runs a side give no interval
    assert "n=2" in printed
    assert f"no difference shown (80% power at {item['detectable']:.2g})" in printed
    assert item["corrected_p"] >= item["estimate"]["p"]
    assert not any("own_" in name for name in tree)


def test_a_side_is_a_folder_of_runs_or_several_joined_by_commas(runs):
    joined = f"{runs / 'seed-2'},{runs / 'seed-3' / 'results'}"
    assert [path.parent.name for path in find_runs(joined)] == ["seed-2", "seed-3"]
    assert [path.parent.name for path in find_runs(str(runs / "second"))] == ["seed-2", "seed-3"]
