from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fixtures.evaluated import evaluate_here, write_evaluated
from medclip_dcl.artifact import open_artifact
from medclip_dcl.errors import ArtifactStale
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.bootstrap import estimate, patient_weights
from medclip_dcl.evaluation.compare import check_same_samples, measure, read_sample_results


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    work = write_evaluated(tmp_path_factory.mktemp("cases") / "work")
    return evaluate_here(work, "probe.fractions=[0.5]", "evaluate.probe_images=100")


def test_the_cases_give_the_figures_that_were_reported(run):
    artifact = open_artifact(results.ARTIFACT.at(run), results.ARTIFACT)
    cases = read_sample_results(artifact)
    weights = patient_weights(len(cases.patients), 0, np.random.default_rng(0))
    found = measure(cases, weights)
    questions = results.read_figures(artifact)["questions"]
    for name, values in found.items():
        question, *group, figure = name.rsplit(".") if "probe" not in name else _probe(name)
        outcome = questions[question]
        figures = outcome["groups"][group[0]] if group else outcome["figures"]
        assert values[0] == pytest.approx(figures[figure]["value"], abs=1e-6), name
    asked = {"zero_shot", "grounding", "gallery", "boxes", "reports", "probe"}
    assert {name.partition(".")[0] for name in found} == asked


def _probe(name):
    return "probe", name.removeprefix("probe.").rpartition(".")[0], name.rpartition(".")[2]


def test_resamples_are_those_of_patients_drawn_together(run):
    cases = read_sample_results(open_artifact(results.ARTIFACT.at(run), results.ARTIFACT))
    weights = patient_weights(len(cases.patients), 4000, np.random.default_rng(0))
    drawn = measure(cases, weights)["grounding.miou"]
    values = cases.column(results.GROUNDINGS, "miou")
    owners = cases.column(results.GROUNDINGS, "subject_id").tolist()
    figure = estimate(
        lambda rows: {"miou": float(values[rows].mean())},
        owners,
        4000,
        np.random.default_rng(1),
        "",
    )["miou"]
    # Patients without a box are drawn here and not there: a little wider, never narrower.
    low, high = np.nanquantile(drawn[1:], [0.025, 0.975])
    assert (high - low) == pytest.approx(figure.high - figure.low, rel=0.25)


def test_runs_that_were_asked_other_cases_are_refused(run):
    cases = read_sample_results(open_artifact(results.ARTIFACT.at(run), results.ARTIFACT))
    check_same_samples([cases, cases])
    name = results.SCORES.file
    fewer = replace(cases, tables={**cases.tables, name: cases.tables[name].slice(1)})
    with pytest.raises(ArtifactStale, match=r"scores.parquet of run 2 has other cases"):
        check_same_samples([cases, fewer])
