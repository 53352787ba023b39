"""Report and cards: what they say, what a private one leaves out, and what stops them."""

import json
import re
import shutil
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from medclip_dcl.core.errors import ArtifactMissing, ArtifactStale
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest
from medclip_dcl.evaluation import results
from medclip_dcl.inference import model_package
from medclip_dcl.likelihood.eta import ETA
from medclip_dcl.text import sentences
from pipelines import pages
from pipelines.report import charts
from pipelines.report.charts import Labels, Series
from pipelines.report.outcomes import describe_eta
from pipelines.report.page import describe_verdict
from pipelines.report.preflight import ReportConfig
from pipelines.report.sources import count_splits, find_sources
from tests.support.corpus import KINDS, commit_tables, write_corpus
from tests.support.jobs import made, run_here
from tests.support.published import publish

SECTIONS = {"results", "decisions", "trust", "data", "text", "training", "grounding", "retrieval"}
SECTIONS |= {"provenance"}
TEXTS = [text for _, *said in KINDS for text in said]
WORDS = {
    "intended_use": "Comparing losses.",
    "limits": ["Tiny images alone."],
    "licence": "MIT",
    "data": "Drawn for a test.",
}


class Page(HTMLParser):
    """Ids, sources and visible text of a page; every element must be closed."""

    VOID = frozenset({"meta", "img", "br", "link", "input", "hr", "path", "rect", "use"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.sources, self.said, self._open = set(), [], [], []
        self.feed(text)
        assert self._open == []
        self.words = " ".join(" ".join(self.said).split())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id"))
        self.sources += [given[name] for name in ("src", "href") if name in given]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.said.append(data)


def copy_of(work: Path, folder: Path) -> Path:
    return shutil.copytree(work, folder / "work")


def report(work: Path, *settings: str, **sections: Any) -> str:
    run_here("write_report", work, *settings, **sections)
    return (work / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def calibrated(decided, tmp_path_factory):
    work = copy_of(decided, tmp_path_factory.mktemp("calibrated"))
    return run_here("evaluate", run_here("calibrate_scores", work))


# ---- The report


def test_the_page_has_its_sections_says_its_use_first_and_loads_nothing(calibrated):
    text = report(calibrated)
    page = Page(text)
    assert page.ids >= SECTIONS
    kinds = {source.partition(";")[0] for source in page.sources if source.startswith("data:")}
    assert kinds == {"data:image/jpeg", "data:image/png"}
    assert all(source.startswith(("#", "data:image/")) for source in page.sources)
    assert not re.search(r"url\((?!#)", text)
    assert "<script" not in text
    assert "@import" not in text
    assert len(text) < 10_000_000
    use = page.words.index("Research use only. Not a medical device.")
    assert use < page.words.index("What went in")
    assert "Reliability: share of images" in text
    assert any(said in text for said in TEXTS)


def test_a_private_report_shows_no_text_and_no_picture(calibrated):
    text = report(calibrated, "report.private=true")
    page = Page(text)
    assert not any(source.startswith("data:") for source in page.sources)
    assert not [word for word in (*TEXTS, "p032", "image032") if word in text]
    assert "texts and pictures left out" in page.words
    assert page.ids >= SECTIONS


def test_a_finding_whose_prompts_do_not_decide_is_warned_of_next_to_it(evaluated, tmp_path):
    words = Page(report(copy_of(evaluated, tmp_path))).words
    for finding in ("effusion", "pneumonia"):
        assert f"Do not rely on {finding}: its two prompts do not decide" in words
    assert "correlation of 1.000, above 0.97" in words
    assert "objective.relation: claims" in words


def test_generated_studies_are_called_so(tmp_path):
    (tmp_path / "truth").mkdir()
    for name in ("images.csv", "eta.csv"):
        (tmp_path / "truth" / name).write_text("")
    work = write_corpus(tmp_path / "work")
    shutil.rmtree(work / "eta_cache")  # the section whose charts take most of a page's time
    text = report(work, source={"root": str(tmp_path)})
    assert "All images and reports are generated" in text


def test_a_stage_whose_input_has_changed_is_called_stale(evaluated, tmp_path):
    work = copy_of(evaluated, tmp_path)
    shutil.rmtree(work / "eta_cache")
    assert ">stale<" not in report(work)
    (work / "model").rename(work / "old")
    publish(work / "model", seed=1)
    assert ">stale<" in report(work)


def test_a_figure_that_was_damaged_is_not_reported(evaluated, tmp_path, capsys):
    work = copy_of(evaluated, tmp_path)
    table = work / "eta_cache/eta.arrow"
    data = bytearray(table.read_bytes())
    at = data.rindex(struct.pack("<d", read_table(work / "eta_cache", ETA)["eta"][0].as_py()))
    data[at] ^= 1
    table.write_bytes(data)
    run_here("write_report", work, code=4)
    assert "eta.arrow" in capsys.readouterr().err


def test_markup_in_a_report_s_sentence_stays_text(tmp_path, monkeypatch):
    hostile = "<script>alert(1)</script> & heart"
    kinds = ((KINDS[0][0], hostile, KINDS[0][2]), *KINDS[1:])
    monkeypatch.setattr("tests.support.corpus.KINDS", kinds)
    text = report(write_corpus(tmp_path / "work"))
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    Page(text)


@pytest.mark.parametrize("name", ["$\\frac$", "5 $ and 6 $"])
def test_a_name_in_a_chart_is_no_formula(name):
    lines = [Series(name, [0, 1], [0, 1]), Series("other", [0, 1], [1, 0])]
    chart = charts.draw_lines(lines, Labels(alt="a chart", x="$x_{$", y="$y"))
    assert f">{name}<" in chart
    assert ">$x_{$<" in chart


def test_expected_false_negatives_are_n_times_eta_of_the_recipe_s_batch(evaluated):
    view = describe_eta(find_sources(evaluated, ReportConfig(), False, 63))
    figures = view["figures"]
    assert figures["mean eta of a training sentence"] == pytest.approx(0.05)
    assert figures["expected false negatives among them, N · eta"] == pytest.approx(63 * 0.05)
    assert figures["distinct sentences"] == len(TEXTS)
    assert {row["text"] for row in view["most"] + view["least"]} <= set(TEXTS)
    assert len(view["most"]) == len(view["least"]) == 8
    for rows, sign in ((view["most"], -1), (view["least"], 1)):
        order = [(sign * row["eta"], -row["count"]) for row in rows]
        assert order == sorted(order)  # of equal ones the most frequent first
        assert all(row["count"] for row in rows)


def figure(value: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high}


def outcome(**auc: dict[str, Any]) -> dict[str, Any]:
    groups = {name: {"auc": item} for name, item in auc.items()}
    grounding = {"figures": {"cnr_signed": figure(0.9, 0.6, 1.2)}, "chance": {"cnr_signed": 0.1}}
    questions = {"zero_shot": {"groups": groups, "absent": ""}, "grounding": grounding}
    names = ("boxes.own_recall", "grounding.cnr_signed", "zero_shot.mean_auc", "other")
    headlines = [{"name": name, "figure": figure(0.7, 0.6, 0.8), "chance": 0.5} for name in names]
    return {"questions": questions, "headlines": headlines}


def test_the_verdict_counts_findings_and_names_the_weakest():
    said = outcome(edema=figure(0.91), effusion=figure(0.80), pneumonia=figure(0.61))
    view = describe_verdict(said, None, None)
    assert view["sentence"] == (
        "Finds 2 of 3 findings (AUC of at least 0.80); the weakest is pneumonia with 0.61. Its "
        "heatmaps point to the marked places."
    )
    names = ["zero_shot.mean_auc", "grounding.cnr_signed", "boxes.own_recall"]
    assert [tile["name"] for tile in view["tiles"]] == names
    assert {tile["standing"] for tile in view["tiles"]} == {"good"}
    assert view["warnings"] == []
    without = describe_verdict(None, {"expected": 3.0}, {"languages": {"en": 9}})
    assert without == {"sentence": None, "tiles": [], "warnings": []}


def test_what_makes_a_run_worthless_is_said():
    backwards = outcome(edema=figure(0.037, 0.011, 0.077), effusion=figure(0.45, 0.3, 0.6))
    view = describe_verdict(backwards, {"expected": 0.02}, {"languages": {"en": 300, "de": 60}})
    found = " ".join(view["warnings"])
    assert "edema is read backwards: AUC 0.037" in found
    assert "effusion" not in found  # its interval holds chance
    assert "negatives 0.02 are expected to be false" in found
    assert "60 of 360 reports" in found
    assert len(view["warnings"]) == 3


# ---- The cards


def facts(work: Path, name: str) -> dict[str, Any]:
    return json.loads((work / "cards" / name).read_text())


def test_the_model_card_says_what_was_measured(evaluated):
    run_here("write_cards", evaluated, card=WORDS)
    found = facts(evaluated, pages.MODEL_FACTS)
    tree = results.read_figures(made(evaluated, results.ARTIFACT))
    auc = tree["questions"]["zero_shot"]["figures"]["mean_auc"]
    given = found["evaluation"]["figures"]["zero-shot AUC, mean of findings"]
    assert given == {**auc, "chance": 0.5}
    text = (evaluated / "cards" / pages.MODEL_CARD).read_text()
    assert ModelCard(text).data.license == "mit"
    assert "Comparing losses." in text
    assert "- Tiny images alone." in text
    auprc = tree["questions"]["decisions"]["groups"]["pneumonia"]["auprc"]
    mean, shown = (
        f"{item['value']:.3f} [{item['low']:.3f}, {item['high']:.3f}]" for item in (auc, auprc)
    )
    assert f"| zero-shot AUC, mean of findings | {mean} | 0.500 |" in text
    (line,) = (line for line in text.splitlines() if line.startswith("| pneumonia | 10 |"))
    assert line.split(" | ")[3] == shown
    assert "12 steps with 8 pairs each, from 24 studies of 24 patients" in text


def test_the_data_card_counts_split_by_split_and_neither_names_anybody(evaluated):
    run_here("write_cards", evaluated, card=WORDS)
    found = facts(evaluated, pages.DATA_FACTS)
    counts = {name: (row["images"], row["patients"]) for name, row in found["splits"].items()}
    assert counts == {"train": (30, 24), "validate": (10, 8), "test": (10, 8)}
    assert found["splits"]["test"]["views"] == "PA 10"
    assert found["labels"]["Pneumonia"] == {"present": 6, "absent": 18, "uncertain": 0, "blank": 0}
    assert found["terms"] == "Drawn for a test."
    said = read_table(sentences.ARTIFACT.at(evaluated), sentences.SENTENCES)["text"].to_pylist()
    text = "".join(path.read_text() for path in (evaluated / "cards").glob("*_card.*"))
    assert not re.search(r"\bp0\d\d\b|image0\d\d|\bs0\d\d\b", text)
    assert not [sentence for sentence in set(said) if sentence in text]


def test_publishing_waits_for_every_text_and_for_cards_of_its_own_model(decided, tmp_path, capsys):
    work = copy_of(decided, tmp_path)
    model = made(work, model_package.ARTIFACT)
    for name, empty in {"intended_use": " ", "limits": [], "licence": ""}.items():
        run_here("write_cards", work, card=WORDS | {name: empty}, code=2)
        assert f"card.{name} empty" in capsys.readouterr().err
    with pytest.raises(ArtifactMissing, match="fill the config's card section"):
        pages.cards_of(work, model)
    run_here("write_cards", work, card=WORDS)
    assert pages.cards_of(work, model).summary["model"] == model.digest
    publish(work / "model", ["elsewhere"], seed=1)
    with pytest.raises(ArtifactStale, match="rerun write_cards"):
        pages.cards_of(work, made(work, model_package.ARTIFACT))


def test_a_column_that_is_no_view_is_counted_and_not_named(tmp_path):
    work = write_corpus(tmp_path / "work")
    forms = (manifest.IMAGES, manifest.REPORTS, manifest.STUDY_LABELS, manifest.BOXES)
    listed = {form: read_table(work / "manifest", form).to_pylist() for form in forms}
    for number, row in enumerate(listed[manifest.IMAGES]):
        row["view"] = ("Doe^Jane 1950", "pa", "AP  axial", "")[number % 4]
    source = commit_tables(work, manifest.ARTIFACT, listed, views="odd")
    counted = [row["views"] for row in count_splits(source).values()]
    names = {part.rpartition(" ")[0] for views in counted for part in views.split(", ")}
    assert names == {"AP AXIAL", "PA", "not known", "other"}
