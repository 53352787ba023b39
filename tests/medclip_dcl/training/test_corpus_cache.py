"""A corpus on disk: the same batches as one in memory, made once, mapped and not copied."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from medclip_dcl.core.artifact import Artifact, ArtifactType, open_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.likelihood import eta, masked_lm
from medclip_dcl.likelihood.masked_lm import load_language_model
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.training import corpus_cache
from medclip_dcl.training.corpus import Corpus, TokenTable
from medclip_dcl.training.corpus_cache import cache_corpus, map_corpus
from medclip_dcl.training.settings import ObjectiveConfig
from medclip_dcl.training.supervision import read_supervision
from tests.support.corpus import read_tiny_corpus, write_corpus, write_eta
from tests.support.headers import made_by_other_code

EVERYTHING = ObjectiveConfig(relation="claims", negatives="remove_labels", place_weight=0.3)
INPUTS: dict[str, ArtifactType] = {
    "manifest": manifest.ARTIFACT,
    "prepared": prepared.ARTIFACT,
    "sentences": sentences.ARTIFACT,
    "eta_cache": eta.ARTIFACT,
    "claims": labels.ARTIFACT,
}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "work")


def make(work: Path, objective: ObjectiveConfig = EVERYTHING, max_tokens: int = 32) -> Artifact:
    inputs = {name: open_artifact(kind.at(work), kind) for name, kind in INPUTS.items()}
    tokenizer = load_language_model(masked_lm.ARTIFACT.at(work)).tokenizer
    splits = ("train", "validate")
    return cache_corpus(work, inputs, None, objective, tokenizer, max_tokens, splits)


def same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other) and one.dtype == other.dtype  # type: ignore[attr-defined]
    return list(one) == list(other)  # type: ignore[call-overload]


@pytest.mark.parametrize("split", ["train", "validate"])
def test_what_is_mapped_is_what_was_read(work: Path, split: str) -> None:
    tokenizer = load_language_model(masked_lm.ARTIFACT.at(work)).tokenizer
    mapped, read = map_corpus(make(work), split, tokenizer), read_tiny_corpus(work, split)
    for field in fields(Corpus):
        one, other = getattr(mapped.corpus, field.name), getattr(read, field.name)
        if field.name in {"images", "sentences"}:
            studies = np.repeat(np.arange(len(read.study_ids)), 5)
            uniform = np.tile(np.linspace(0, 0.99, 5), len(read.study_ids))
            one, other = one.pick(studies, uniform), other.pick(studies, uniform)
        assert same(one, other), field.name
    cut = TokenTable(tokenizer, read.texts, 32)
    assert same(mapped.tokens.pieces, cut.pieces)
    assert same(mapped.tokens.starts, cut.starts)
    listed, claims = (
        open_artifact(kind.at(work), kind) for kind in (manifest.ARTIFACT, labels.ARTIFACT)
    )
    expected = read_supervision(EVERYTHING, read, listed, claims, None)
    for field in fields(expected):
        columns, others = getattr(mapped.supervision, field.name), getattr(expected, field.name)
        assert columns.keys() == others.keys()
        assert all(torch.equal(columns[name], others[name]) for name in columns)


def test_nothing_of_a_mapped_corpus_is_copied(work: Path) -> None:
    tokenizer = load_language_model(masked_lm.ARTIFACT.at(work)).tokenizer
    made = make(work)
    before = pa.total_allocated_bytes()
    corpus, tokens, supervision = map_corpus(made, "train", tokenizer)
    assert pa.total_allocated_bytes() == before
    arrays = (corpus.eta, corpus.text_of, corpus.image_rows, corpus.images.members, tokens.pieces)
    assert not any(array is None or array.flags.owndata for array in arrays)
    supervision.of_texts["sentence_codes"][:] = 7  # a page of one's own: nothing reaches the file
    assert open_artifact(made.path, corpus_cache.ARTIFACT).digest == made.digest


def test_a_corpus_is_made_again_where_something_of_it_changed(work: Path) -> None:
    def inode() -> int:
        return corpus_cache.ARTIFACT.at(work).stat().st_ino

    made = make(work)
    first = inode()
    assert make(work).fingerprint == made.fingerprint
    assert inode() == first
    changes: list[Callable[[], object]] = [
        lambda: make(work, max_tokens=8),
        lambda: make(work, ObjectiveConfig()),
        lambda: (write_eta(work, 0.125), make(work)),
        lambda: (made_by_other_code(made.path, "medclip_dcl/training/corpus.py"), make(work)),
    ]
    for change in changes:
        before = inode()
        change()
        assert inode() != before
    again = make(work)
    tokenizer = load_language_model(masked_lm.ARTIFACT.at(work)).tokenizer
    assert set(map_corpus(again, "train", tokenizer).corpus.eta.tolist()) == {0.125}
