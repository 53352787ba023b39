from pathlib import Path

import pytest
import torch

from benchmarks.fixtures.corpus import ETA, read_tiny_corpus, write_corpus
from medclip_dcl.artifact import open_artifact
from medclip_dcl.data import manifest
from medclip_dcl.reporting.correction import BatchAudit, audit_batches
from medclip_dcl.text.labeler import labels
from medclip_dcl.training.dataset import Corpus, read_supervision
from medclip_dcl.training.settings import ObjectiveConfig


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, torch.Tensor, torch.Tensor]:
    work: Path = write_corpus(tmp_path_factory.mktemp("audited"))
    found = read_tiny_corpus(work)
    listed = open_artifact(manifest.ARTIFACT.at(work), manifest.ARTIFACT)
    claimed = open_artifact(labels.ARTIFACT.at(work), labels.ARTIFACT)
    reading = ObjectiveConfig(relation="claims")
    supervision = read_supervision(reading, found, listed, claimed, None)
    assert supervision.sentence_codes is not None
    assert supervision.report_codes is not None
    return found, supervision.sentence_codes, supervision.report_codes


def audited(corpus: tuple[Corpus, torch.Tensor, torch.Tensor], size: int = 24) -> BatchAudit:
    return audit_batches(*corpus, size, batches=6, suspects=3, seed=0)


def test_a_batch_of_all_studies_has_the_false_negatives_that_can_be_counted(
    corpus: tuple[Corpus, torch.Tensor, torch.Tensor],
) -> None:
    found = audited(corpus)
    assert found.negatives == 24 * 23
    # four kinds of six studies: every anchor has five others of its kind
    assert (found.same + found.unclear >= 24 * 5).all()
    assert found.same.tolist() == [24 * 5] * 6
    assert found.expected == pytest.approx([24 * 23 * ETA] * 6)


def test_a_suspect_is_another_study_s_image_of_the_same_kind(
    corpus: tuple[Corpus, torch.Tensor, torch.Tensor],
) -> None:
    studies = corpus[0]
    for item in audited(corpus).suspects:
        assert studies.study_of_image[item.image] == item.study
        kind = {int(studies.text_of[i]) for i in range(len(studies.text_of))}
        assert item.text in kind
        assert item.eta == pytest.approx(ETA)
        relation_kind = int(studies.study_ids[item.study][1:]) % 4
        sayers = {
            int(studies.study_ids[study][1:]) % 4
            for study in range(24)
            if item.text
            in {int(studies.text_of[studies.sentences.pick([study], [at])[0]]) for at in (0.0, 0.6)}
        }
        assert sayers == {relation_kind}


def test_a_batch_is_no_larger_than_the_corpus(
    corpus: tuple[Corpus, torch.Tensor, torch.Tensor],
) -> None:
    assert audited(corpus, size=64).negatives == 24 * 23
    assert audited(corpus, size=2).negatives == 2
