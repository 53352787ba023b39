"""The rows of the generated studies are configs that the product accepts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.method import studies
from benchmarks.method.rows import ASSERTING, BOTH, MAIN, PIXELS_FIRST, PIXELS_THEN, Row
from medclip_dcl.artifact import open_artifact
from medclip_dcl.data import manifest
from medclip_dcl.losses.relations import DIFFERENT, SAME, encode_claims
from medclip_dcl.tables import read_table
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.labels import ReportLabels
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.settings import ObjectiveConfig
from pipelines.config import load_config
from testing.corpus import write_corpus


@pytest.mark.parametrize(
    "row",
    dict.fromkeys([*MAIN, *BOTH, *PIXELS_FIRST, *PIXELS_THEN, *ASSERTING]),
    ids=lambda row: row.name,
)
def test_every_row_is_a_valid_config(row: Row, tmp_path: Path) -> None:
    settings = [*studies.STOPPED, *studies._settings_of(row, tmp_path, 100)]
    config = load_config(studies.CONFIG, settings)
    assert (config.objective.place_weight > 0) == bool(row.places)
    assert config.train.steps == (50 if row.early else 100)
    assert config.objective.kind == row.kind
    assert config.eta.source == (row.eta if isinstance(row.eta, str) else "constant")


def test_shuffled_claims_are_those_of_other_training_studies(tmp_path: Path) -> None:
    work = write_corpus(tmp_path / "corpus")
    before, training = claims_of(work)
    after = studies.altered_claims(work, "shuffled", seed=0)
    assert after.keys() == before.keys()
    assert {name: after[name] for name in after if name not in training} == {
        name: before[name] for name in before if name not in training
    }
    assert sorted(str(after[name]) for name in training & after.keys()) == sorted(
        str(before[name]) for name in training & before.keys()
    )
    assert np.mean([after[name] != before[name] for name in training & after.keys()]) > 0.3


@pytest.mark.parametrize("kind", ["dropped", "invented"])
def test_a_worse_reader_errs_on_training_reports_alone(tmp_path: Path, kind: str) -> None:
    work = write_corpus(tmp_path / "corpus")
    before, training = claims_of(work)
    altered = studies.altered_claims(work, kind, seed=0)
    (tmp_path / "own").mkdir()
    studies._write_claims(work, tmp_path / "own", altered, kind)
    after, _ = claims_of(tmp_path / "own", work)
    assert {name: after[name] for name in after if name not in training} == {
        name: before[name] for name in before if name not in training
    }
    errors = 0
    for name in training & after.keys():
        fewer, more = after[name].asserted.keys(), before[name].asserted.keys()
        if kind == "invented":
            fewer, more = more, fewer
        assert fewer <= more
        errors += len(more) - len(fewer)
    assert errors


SAYS = ReportLabels({"Edema": frozenset()}, frozenset(), frozenset(), normal=False)
DENIES = ReportLabels({}, frozenset({"Edema"}), frozenset(), normal=False)


def batch_of(*said: ReportLabels) -> tuple[ImageTextBatch, ContrastiveObjective]:
    """Studies `a`, `b`, ... of one sentence each, and an objective that relates them."""
    codes, names = encode_claims(said), tuple("abcd"[: len(said)])
    batch = ImageTextBatch(
        0,
        slice(0, len(said)),
        names,
        *[torch.empty(0)] * 6,
        sentence_codes=codes,
        report_codes=codes,
        labels=None,
    )
    settings = ObjectiveConfig(kind="multipositive", relation="claims")
    return batch, ContrastiveObjective(settings, 0)


def test_the_relation_alone_sees_other_reports() -> None:
    """Study `a` denies what the sentence of `b` says; read otherwise, it says the same."""
    batch, objective = batch_of(DENIES, SAYS)
    with studies.relation_to({"a": SAYS, "b": SAYS}):
        turned = objective._relation(batch, from_text=True)
    plain = objective._relation(batch, from_text=True)
    assert plain.tolist() == [[SAME, DIFFERENT], [DIFFERENT, SAME]]
    assert turned.tolist() == [[DIFFERENT, DIFFERENT], [SAME, SAME]]


def test_sentences_that_deny_can_be_left_to_infonce() -> None:
    batch, objective = batch_of(DENIES, SAYS, DENIES, SAYS)
    with studies.relation_to({}, asserting_alone=True):
        found = objective._relation(batch, from_text=True)
    plain = objective._relation(batch, from_text=True)
    assert plain[0].tolist() == [SAME, DIFFERENT, SAME, DIFFERENT]
    assert found[0].tolist() == found[2].tolist() == [DIFFERENT] * 4
    assert found[[1, 3]].tolist() == plain[[1, 3]].tolist()


def claims_of(folder: Path, corpus: Path | None = None) -> tuple[dict[str, ReportLabels], set[str]]:
    """Claims of every study's report, and which studies train."""
    artifact = open_artifact(labels.ARTIFACT.at(folder), labels.ARTIFACT)
    table = read_table(artifact.path, labels.REPORT_CLAIMS).to_pylist()
    path = manifest.ARTIFACT.at(corpus or folder)
    reports = read_table(path, manifest.REPORTS, ["study_id", "split"]).to_pylist()
    training = {row["study_id"] for row in reports if row["split"] == "train"}
    return {row["study_id"]: ReportLabels.from_row(row) for row in table}, training
