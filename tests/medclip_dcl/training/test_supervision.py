from pathlib import Path

import pytest
import torch

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data import manifest
from medclip_dcl.data.records import Truth
from medclip_dcl.losses.relations import SAME, encode_truth, relation_matrix
from medclip_dcl.text.labeler import labels
from medclip_dcl.training.settings import ObjectiveConfig
from medclip_dcl.training.supervision import Supervision, needs_claims, read_supervision
from tests.support.corpus import read_tiny_corpus


def evidence_of(work: Path, truth: Truth | None = None, **settings: object) -> Supervision:
    objective = ObjectiveConfig.model_validate(settings)
    said = (
        open_artifact(labels.ARTIFACT.at(work), labels.ARTIFACT)
        if needs_claims(objective)
        else None
    )
    images = open_artifact(manifest.ARTIFACT.at(work), manifest.ARTIFACT)
    return read_supervision(objective, read_tiny_corpus(work), images, said, truth)


@pytest.mark.parametrize("relation", ["claims", "labels"])
def test_sentences_are_true_of_studies_of_their_kind(work: Path, relation: str) -> None:
    corpus = read_tiny_corpus(work)
    found = evidence_of(work, relation=relation)
    codes = found.of_texts["sentence_codes"], found.of_studies["report_codes"]
    same = relation_matrix(*codes) == SAME
    kind_of_study = torch.tensor([int(study[1:]) % 4 for study in corpus.study_ids])
    for text, row in zip(corpus.texts, same, strict=True):
        kinds = set(kind_of_study[row].tolist())
        assert len(kinds) == 1, text
        assert row.sum() == 6


def test_labels_are_those_of_the_five_findings(work: Path) -> None:
    labels = evidence_of(work, negatives="remove_labels").of_studies["labels"]
    assert labels.shape == (24, 5)
    assert labels.sum(dim=0).tolist() == [6, 0, 0, 6, 6]


def test_truth_takes_findings_and_sides_of_every_image_of_a_study(work: Path) -> None:
    corpus = read_tiny_corpus(work)
    shown = {image_id: frozenset({"heart"}) for image_id in corpus.image_ids}
    shown["image000a"], shown["image000b"] = frozenset({"left"}), frozenset({"right"})
    sentences = {
        "heart": "There is cardiomegaly.",
        "left": "There is a left pneumothorax.",
        "right": "There is a right pneumothorax.",
    }
    found = evidence_of(work, Truth(shown, {}, frozenset(), sentences), relation="truth")
    expected = [{"Pneumothorax": frozenset({"left", "right"})}]
    expected += [{"Cardiomegaly": frozenset()}] * 23
    assert torch.equal(found.of_studies["report_codes"], encode_truth(expected))


def test_truth_of_a_source_that_has_none_is_refused(work: Path) -> None:
    with pytest.raises(ConfigError, match="generated studies alone"):
        evidence_of(work, relation="truth")
