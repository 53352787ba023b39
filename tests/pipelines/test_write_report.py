import re
import shutil
import struct
from html.parser import HTMLParser

import pytest

from medclip_dcl.core.tables import read_table
from medclip_dcl.likelihood.eta import ETA
from pipelines.job import main_of
from tests.support.corpus import KINDS, write_config, write_corpus
from tests.support.evaluated import write_evaluated, write_texts
from tests.support.published import PROMPTS, publish

calibrate = main_of("calibrate_scores")
evaluate = main_of("evaluate")
main = main_of("write_report")

SECTIONS = (
    "results",
    "decisions",
    "data",
    "text",
    "training",
    "grounding",
    "retrieval",
    "provenance",
)


class Page(HTMLParser):
    """Ids, sources and visible text of a page; every element must be closed."""

    VOID = frozenset({"meta", "img", "br", "link", "input", "hr", "path", "rect", "use"})

    def __init__(self, text):
        super().__init__()
        self.ids, self.sources, self.words, self._open = set(), [], [], []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id"))
        self.sources += [given[name] for name in ("src", "href") if name in given]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.ids.add(dict(attrs).get("id"))

    def handle_data(self, data):
        if "style" not in self._open:
            self.words.append(data)


def report(work, **sections):
    config_file = write_config(work / "config.yaml", work, **sections)
    assert main(["--config", str(config_file)]) == 0
    return (work / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Evaluated, with calibrated scores."""
    work = write_evaluated(tmp_path_factory.mktemp("reported") / "work")
    publish(work / "model", ["elsewhere"], seed=37, centred=True)
    (work / "prompts.yaml").write_text(f"format_version: 1\nfindings: {PROMPTS}\n")
    config_file = write_config(
        work / "config.yaml",
        work,
        evaluate={"bootstrap": 20, "prompts": str(work / "prompts.yaml")},
        probabilities={"least_per_class": 2},
        source={"root": str(work)},
    )
    assert calibrate(["--config", str(config_file)]) == 0
    assert evaluate(["--config", str(config_file)]) == 0
    return work


def page(work, *, private):
    config_file = str(work / "config.yaml")
    assert main(["--config", config_file, "--set", f"report.private={str(private).lower()}"]) == 0
    return (work / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def open_page(work):
    return page(work, private=False)


@pytest.fixture(scope="module")
def private_page(work):
    return page(work, private=True)


def test_the_page_has_its_sections_says_its_use_first_and_loads_nothing(open_page):
    page = Page(open_page)
    assert page.ids.issuperset(SECTIONS)
    assert "trust" in page.ids
    for kind in ("jpeg", "png"):
        assert any(source.startswith(f"data:image/{kind}") for source in page.sources)
    assert all(source.startswith(("#", "data:image/")) for source in page.sources)
    assert not re.search(r"url\((?!#)", open_page)
    assert "<script" not in open_page
    assert "@import" not in open_page
    assert len(open_page) < 10_000_000
    words = " ".join(" ".join(page.words).split())
    assert words.index("Research use only. Not a medical device.") < words.index("What went in")
    assert "Reliability: share of images" in open_page
    assert any(said in open_page for _, *pair in KINDS for said in pair)


def test_a_finding_whose_prompts_do_not_decide_is_warned_of_next_to_it(tmp_path):
    work = write_evaluated(tmp_path / "work")
    publish(work / "model", ["elsewhere"])  # random weights: almost one vector of all sentences
    (work / "prompts.yaml").write_text(f"format_version: 1\nfindings: {PROMPTS}\n")
    asked = {"bootstrap": 20, "prompts": str(work / "prompts.yaml")}
    config_file = write_config(
        work / "config.yaml", work, evaluate=asked, source={"root": str(work)}
    )
    assert evaluate(["--config", str(config_file)]) == 0
    assert main(["--config", str(config_file)]) == 0
    words = " ".join(" ".join(Page((work / "report.html").read_text()).words).split())
    for finding in ("effusion", "pneumonia"):
        assert f"Do not rely on {finding}: its two prompts do not decide" in words
    assert "correlation of 1.000, above 0.97" in words
    assert "objective.relation: claims" in words


def without_eta(work):
    """Leave out the section whose charts take most of a page's time."""
    shutil.rmtree(work / "eta_cache")
    return work


def test_generated_studies_are_called_so(tmp_path):
    (tmp_path / "truth").mkdir()
    for name in ("images.csv", "eta.csv"):
        (tmp_path / "truth" / name).write_text("")
    work = without_eta(write_corpus(tmp_path / "work"))
    text = report(work, source={"root": str(tmp_path)})
    assert "All images and reports are generated" in text


def test_a_private_report_shows_no_text_and_no_picture(private_page):
    text, page = private_page, Page(private_page)
    words = " ".join(page.words)
    assert not any(source.startswith("data:") for source in page.sources)
    for _, *said in KINDS:
        assert not any(sentence in text for sentence in said)
    assert "p032" not in text
    assert "trust" in page.ids
    assert "image032" not in text
    assert "texts and pictures left out" in words
    assert page.ids.issuperset(SECTIONS)


@pytest.fixture(scope="module")
def text_page(tmp_path_factory):
    """That of a recipe of text alone; one sentence has markup."""
    hostile = "<script>alert(1)</script> & heart"
    kinds = ((KINDS[0][0], hostile, KINDS[0][2]), *KINDS[1:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.corpus.KINDS", kinds)
        return report(write_texts(tmp_path_factory.mktemp("text") / "work"))


def test_a_figure_that_was_damaged_is_not_reported(tmp_path, capsys):
    work = write_texts(tmp_path / "work")
    table = work / "eta_cache/eta.arrow"
    data = bytearray(table.read_bytes())
    at = data.rindex(struct.pack("<d", read_table(work / "eta_cache", ETA)["eta"][0].as_py()))
    data[at] ^= 1
    table.write_bytes(data)
    config_file = write_config(work / "config.yaml", work)
    assert main(["--config", str(config_file)]) == 4
    assert "eta.arrow" in capsys.readouterr().err


def test_a_stage_whose_input_has_changed_is_called_stale(tmp_path):
    work = without_eta(write_evaluated(tmp_path / "work"))
    config_file = write_config(work / "config.yaml", work, evaluate={"bootstrap": 0})
    assert evaluate(["--config", str(config_file)]) == 0
    assert ">stale<" not in report(work)
    (work / "model").rename(work / "old")
    publish(work / "model", seed=1)
    assert ">stale<" in report(work)


def test_markup_in_a_report_s_sentence_stays_text(text_page):
    assert "<script" not in text_page
    assert "&lt;script&gt;" in text_page
    Page(text_page)
