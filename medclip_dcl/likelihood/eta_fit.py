"""a and k of eta = min(a * p**k, cap), fitted to class probabilities that the corpus shows itself.

A likelihood has the scale of its language model, and the paper searched a and k for CXR-BERT. The
training reports tell how often a sentence is true: eta of another model is fitted to that.

Symbols
    p       exp(pll_nats): how likely a sentence is
    share   of the other training studies, those whose claims or labels the sentence fits
    weight  how often training says the sentence
    floor   smallest share that counts as measured; below it a handful of studies decides
    cap     largest eta that training uses

A study fits where its report says, or leaves open, what the sentence says. The study that contains
the sentence is left out: found in a random report, it says nothing about the rest, so that the
share is unbiased for a sentence drawn as training draws it, rare ones included.

Fitted is log min(a * p**k, cap) to log min(share, cap), by least squares over sentences as often
as they are said. A sentence below the floor pulls only an eta above the floor. The fit is never
worse on its shares than the best constant. What p can know is limited: it is the chance of one
wording, while the share belongs to the meaning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Bool, Float, Int, Int8, UInt8
from scipy import optimize
from torch import Tensor

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ArtifactStale, ConfigError, ScoreError
from medclip_dcl.core.tables import TableFormat, read_in_parts
from medclip_dcl.data import manifest
from medclip_dcl.likelihood.eta import cap_eta, eta_from_pll
from medclip_dcl.losses.relations import DIFFERENT, encode_claims, encode_labels, relation_matrix
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.labels import ReportLabels

Floats = Float[np.ndarray, " sentences"]
Codes = Int8[Tensor, "_ codes"]

LARGEST_A = 0.999
"""Upper end of a: a sentence that is sure to be said fits every image, and no more."""
LEAST_STUDIES = 5
"""Other studies that a share must rest on to count as measured."""

_FEWEST = 10
_BOUNDS = ((-30.0, float(np.log(LARGEST_A))), (0.0, 30.0))
"""Of log a, and of k times the spread of the likelihoods."""
_SLOPES = (0.0, 0.25, 0.5, 1.0, 2.0)  # where the fit starts: the cap makes several optima
_ROWS = 512  # meanings compared with all reports at a time
_ROWS_AT_ONCE = 20_000  # as Python's objects: they take ten times what a table takes
_BLOCK = 1 << 22  # cells of `fits`, or pairs of sentence and study, at a time


@dataclass(frozen=True)
class Shares:
    """Measured class probabilities of a corpus's distinct sentences."""

    share: Floats
    """In [0, 1]."""
    weight: Floats
    """At least 0; 0 where training never says the sentence, or nobody knows what it means."""
    floor: float
    """Above 0."""

    @property
    def is_counted(self) -> Bool[np.ndarray, " sentences"]:
        """Measured sentences that training says."""
        return (self.share >= self.floor) & (self.weight > 0)


class Line(NamedTuple):
    """0 < a <= `LARGEST_A`, k >= 0."""

    a: float
    k: float

    def eta(self, pll_nats: Floats, cap: float) -> Floats:
        """Return min(a * p**k, cap)."""
        raw = eta_from_pll(torch.from_numpy(pll_nats.copy()), self.a, self.k)
        eta: np.ndarray = cap_eta(raw, cap).numpy()
        return eta


def fit_line(pll_nats: Floats, shares: Shares, cap: float) -> Line:
    """Fit a and k.

    Raises:
        ScoreError: fewer than ten sentences are measured below the cap, or the floor is not below
            it, or a value is out of its range.

    Source: ours.
    """
    _check(pll_nats, shares, cap)
    used = shares.weight > 0
    share, weight = shares.share[used], shares.weight[used]
    scale = max(float(pll_nats[used].std()), 1e-9)
    rows = _Rows(
        x=pll_nats[used] / scale,
        y=np.log(np.clip(share, shares.floor, cap)),
        below=share < shares.floor,
        weight=weight / weight.sum(),
        log_cap=float(np.log(cap)),
    )
    level, middle = (float(rows.weight @ values) for values in (rows.y, rows.x))
    highest = _BOUNDS[0][1]
    found = [
        _minimum(rows, np.array([min(level - slope * middle, highest), slope])) for slope in _SLOPES
    ]
    log_a, slope = min(found, key=lambda at: _loss(rows, at)[0])
    return Line(float(np.exp(log_a)), float(slope / scale))


class _Rows(NamedTuple):
    """Sentences in the units of the fit; y is the log share between floor and cap."""

    x: Floats
    y: Floats
    below: Bool[np.ndarray, " sentences"]
    weight: Floats
    log_cap: float


def _loss(rows: _Rows, at: Float[np.ndarray, "2"]) -> tuple[float, Float[np.ndarray, "2"]]:
    """Half the mean square of log eta - log share at (log a, slope), and its gradient."""
    log_line = at[0] + at[1] * rows.x
    off = np.minimum(log_line, rows.log_cap) - rows.y
    # A share below the floor may be anything there: an eta that is below as well is not wrong.
    off = np.where(rows.below, np.maximum(off, 0.0), off)
    # Where the cap holds eta, the line no longer moves it.
    pull = rows.weight * off * (log_line < rows.log_cap)
    return float((rows.weight * off**2).sum() / 2), np.array([pull.sum(), (pull * rows.x).sum()])


def _minimum(rows: _Rows, start: Float[np.ndarray, "2"]) -> Float[np.ndarray, "2"]:
    options = {"ftol": 1e-14, "gtol": 1e-9, "maxiter": 500}
    found: np.ndarray = optimize.minimize(
        partial(_loss, rows), start, jac=True, method="L-BFGS-B", bounds=_BOUNDS, options=options
    ).x
    return found


def best_constant(shares: Shares, cap: float) -> float:
    """Return the constant eta with the least log error: the geometric mean of the capped shares."""
    known = shares.is_counted
    capped = np.minimum(shares.share[known], cap)
    return float(np.exp(np.average(np.log(capped), weights=shares.weight[known])))


def log_error(eta: Floats, shares: Shares, cap: float) -> float:
    """Return the root of the weighted mean square of log min(eta, cap) - log min(share, cap), nats.

    Sentences below the floor are left out; nan where nothing is measured. 0.69 is a factor of 2.
    """
    known = shares.is_counted
    if not known.any():
        return float("nan")
    off = np.log(np.minimum(eta[known], cap)) - np.log(np.minimum(shares.share[known], cap))
    return float(np.sqrt(np.average(off**2, weights=shares.weight[known])))


def mean_eta(eta: Floats, shares: Shares, cap: float) -> tuple[float, float]:
    """Return the mean of an eta and of the capped shares, over the same sentences as said.

    Both are nan where training says no sentence that has a share.
    """
    if not shares.weight.sum() > 0:
        return float("nan"), float("nan")
    capped = np.minimum(shares.share, cap)
    assumed, measured = (np.average(values, weights=shares.weight) for values in (eta, capped))
    return float(assumed), float(measured)


def measure_shares(
    texts: Artifact, claimed: Artifact, by: Literal["claims", "labels"], listed: Artifact | None
) -> Shares:
    """Measure every distinct sentence by the other training studies that it fits.

    `texts`, `claimed` and `listed` are the artifacts of sentences, claims and, for `labels`, the
    manifest; studies without labels are then left out.

    Raises:
        ArtifactStale: the claims lack a sentence or a report.
        ConfigError: the manifest has no label table.
    """
    keys = sentences.distinct_sentences(texts)["text_key"].combine_chunks()
    said, study_ids = _occurrences(texts, keys)
    known = np.ones(len(study_ids), dtype=bool)
    if by == "claims":
        codes = _encoded(claimed, labels.REPORT_CLAIMS, "study_id", study_ids)
    else:
        findings = labels.claimed_findings(claimed)
        codes, known = _labelled(listed, study_ids.to_pylist(), findings)
    meanings = _encoded(claimed, labels.SENTENCE_CLAIMS, "text_key", keys)
    return count_fits(said, compare(meanings, codes, known))


def _occurrences(texts: Artifact, keys: pa.Array) -> tuple["Occurrences", pa.Array]:
    """Number the training studies and the sentences that they say."""
    columns = ("study_id", "split", "text_key")
    study_ids: list[pa.Array] = []
    pairs = [np.zeros((2, 0), np.int32)]
    studies = 0
    for part in read_in_parts(texts.path, sentences.SENTENCES, columns, whole="study_id"):
        training = part.filter(pc.equal(part["split"], "train"))
        coded = training["study_id"].combine_chunks().dictionary_encode()
        sentence = pc.index_in(training["text_key"], keys).to_numpy()
        study = coded.indices.to_numpy() + studies
        pairs.append(np.unique(np.stack([sentence, study]).astype(np.int32), axis=1))
        study_ids.append(coded.dictionary)
        studies += len(coded.dictionary)
    sentence, study = np.concatenate(pairs, axis=1)
    ids = pa.concat_arrays(study_ids) if study_ids else pa.array([], pa.string())
    return Occurrences(sentence, study, len(keys)), ids


@dataclass(frozen=True)
class Occurrences:
    """Which study says which sentence, by their numbers; each pair stands once."""

    sentence: Int[np.ndarray, " pairs"]
    study: Int[np.ndarray, " pairs"]
    sentences: int  # in the corpus


@dataclass(frozen=True)
class Fits:
    """Which meanings fit which studies."""

    of_sentence: Int[np.ndarray, " sentences"]
    """Meaning of each; -1 where nobody knows it."""
    of_study: Int[np.ndarray, " studies"]
    """What is known of each, as a column of `table`; -1: nothing."""
    table: UInt8[np.ndarray, "meanings bytes"]
    """Bits over the columns, packed as `numpy.packbits` does."""
    columns: int


def compare(
    meanings: Int8[Tensor, "sentences codes"],
    studies: Int8[Tensor, "studies codes"],
    known: Bool[np.ndarray, " studies"],
) -> Fits:
    """Compare every distinct meaning with every distinct report or row of labels."""
    distinct, of_sentence = torch.unique(meanings, dim=0, return_inverse=True)
    columns, of_study = torch.unique(studies, dim=0, return_inverse=True)
    fits = [
        np.packbits((relation_matrix(block, columns) != DIFFERENT).numpy(), axis=1)
        for block in distinct.split(max(1, min(_ROWS, _BLOCK // max(1, len(columns)))))
    ]
    silent = (meanings == 0).all(dim=1)
    return Fits(
        of_sentence.masked_fill(silent, -1).numpy(),
        np.where(known, of_study.numpy(), -1),
        np.concatenate(fits),
        len(columns),
    )


def count_fits(said: Occurrences, fits: Fits) -> Shares:
    """Measure each sentence by the studies that its meaning fits, in any wording.

    The study that says it is left out, on average over those that do.
    """
    known = fits.of_study >= 0
    per_column = np.bincount(fits.of_study[known], minlength=fits.columns).astype(np.float64)
    fitting = np.append(_row_sums(fits, per_column), 0.0)[fits.of_sentence]
    weight = np.bincount(said.sentence, minlength=said.sentences).astype(np.float64)
    safe = np.maximum(weight, 1.0)

    own, own_known = np.zeros(said.sentences), np.zeros(said.sentences)
    for start in range(0, len(said.sentence), _BLOCK):
        sentence, study = (x[start : start + _BLOCK] for x in (said.sentence, said.study))
        own += np.bincount(sentence, _own(sentence, study, fits), minlength=said.sentences)
        own_known += np.bincount(sentence, known[study], minlength=said.sentences)
    others = fitting - own / safe
    studies = known.sum() - own_known / safe
    share = np.clip(others / np.maximum(studies, 1e-300), 0.0, 1.0)
    floor = LEAST_STUDIES / max(float(known.sum()) - 1, 1.0)
    return Shares(share, np.where(fits.of_sentence >= 0, weight, 0.0), floor)


def _row_sums(fits: Fits, column: Float[np.ndarray, " columns"]) -> Float[np.ndarray, " meanings"]:
    rows = max(1, _BLOCK // max(1, fits.columns))
    sums = [
        np.unpackbits(fits.table[start : start + rows], axis=1, count=fits.columns) @ column
        for start in range(0, len(fits.table), rows)
    ]
    return np.concatenate(sums)


def _own(
    sentence: Int[np.ndarray, " pairs"], study: Int[np.ndarray, " pairs"], fits: Fits
) -> Bool[np.ndarray, " pairs"]:
    """Return whether a sentence fits the study that says it; no where either is unknown."""
    meaning, column = fits.of_sentence[sentence], fits.of_study[study]
    known = (meaning >= 0) & (column >= 0)
    bits = np.zeros(len(meaning), dtype=bool)
    at = column[known]
    # As packbits lays them out: the first column of eight is the highest bit.
    bits[known] = fits.table[meaning[known], at // 8] >> (7 - at % 8) & 1
    return bits


def _encoded(claimed: Artifact, form: TableFormat, key: str, ids: pa.Array) -> Codes:
    findings = labels.claimed_findings(claimed)
    codes = torch.zeros(len(ids), len(findings) + 1, dtype=torch.int8)
    missing = len(ids)
    for part in read_in_parts(claimed.path, form, form.schema.names):
        at = pc.index_in(part[key], ids).combine_chunks()
        asked, rows = part.filter(at.is_valid()), at.drop_null().to_numpy()
        missing -= len(rows)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = asked.slice(start, _ROWS_AT_ONCE).to_pylist()
            claims = [ReportLabels.from_row(row) for row in some]
            codes.numpy()[rows[start : start + len(some)]] = encode_claims(claims, findings)
    if missing:
        raise ArtifactStale("claims and sentences differ; rerun read_claims")
    return codes


def _labelled(
    listed: Artifact | None, study_ids: Sequence[str], findings: Sequence[str]
) -> tuple[Codes, Bool[np.ndarray, " studies"]]:
    if listed is None or manifest.STUDY_LABELS.file not in listed.files:
        raise ConfigError("eta.fit is 'labels' and the manifest has none; set eta.fit to claims")
    rows = {row.pop("study_id"): row for row in manifest.read_labels(listed).to_pylist()}
    known = np.array([study in rows for study in study_ids], dtype=bool)
    return encode_labels([rows.get(study, {}) for study in study_ids], findings), known


def obstacle(shares: Shares, cap: float) -> str:
    """Say why a corpus is too small to fit a and k, and what then; empty: it is not."""
    if not 0 < shares.floor < cap < 1:
        return (
            f"the smallest share that counts as measured, {shares.floor:.4g}, must be above 0 and "
            f"below the cap, {cap:.4g}; add studies, or set eta.fit to none"
        )
    inside = int((shares.is_counted & (shares.share < cap)).sum())
    if inside < _FEWEST:
        return (
            f"{inside} sentences are measured below the cap and {_FEWEST} are needed to "
            "fit a and k; add studies, or set eta.fit to none"
        )
    return ""


def _check(pll_nats: Floats, shares: Shares, cap: float) -> None:
    wrong = ~np.isfinite(np.stack([pll_nats, shares.share, shares.weight])).all(axis=0)
    wrong |= (pll_nats > 0) | (shares.share < 0) | (shares.share > 1) | (shares.weight < 0)
    if wrong.any():
        raise ScoreError(
            f"{int(wrong.sum())} sentences have no valid likelihood, share or weight; "
            "rerun score_sentences"
        )
    if reason := obstacle(shares, cap):
        raise ScoreError(reason)
