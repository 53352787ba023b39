"""The section about eta: its figures by hand, its truth, and what a private report leaves out."""

import pytest

from benchmarks.fixtures.corpus import KINDS
from benchmarks.fixtures.evaluated import write_texts
from medclip_dcl.artifact import make_fingerprint, write_artifact
from medclip_dcl.data import manifest
from medclip_dcl.likelihood import eta
from medclip_dcl.reporting.correction import describe_eta
from medclip_dcl.reporting.settings import ReportConfig
from medclip_dcl.reporting.sources import find_sources
from medclip_dcl.tables import read_table, write_table
from medclip_dcl.text.sentences import text_key

NEGATIVES = 63
TEXTS = [text for _, *said in KINDS for text in said]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("described") / "work")


@pytest.fixture(scope="module")
def view(work):
    return describe_eta(sources(work))


def sources(work, rho=None, **settings):
    return find_sources(work, ReportConfig(**settings), False, rho or {}, NEGATIVES)


def caption(view, title):
    return next(chart["meaning"] for chart in view["charts"] if chart["title"] == title)


def test_expected_false_negatives_are_n_times_eta_of_the_recipe_s_batch(view):
    figures = view["figures"]
    assert figures["mean eta of a training sentence"] == pytest.approx(0.05)
    assert figures["of them false, expected: N · eta"] == pytest.approx(63 * 0.05)
    assert figures["distinct sentences"] == len(TEXTS)
    assert figures["rank correlation, eta and times said"] is None


def test_eta_is_drawn_against_likelihood_frequency_and_labels(view):
    titles = [chart["title"] for chart in view["charts"]]
    expected = ["How strongly.", "How likely.", "Who is said often."]
    assert titles == [*expected, "Is it right?"]


def test_eta_without_likelihoods_has_no_chart_of_them(tmp_path):
    work = write_texts(tmp_path / "work")
    folder = eta.ARTIFACT.at(work)
    rows = read_table(folder, eta.ETA).to_pylist()
    fingerprint = make_fingerprint(
        eta.ARTIFACT, {"eta": {"source": "constant", "eta_max": 0.2}}, {}
    )
    with write_artifact(folder, eta.ARTIFACT, fingerprint) as writer:
        bare = [{**row, "pll_nats": None, "tokens": None} for row in rows]
        write_table(writer.directory, eta.ETA, bare)
        writer.commit({})
    view = describe_eta(sources(work))
    assert "How likely." not in [chart["title"] for chart in view["charts"]]


def test_a_label_table_without_a_training_study_is_no_truth(tmp_path):
    work = write_texts(tmp_path / "work")
    folder = manifest.ARTIFACT.at(work)
    forms = (manifest.IMAGES, manifest.REPORTS, manifest.BOXES, manifest.REJECTS)
    tables = {form: read_table(folder, form).to_pylist() for form in forms}
    tables[manifest.STUDY_LABELS] = []
    with write_artifact(
        folder, manifest.ARTIFACT, make_fingerprint(manifest.ARTIFACT, {}, {})
    ) as writer:
        for form, rows in tables.items():
            write_table(writer.directory, form, rows)
        writer.commit({})
    view = describe_eta(sources(work))
    assert "Is it right?" not in [chart["title"] for chart in view["charts"]]


def test_the_generator_s_truth_goes_before_labels(work, view):
    rho = {text_key(text): 0.1 for text in TEXTS}
    found = caption(describe_eta(sources(work, rho)), "Is it right?")
    assert "true class probability" in found
    assert "median of eta / rho 0.5" in found
    assert "by a factor of 2." in found
    assert "label table" in caption(view, "Is it right?")


def test_truth_that_names_no_sentence_of_the_corpus_breaks_nothing(work):
    view = describe_eta(sources(work, {"0" * 32: 0.1}))
    assert "of 0 sentences" in caption(view, "Is it right?")


def test_sentences_are_listed_unless_the_report_is_private(work, view):
    assert {row["text"] for row in view["most"] + view["least"]} <= set(TEXTS)
    assert len(view["most"]) == len(view["least"]) == 8
    private = describe_eta(sources(work, private=True))
    assert private["most"] == private["least"] == []
    assert not any(text in str(private) for text in TEXTS)
