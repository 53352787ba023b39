from pathlib import Path

import numpy as np
import pytest
import torch

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data import manifest
from medclip_dcl.likelihood.masked_lm import load_language_model
from medclip_dcl.losses.negatives import remove_by_similarity
from medclip_dcl.losses.relations import SAME, relation_matrix
from medclip_dcl.models.text_encoder import TextEncoder, load_text_weights
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.training.corpus import Corpus, TokenTable
from medclip_dcl.training.sampler import ImageTextSampler, RaggedIndex
from medclip_dcl.training.settings import ObjectiveConfig
from medclip_dcl.training.supervision import (
    Supervision,
    closest_threshold,
    read_supervision,
    text_vectors,
)
from tests.support.corpus import KINDS, commit_tables, made, read_tiny_corpus


@pytest.fixture(scope="module")
def corpus(work: Path) -> Corpus:
    return read_tiny_corpus(work)


def supervision_of(work: Path, **settings: object) -> Supervision:
    objective = ObjectiveConfig.model_validate(settings)
    claims = None if objective.relation == "none" else made(work, labels.ARTIFACT)
    studies = made(work, manifest.ARTIFACT)
    return read_supervision(objective, read_tiny_corpus(work), studies, claims)


@pytest.mark.parametrize("relation", ["claims", "labels"])
def test_sentences_are_true_of_studies_of_their_kind(work: Path, corpus, relation: str) -> None:
    found = supervision_of(work, relation=relation)
    codes = found.of_texts["sentence_codes"], found.of_studies["report_codes"]
    same = relation_matrix(*codes) == SAME
    kind_of_study = torch.tensor([int(study[1:]) % 4 for study in corpus.study_ids])
    for text, row in zip(corpus.texts, same, strict=True):
        kinds = set(kind_of_study[row].tolist())
        assert len(kinds) == 1, text
        assert row.sum() == 6


def test_labels_are_those_of_the_five_findings(work: Path) -> None:
    labels = supervision_of(work, negatives="remove_labels").of_studies["labels"]
    assert labels.shape == (24, 5)
    assert labels.sum(dim=0).tolist() == [6, 0, 0, 6, 6]


def test_labels_of_other_studies_alone_are_refused(tmp_path: Path, corpus: Corpus) -> None:
    row = {**dict.fromkeys(LABELS), "study_id": "another", "Edema": 1}
    studies = commit_tables(tmp_path, manifest.ARTIFACT, {manifest.STUDY_LABELS: [row]})
    with pytest.raises(ConfigError, match="no training study has one of its findings"):
        read_supervision(ObjectiveConfig(negatives="remove_labels"), corpus, studies, None)


@pytest.mark.parametrize(("share", "threshold"), [(0.1, 1 - 1e-4), (0.2, 1 - 1e-4), (0.3, 0.0)])
def test_the_threshold_lies_where_the_closest_pairs_of_batches_end(corpus, share, threshold):
    """6 of 24 studies are of a kind, so 5 of 23 pairs of a batch, 22 %, have cosine 1, others 0."""
    kinds = [next(k for k, (_, *said) in enumerate(KINDS) if text in said) for text in corpus.texts]
    sampler = ImageTextSampler(corpus.images, corpus.sentences, 8, 0, False)
    found = closest_threshold(torch.eye(4)[kinds], corpus, sampler, share)
    assert found == pytest.approx(threshold, abs=1e-6)


def test_about_the_share_that_is_asked_is_removed_from_later_batches() -> None:
    """600 studies with a sentence each, no two alike: no pair stands exactly on the threshold."""
    count, sampled = 600, 40
    rows = np.arange(count)
    index = RaggedIndex(rows, count)
    ids = tuple(map(str, rows))
    eta = np.zeros(count, np.float32)
    corpus = Corpus(ids, frozenset(), index, ids, rows, index, rows, ids, ids, eta)
    vectors = torch.nn.functional.normalize(torch.randn(count, 8), dim=-1)
    sampler = ImageTextSampler(index, index, 32, 0, False)
    threshold = closest_threshold(vectors, corpus, sampler, 0.1)
    kept = []
    for step in range(sampled, 2 * sampled):
        some = vectors[torch.from_numpy(sampler.draw(step).sentences)]
        kept.append(remove_by_similarity(some @ some.T, torch.arange(32), threshold).sum() / 32)
    assert 1 - np.mean(kept) / 31 == pytest.approx(0.1, abs=0.01)


def test_mean_states_are_centred_on_the_training_sentences(work: Path, corpus: Corpus) -> None:
    model = load_language_model(work / "language_model")
    encoder = TextEncoder(model.model.config, 16)
    load_text_weights(encoder, work / "language_model")
    encoder.train()
    texts = {"train": corpus.texts, "validate": corpus.texts[:3]}
    splits = {name: (corpus, TokenTable(model.tokenizer, each, 32)) for name, each in texts.items()}
    found = text_vectors(encoder, splits, torch.device("cpu"))
    assert encoder.training  # and dropout played no part
    encoder.eval()
    states = []
    for text in corpus.texts:  # one by one: no padding
        ids = torch.tensor([model.tokenizer(text)["input_ids"]])
        states.append(encoder.backbone(input_ids=ids)[0][0].mean(0).detach())
    centre = torch.stack([states[text] for text in corpus.text_of]).mean(0)
    for vector, state in zip(found["train"], states, strict=True):
        expected = (state - centre) / (state - centre).norm()
        torch.testing.assert_close(vector, expected, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(found["validate"], found["train"][:3], atol=1e-5, rtol=0)
