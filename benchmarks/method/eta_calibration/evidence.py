"""Class probabilities that a corpus shows itself: how many other studies a sentence fits.

Symbols
    w       how often a study counts: 1, or its number of draws in a bootstrap sample
    fits    whether a study's report, or labels, fit the meaning of a sentence
    share   sum of w over the other studies that fit, over the sum of w of all others

The study that contains the sentence is left out: a sentence found in a random report says
nothing about how often the rest of the studies fit, so the share is unbiased for a sentence
drawn as training draws it, rare ones included.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc
import torch
from jaxtyping import Bool, Float, Int, Int8, UInt8
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.method.eta_calibration.fit import Evidence
from medclip_dcl.artifact import Artifact
from medclip_dcl.data import manifest
from medclip_dcl.errors import ArtifactStale, ConfigError
from medclip_dcl.likelihood import scoring
from medclip_dcl.losses.relations import DIFFERENT, encode_claims, encode_labels, relation_matrix
from medclip_dcl.tables import TableFormat, read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.labels import ReportLabels
from medclip_dcl.text.labeler.lexicon import LABELS

_BLOCK = 1 << 24  # cells of `fits` unpacked at a time

Weights = Float[np.ndarray, " studies"]


@dataclass(frozen=True)
class Occurrences:
    """Which study says which sentence, by their numbers; each pair stands once."""

    sentence: Int[np.ndarray, " pairs"]
    study: Int[np.ndarray, " pairs"]
    sentences: int  # in the corpus
    studies: int

    def sums(
        self, values: Float[np.ndarray, " pairs"] | float, weights: Weights
    ) -> Float[np.ndarray, " sentences"]:
        """Sum values over the studies that say each sentence, as often as each study counts."""
        return np.bincount(self.sentence, values * weights[self.study], minlength=self.sentences)


@dataclass(frozen=True)
class MatchTable:
    """Which meanings fit which studies."""

    of_sentence: Int[np.ndarray, " sentences"]
    """Meaning of each; -1 where nobody knows it."""
    of_study: Int[np.ndarray, " studies"]
    """What is known of each, as a column of `fits`; -1: nothing."""
    fits: UInt8[np.ndarray, "meanings bytes"]
    """Bits over the columns, packed as `numpy.packbits` does."""
    columns: int

    def fitting(self, weights: Weights) -> Float[np.ndarray, " meanings"]:
        """Sum the weights of the studies that each meaning fits."""
        known = self.of_study >= 0
        column = np.bincount(self.of_study[known], weights[known], minlength=self.columns)
        rows = max(1, _BLOCK // max(1, self.columns))
        sums = [
            np.unpackbits(self.fits[start : start + rows], axis=1, count=self.columns) @ column
            for start in range(0, len(self.fits), rows)
        ]
        return np.concatenate(sums) if sums else np.empty(0)

    def own(self, occurrences: Occurrences) -> Bool[np.ndarray, " pairs"]:
        """Return whether a sentence fits the study that says it; no where either is unknown."""
        meaning, column = self.of_sentence[occurrences.sentence], self.of_study[occurrences.study]
        known = (meaning >= 0) & (column >= 0)
        bits = np.zeros(len(meaning), dtype=bool)
        at = column[known]
        bits[known] = self.fits[meaning[known], at // 8] >> (7 - at % 8) & 1
        return bits


def measure_meanings(
    pll_nats: Float[np.ndarray, " sentences"],
    occurrences: Occurrences,
    meanings: MatchTable,
    weights: Weights,
    min_studies: int,
) -> Evidence:
    """Measure each sentence by the studies that its meaning fits, in any wording.

    A share must rest on `min_studies` other studies to count as measured. A sentence without
    meaning, or that nobody says, has weight 0.
    """
    known = (meanings.of_study >= 0).astype(np.float64)
    fitting = np.append(meanings.fitting(weights), 0.0)[meanings.of_sentence]
    own = meanings.own(occurrences).astype(np.float64)
    found = _evidence(pll_nats, occurrences, fitting, own, known, weights, min_studies)
    return replace(found, weight=np.where(meanings.of_sentence >= 0, found.weight, 0.0))


def measure_wordings(
    pll_nats: Float[np.ndarray, " sentences"],
    occurrences: Occurrences,
    weights: Weights,
    min_studies: int,
) -> Evidence:
    """Measure each sentence by the studies that say the very same words.

    That is too small wherever a meaning has several wordings. A share must rest on `min_studies`
    other studies to count as measured.
    """
    ones = np.ones(len(occurrences.study))
    said = occurrences.sums(1.0, weights)
    everywhere = np.ones(occurrences.studies)
    return _evidence(pll_nats, occurrences, said, ones, everywhere, weights, min_studies)


def _evidence(
    pll_nats: Float[np.ndarray, " sentences"],
    occurrences: Occurrences,
    fitting: Float[np.ndarray, " sentences"],
    own: Float[np.ndarray, " pairs"],
    known: Weights,
    weights: Weights,
    min_studies: int,
) -> Evidence:
    """Leave the study that says a sentence out, on average over those that say it."""
    said = occurrences.sums(1.0, weights)
    square, safe = weights**2, np.maximum(said, 1e-300)
    total = float((weights * known).sum())
    others = fitting - occurrences.sums(own, square) / safe
    studies = total - occurrences.sums(known[occurrences.study], square) / safe
    share = np.clip(others / np.maximum(studies, 1e-300), 0.0, 1.0)
    return Evidence(pll_nats, share, said, min_studies / max(total - 1, 1.0))


Measure = Callable[[NDArray[np.float64]], Evidence]
"""Gives the evidence when study i counts as often as the i-th weight says."""

Codes = Int8[Tensor, "texts codes"]

_ROWS = 512  # meanings compared with all reports at a time


@dataclass(frozen=True)
class ScoredCorpus:
    """The training sentences: their likelihoods, and who says them."""

    keys: list[str]
    """Text keys of all distinct sentences."""
    pll_nats: NDArray[np.float64]
    occurrences: Occurrences
    study_ids: list[str]
    patient_of: NDArray[np.int64]
    """Patient of each study, numbered from 0."""


def read_scored_corpus(source: Artifact, scored: Artifact) -> ScoredCorpus:
    """Read the training sentences; ArtifactStale where their likelihoods are of others."""
    table = read_table(scored.path, scoring.LIKELIHOODS, ["text_key", "pll_nats"])
    keys = sentences.distinct_sentences(source)["text_key"]
    if not table["text_key"].equals(keys):
        raise ArtifactStale("likelihoods and sentences differ; rerun score_sentences")
    columns = ["study_id", "subject_id", "split", "text_key"]
    rows = read_table(source.path, sentences.SENTENCES, columns)
    training = rows.filter(pc.equal(rows["split"], "train"))
    pairs = training.group_by(["text_key", "study_id"]).aggregate([("subject_id", "min")])
    ids, study = np.unique(pairs["study_id"].to_numpy(), return_inverse=True)
    index = pc.index_in(pairs["text_key"], keys.combine_chunks()).to_numpy()
    patient_of = np.zeros(len(ids), dtype=np.int64)
    _, patient = np.unique(pairs["subject_id_min"].to_numpy(), return_inverse=True)
    patient_of[study] = patient
    return ScoredCorpus(
        keys.to_pylist(),
        table["pll_nats"].to_numpy().copy(),
        Occurrences(index.astype(np.int64), study, len(keys), len(ids)),
        ids.tolist(),
        patient_of,
    )


def by_wordings(corpus: ScoredCorpus, min_studies: int) -> Measure:
    """Measure by the studies that say the very same words."""
    return lambda weights: measure_wordings(
        corpus.pll_nats, corpus.occurrences, weights, min_studies
    )


def by_claims(corpus: ScoredCorpus, claimed: Artifact, min_studies: int) -> Measure:
    """Measure by the studies whose reports say, or leave open, what a sentence says.

    ArtifactStale where the claims lack a sentence or a report.
    """
    reports = _encoded(claimed, labels.REPORT_CLAIMS, "study_id", corpus.study_ids)
    known = np.ones(len(corpus.study_ids), dtype=bool)
    return _by_meanings(corpus, claimed, reports, known, min_studies)


def by_labels(
    corpus: ScoredCorpus, claimed: Artifact, listed: Artifact, min_studies: int
) -> Measure:
    """Measure by the studies whose labels are, or leave open, what a sentence says.

    Studies without labels are left out. ArtifactStale where the claims lack a sentence; ConfigError
    where the source has no label table.
    """
    if manifest.STUDY_LABELS.file not in listed.files:
        raise ConfigError("--evidence is 'labels' and the source has none; set another")
    rows = {
        row["study_id"]: {name: row[name] for name in LABELS}
        for row in read_table(listed.path, manifest.STUDY_LABELS).to_pylist()
    }
    labels = encode_labels([rows.get(study, {}) for study in corpus.study_ids])
    known = np.array([study in rows for study in corpus.study_ids])
    return _by_meanings(corpus, claimed, labels, known, min_studies)


def by_table(corpus: ScoredCorpus, given: Mapping[str, float], min_studies: int) -> Measure:
    """Take class probabilities as someone gives them: text key -> probability; others do not count.

    A share of fewer than `min_studies` of the corpus does not count as measured.
    """
    known = np.array([key in given for key in corpus.keys], dtype=np.float64)
    share = np.array([given.get(key, 0.0) for key in corpus.keys])
    floor = min_studies / max(1, len(corpus.study_ids) - 1)
    return lambda weights: Evidence(
        corpus.pll_nats, share, known * corpus.occurrences.sums(1.0, weights), floor
    )


def _by_meanings(
    corpus: ScoredCorpus,
    claimed: Artifact,
    studies: Codes,
    known: NDArray[np.bool_],
    min_studies: int,
) -> Measure:
    reported = _encoded(claimed, labels.SENTENCE_CLAIMS, "text_key", corpus.keys)
    meanings = _compare(reported, studies, known)
    return lambda weights: measure_meanings(
        corpus.pll_nats, corpus.occurrences, meanings, weights, min_studies
    )


def _encoded(claimed: Artifact, form: TableFormat, key: str, ids: Sequence[str]) -> Codes:
    rows = {row[key]: row for row in read_table(claimed.path, form).to_pylist()}
    if not rows.keys() >= set(ids):
        raise ArtifactStale("claims and sentences differ; rerun read_claims")
    return encode_claims([ReportLabels.from_row(rows[name]) for name in ids])


def _compare(reported: Codes, studies: Codes, known: NDArray[np.bool_]) -> MatchTable:
    """Compare every distinct meaning with every distinct report."""
    meanings, of_sentence = torch.unique(reported, dim=0, return_inverse=True)
    columns, of_study = torch.unique(studies, dim=0, return_inverse=True)
    fits = [
        np.packbits((relation_matrix(block, columns) != DIFFERENT).numpy(), axis=1)
        for block in meanings.split(_ROWS)
    ]
    silent = (reported == 0).all(dim=1)
    return MatchTable(
        of_sentence.masked_fill(silent, -1).numpy(),
        np.where(known, of_study.numpy(), -1),
        np.concatenate(fits),
        len(columns),
    )
