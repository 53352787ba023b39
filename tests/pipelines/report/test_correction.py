"""The sections about eta: figures by hand, truth, what a private report leaves out, batches."""

from pathlib import Path

import pytest
import torch

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.data import manifest
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.sentences import text_key
from medclip_dcl.training.corpus import Corpus
from medclip_dcl.training.settings import ObjectiveConfig
from medclip_dcl.training.supervision import read_supervision
from pipelines.report import charts
from pipelines.report.correction import audit_batches, describe_eta
from pipelines.report.preflight import ReportConfig
from pipelines.report.sources import find_sources
from tests.support.corpus import ETA, KINDS, read_tiny_corpus, write_corpus
from tests.support.evaluated import write_texts

NEGATIVES = 63
TEXTS = [text for _, *said in KINDS for text in said]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("described") / "work")


@pytest.fixture(scope="module")
def view(work):
    return describe_eta(sources(work))


@pytest.fixture
def undrawn(monkeypatch):
    """Charts without their pictures, which take most of the time."""
    monkeypatch.setattr(charts, "_svg", lambda *_: "")


def sources(work, rho=None, **settings):
    return find_sources(work, ReportConfig(**settings), False, rho or {}, NEGATIVES)


def caption(view, title):
    return next(chart["meaning"] for chart in view["charts"] if chart["title"] == title)


def test_expected_false_negatives_are_n_times_eta_of_the_recipe_s_batch(view):
    figures = view["figures"]
    assert figures["mean eta of a training sentence"] == pytest.approx(0.05)
    assert figures["expected false negatives among them, N · eta"] == pytest.approx(63 * 0.05)
    assert figures["distinct sentences"] == len(TEXTS)
    assert figures["rank correlation of eta and occurrences"] is None


@pytest.mark.usefixtures("undrawn")
def test_eta_is_held_against_the_truth_where_there_is_one(work, view):
    rho = {text_key(text): 0.1 for text in TEXTS}
    found = caption(describe_eta(sources(work, rho)), "Is it right?")
    assert "true class probability" in found
    assert "median of eta / rho 0.5" in found
    assert "by a factor of 2." in found
    assert "Is it right?" not in [chart["title"] for chart in view["charts"]]


def test_sentences_are_listed_unless_the_report_is_private(work, view):
    assert {row["text"] for row in view["most"] + view["least"]} <= set(TEXTS)
    assert len(view["most"]) == len(view["least"]) == 8
    private = describe_eta(sources(work, private=True))
    assert private["most"] == private["least"] == []
    assert not any(text in str(private) for text in TEXTS)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, torch.Tensor, torch.Tensor]:
    work: Path = write_corpus(tmp_path_factory.mktemp("audited"))
    found = read_tiny_corpus(work)
    listed = open_artifact(manifest.ARTIFACT.at(work), manifest.ARTIFACT)
    claimed = open_artifact(labels.ARTIFACT.at(work), labels.ARTIFACT)
    reading = ObjectiveConfig(relation="claims")
    supervision = read_supervision(reading, found, listed, claimed)
    return found, supervision.of_texts["sentence_codes"], supervision.of_studies["report_codes"]


def audited(corpus: tuple[Corpus, torch.Tensor, torch.Tensor], size: int = 24) -> tuple:
    return audit_batches(*corpus, size, batches=6, seed=0)


def test_a_batch_of_all_studies_has_the_false_negatives_that_can_be_counted(corpus):
    found, _ = audited(corpus)
    assert found["negatives"] == 24 * 23
    # four kinds of six studies: every anchor has five others of its kind
    assert found["least"] == found["same"] == found["most"] == 24 * 5
    assert found["expected"] == pytest.approx(24 * 23 * ETA)
