"""Figures of finished runs: which of two configs is better, and whether artifacts are whole."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.errors import ArtifactStale
from medclip_dcl.evaluation import metrics, results
from medclip_dcl.evaluation.measure import check_same_samples, measure, read_sample_results
from medclip_dcl.evaluation.metrics import patient_weights
from pipelines.__main__ import main
from pipelines.results import compare_sides, describe_difference, find_runs, holm
from tests.support.headers import make
from tests.support.jobs import run_here, write_evaluated
from tests.support.published import publish
from tests.support.tiny_models import random_images

PATIENTS = 60
FIGURES = 6


def simulated_runs(generator, cases, weights, runs):
    """Runs whose figures vary by run (.05), by patient (.4, shared) and by both (.3)."""
    by_run = generator.normal(0, 0.05, (len(cases), runs, 1))
    by_both = generator.normal(0, 0.3, (len(cases), runs, PATIENTS))
    values = cases[:, None] + by_run + by_both
    return {
        str(number): np.stack([metrics.mean(of_run, weights) for of_run in figure])
        for number, figure in enumerate(values)
    }


def says_different(seed, runs):
    generator = np.random.default_rng(seed)
    weights = patient_weights(PATIENTS, 120, generator)
    cases = generator.normal(0, 0.4, (FIGURES, PATIENTS))
    sides = [simulated_runs(generator, cases, weights, runs) for _ in "ab"]
    return any(item.is_different for item in compare_sides(*sides, generator).values())


@pytest.mark.parametrize("runs", [2, 4])
def test_two_halves_of_one_recipe_seldom_differ(runs):
    # At most 5 % are promised; 8 or more of 60 would happen once in a hundred at 5 %.
    assert sum(says_different(seed, runs) for seed in range(60)) <= 7


def test_seeds_widen_what_patients_alone_leave_narrow():
    # Two models of one config, distinguished by patients: the run-to-run spread is unseen.
    weights = patient_weights(PATIENTS, 200, np.random.default_rng(1))
    case = np.random.default_rng(2).normal(0, 0.01, PATIENTS)
    runs = np.stack([metrics.mean(case + shift, weights) for shift in (0.0, 0.1, 0.2, 0.3)])
    one, other = {"x": runs[3:]}, {"x": runs[:1]}
    refused = compare_sides(one, other, np.random.default_rng(0))["x"]  # two seeds of one config
    assert (refused.p, refused.low, refused.is_different) == (None, None, False)
    assert refused.reason == "one run on a side: two models, not two configs"
    assert describe_difference("x", refused) == "not known"
    halves = compare_sides({"x": runs[[0, 3]]}, {"x": runs[[1, 2]]}, np.random.default_rng(0))["x"]
    assert not halves.is_different
    assert halves.reason == "n = 2: an interval over seeds needs 3"
    assert (halves.low, halves.high) == (None, None)


def test_the_error_of_a_mean_over_runs_is_not_too_small():
    # No patients' part: s^2 / n with s^2 = 1 (values -1, 0, 1) and n = 3, 2 degrees of freedom.
    runs = np.repeat([[-1.0], [0.0], [1.0]], 20001, axis=1)
    found = compare_sides({"x": runs}, {"x": np.zeros((3, 20001))}, np.random.default_rng(0))["x"]
    assert found.error == pytest.approx(math.sqrt(1 / 3), rel=0.02)
    assert found.degrees == pytest.approx(2)
    assert found.high == pytest.approx(4.303 * found.error, rel=1e-3)  # t(.975, 2)


def test_a_figure_that_a_run_lacks_is_named_and_counts_for_nothing():
    a = {"x": np.array([[np.nan] * 9, [0.5] * 9]), "y": np.ones((2, 9))}
    b = {"x": np.full((2, 9), 0.5), "y": np.zeros((2, 9)), "only here": np.zeros((2, 9))}
    found = compare_sides(a, b, np.random.default_rng(0))
    assert list(found) == ["x", "y"]
    assert (found["x"].a, found["x"].corrected_p) == (None, None)
    assert found["x"].reason == "a run has no such figure"
    assert found["y"].corrected_p == 0.0


def test_holm_by_hand():
    # Ascending .01 x 3, .02 x 2 = .04, .03 x 1 raised to .04.
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


RUNS = np.tile([[0.50], [0.51], [0.52]], (1, 41))


def test_a_verdict_knows_of_which_figures_less_is_better():
    names = ("grounding.miou", "boxes.median_rank", "boxes.own_median_rank", "boxes.recall")
    b = dict.fromkeys(names, RUNS)
    a = {name: RUNS if name == "boxes.recall" else RUNS + 0.4 for name in names}
    found = compare_sides(a, b, np.random.default_rng(0), names)
    assert {name: describe_difference(name, item) for name, item in found.items()} == {
        "grounding.miou": "A is better",
        "boxes.median_rank": "B is better",
        "boxes.own_median_rank": "B is better",
        "boxes.recall": "no difference shown",
    }


def test_contrast_is_compared_with_its_sign():
    side = {"grounding.cnr": RUNS, "grounding.cnr_signed": RUNS}
    assert list(compare_sides(side, side, np.random.default_rng(0))) == ["grounding.cnr_signed"]
    assert len(compare_sides(side, side, np.random.default_rng(0), [*side])) == 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four random models, one folder each, examined on the same images."""
    folder = tmp_path_factory.mktemp("runs")
    work = write_evaluated(folder / "work")
    for seed in range(4):
        shutil.rmtree(work / "model", ignore_errors=True)
        publish(work / "model", seed=seed, bank=random_images(8, 64))
        run_here("evaluate", work, "evaluate.bootstrap=1000")
        side = ("first", "second")[seed // 2]
        shutil.copytree(results.ARTIFACT.at(work), folder / side / f"seed-{seed}" / "results")
    return folder


@pytest.fixture(scope="module")
def case(runs):
    return runs / "work"


def test_the_cases_give_the_figures_that_were_reported(case):
    artifact = open_artifact(results.ARTIFACT.at(case), results.ARTIFACT)
    cases = read_sample_results(artifact)
    weights = patient_weights(len(cases.patients), 0, np.random.default_rng(0))
    found = measure(cases, weights)
    questions = results.read_figures(artifact)["questions"]
    for name, values in found.items():
        question, figure = name.split(".")
        expected = questions[question]["figures"][figure]["value"]
        # The data alone and in a thousand samples: a product of other sizes rounds otherwise.
        assert metrics.value_of(values) == pytest.approx(expected, abs=1e-12), name
    assert "zero_shot.mean_balanced_accuracy_offset" in found
    asked = {"zero_shot", "decisions", "grounding", "boxes", "reports"}
    assert {name.partition(".")[0] for name in found} == asked


def test_runs_that_were_asked_other_cases_are_refused(case):
    cases = read_sample_results(open_artifact(results.ARTIFACT.at(case), results.ARTIFACT))
    check_same_samples([cases, cases])
    form = results.SCORES
    fewer = replace(cases, tables={**cases.tables, form: cases.tables[form].slice(1)})
    with pytest.raises(ArtifactStale, match=r"scores.parquet of run 2 has other cases"):
        check_same_samples([cases, fewer])


def test_two_halves_of_random_models_are_compared_figure_by_figure(runs, tmp_path, capsys):
    output = tmp_path / "told.json"
    sides = [str(runs / side) for side in ("first", "second")]
    assert main(["compare", *sides, "--json", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "A: 2 run(s), B: 2 run(s); 1000 draws" in printed
    assert "grounding.miou" in printed
    tree = json.loads(output.read_text(), parse_constant=lambda name: pytest.fail(name))
    item = tree["grounding.miou"]
    assert item["low"] is None  # two runs a side give no interval
    assert "n=2" in printed
    assert "no difference shown" in printed
    assert item["corrected_p"] >= item["p"]
    assert not any("own_" in name for name in tree)


def test_a_side_is_a_folder_of_runs_or_several_joined_by_commas(runs):
    side = runs / "second"
    joined = f"{side / 'seed-2'},{side / 'seed-3' / 'results'}"
    assert [path.parent.name for path in find_runs(joined)] == ["seed-2", "seed-3"]
    assert [path.parent.name for path in find_runs(str(side))] == ["seed-2", "seed-3"]


def test_every_artifact_of_a_run_is_hashed_and_damaged_ones_are_named(tmp_path, capfd):
    make(tmp_path / "whole")
    make(tmp_path / "checkpoints" / "step-1")
    assert main(["show", "--verify", str(tmp_path)]) == 0
    assert capfd.readouterr().out.count("whole, 1 files, 7 bytes") == 2
    (tmp_path / "whole" / "data.txt").write_bytes(b"CONTENT")
    assert main(["show", "--verify", str(tmp_path)]) == 4
    output = capfd.readouterr()
    assert "data.txt of" in output.out
    assert "step-1               whole" in output.out
    assert "whole of" in output.err
    assert main(["show", "--verify", str(tmp_path / "checkpoints" / "step-1")]) == 0
    (tmp_path / "empty").mkdir()
    assert main(["show", "--verify", str(tmp_path / "empty")]) == 4
    assert "holds no artifact" in capfd.readouterr().err


def test_what_is_no_run_is_named_and_what_opens_it(tmp_path, capfd):
    make(tmp_path / "model")
    assert main(["show", str(tmp_path / "model")]) == 4
    assert "of a run; name the run's folder" in capfd.readouterr().err
    report = tmp_path / "report.html"
    report.write_text("<html></html>", encoding="utf-8")
    assert main(["show", str(report)]) == 4
    assert "a browser opens its report.html" in capfd.readouterr().err
