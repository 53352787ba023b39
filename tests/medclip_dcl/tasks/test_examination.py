import json

import numpy as np
import pytest

from medclip_dcl.artifacts.results import SCORES
from medclip_dcl.metrics.summary import UNKNOWN
from medclip_dcl.tasks.examination import examine_findings, examine_reports
from medclip_dcl.tasks.outcome import Outcome, Sampling
from medclip_dcl.tasks.prompts import Finding
from tests.synthetic.oracle import Oracle, shown

FINDINGS = (Finding("fluid", ("Fluid.",), ("Normal.",)), Finding("cyst", ("Cyst.",), ("Normal.",)))
FILMS = shown({(0, 0): "fluid"}, {(1, 2): "cyst"}, {}, {(3, 3): "fluid"})
SAMPLING = Sampling(20, 0)


def test_a_model_that_knows_the_answer_has_an_area_of_one():
    truth = np.array([[1, 0, 0, 1], [0, 1, 0, UNKNOWN]], dtype=np.int8)
    outcome, rows = examine_findings(Oracle(), FILMS, FINDINGS, truth, SAMPLING)
    assert outcome.figures["mean_auc"].value == 1.0
    assert outcome.groups["cyst"]["auc"].n == 3
    assert outcome.absent == ""
    assert [row["truth"] for row in rows] == [1, 0, 0, 1, 0, 1, 0, None]
    assert set(rows[0]) == set(SCORES.schema.names)
    assert all(0 <= row["score"] <= 1 for row in rows)


def test_films_without_labels_are_scored_and_the_question_is_named_absent():
    truth = np.full((2, 4), UNKNOWN, dtype=np.int8)
    outcome, rows = examine_findings(Oracle(), FILMS, FINDINGS, truth, SAMPLING)
    assert outcome.absent == "no film has a label"
    assert outcome.figures["mean_auc"].value is None
    assert len(rows) == 8


def test_a_report_that_names_what_a_film_shows_ranks_first():
    reports = [["Fluid."], ["Cyst.", "Cyst."], ["Fluid."]]
    outcome = examine_reports(Oracle(), FILMS.select([0, 1, 3]), reports, SAMPLING)
    assert outcome.groups["film_to_report"]["recall_at_1"].value == 1.0
    assert outcome.groups["report_to_film"]["recall_at_1"].value == 1.0
    assert outcome.pool == {"report_to_film": 3, "film_to_report": 2}


def test_reports_on_the_wrong_films_rank_last():
    films = shown({(0, 0): "fluid"}, {(1, 2): "cyst"})
    outcome = examine_reports(Oracle(), films, [["Cyst."], ["Fluid."]], SAMPLING)
    assert outcome.groups["film_to_report"]["recall_at_1"].value == 0.0
    assert outcome.groups["report_to_film"]["median_rank"].value == 2.0


def test_reports_of_the_same_sentences_answer_for_each_other():
    reports = [["Fluid.", "Normal."], ["Cyst."], ["Normal."], ["Normal.", "Fluid."]]
    outcome = examine_reports(Oracle(), FILMS, reports, SAMPLING)
    assert outcome.chance["report_to_film.recall_at_1"] == (2 + 1 + 1 + 2) / 16
    assert outcome.chance["film_to_report.recall_at_1"] == pytest.approx(1 / 3)


def test_an_outcome_is_plain_json_without_nan():
    truth = np.array([[1, 0, 0, 1], [0, 0, 0, 0]], dtype=np.int8)
    outcome, _ = examine_findings(Oracle(), FILMS, FINDINGS, truth, SAMPLING)
    tree = json.loads(json.dumps(outcome.as_json(), allow_nan=False))
    assert tree["groups"]["cyst"]["auc"]["value"] is None
    assert tree["groups"]["cyst"]["auc"]["reason"]


def test_an_absent_question_holds_its_reason_alone():
    assert Outcome("no boxes").as_json() == {
        "absent": "no boxes",
        "pool": {},
        "chance": {},
        "figures": {},
        "groups": {},
    }


def test_chosen_films_keep_everything_that_is_theirs():
    chosen = FILMS.select([3, 1])
    assert chosen.image_ids == ("film-3", "film-1")
    assert chosen.subject_ids == ("p-film-3", "p-film-1")
    assert (chosen.regions[0] == FILMS.regions[3]).all()
