"""Class probabilities that a corpus shows itself: how many other studies a sentence fits.

Symbols
    w       how often a study counts: 1, or its number of draws in a bootstrap sample
    fits    whether a study's report, or labels, fit the meaning of a sentence
    share   sum of w over the other studies that fit, over the sum of w of all others

The study that says the sentence is left out: a sentence found in a random report tells
nothing of how often the rest of the studies fit, so the share is unbiased for a sentence
drawn as training draws it, rare ones included.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from medclip_dcl.likelihood.calibration import Evidence

_BLOCK = 1 << 24  # cells of `fits` unpacked at a time

Weights = Float[np.ndarray, " studies"]


@dataclass(frozen=True)
class Sayings:
    """Which study says which sentence; each pair stands once.

    Attributes:
        sentence: place of the sentence in the corpus's order, one per pair.
        study: number of the study, one per pair.
        sentences: distinct sentences of the corpus.
        studies: number of studies.
    """

    sentence: Int[np.ndarray, " pairs"]
    study: Int[np.ndarray, " pairs"]
    sentences: int
    studies: int

    def sums(
        self, values: Float[np.ndarray, " pairs"], weights: Weights
    ) -> Float[np.ndarray, " sentences"]:
        """Sum values over the studies that say each sentence.

        Args:
            values: one per pair.
            weights: how often each study counts.

        Returns:
            One sum per sentence.
        """
        summed: np.ndarray = np.bincount(
            self.sentence, values * weights[self.study], minlength=self.sentences
        )
        return summed


@dataclass(frozen=True)
class Meanings:
    """Which meanings fit which studies.

    Attributes:
        of_sentence: meaning of each sentence; -1 where nobody knows it.
        of_study: what is known of each study, as a column of `fits`; -1: nothing.
        fits: for each meaning, bits over the columns, packed as `numpy.packbits` does.
        columns: number of columns.
    """

    of_sentence: Int[np.ndarray, " sentences"]
    of_study: Int[np.ndarray, " studies"]
    fits: UInt8[np.ndarray, "meanings bytes"]
    columns: int

    def fitting(self, weights: Weights) -> Float[np.ndarray, " meanings"]:
        """Sum the weights of the studies that each meaning fits.

        Args:
            weights: how often each study counts.

        Returns:
            One sum per meaning.
        """
        known = self.of_study >= 0
        column = np.bincount(self.of_study[known], weights[known], minlength=self.columns)
        rows = max(1, _BLOCK // max(1, self.columns))
        sums = [
            self._unpacked(np.arange(start, min(start + rows, len(self.fits)))) @ column
            for start in range(0, len(self.fits), rows)
        ]
        return np.concatenate(sums) if sums else np.empty(0)

    def own(self, sayings: Sayings) -> Bool[np.ndarray, " pairs"]:
        """Tell whether a sentence fits the study that says it.

        Args:
            sayings: who says what.

        Returns:
            One answer per pair; no where either is unknown.
        """
        meaning, column = self.of_sentence[sayings.sentence], self.of_study[sayings.study]
        known = (meaning >= 0) & (column >= 0)
        bits = np.zeros(len(meaning), dtype=bool)
        at = column[known]
        bits[known] = self.fits[meaning[known], at // 8] >> (7 - at % 8) & 1
        return bits

    def _unpacked(self, rows: Int[np.ndarray, " rows"]) -> UInt8[np.ndarray, "rows columns"]:
        return np.unpackbits(self.fits[rows], axis=1, count=self.columns)


def measure_meanings(
    pll_nats: Float[np.ndarray, " sentences"],
    sayings: Sayings,
    meanings: Meanings,
    weights: Weights,
    min_studies: int,
) -> Evidence:
    """Measure each sentence by the studies that its meaning fits, in any wording.

    Args:
        pll_nats: pseudo-log-likelihoods.
        sayings: who says what.
        meanings: what fits whom.
        weights: how often each study counts.
        min_studies: other studies that a share must rest on to count as measured.

    Returns:
        The evidence; a sentence without meaning, or that nobody says, has weight 0.
    """
    known = (meanings.of_study >= 0).astype(np.float64)
    fitting = np.append(meanings.fitting(weights), 0.0)[meanings.of_sentence]
    own = meanings.own(sayings)
    return _evidence(
        pll_nats,
        sayings,
        fitting,
        own.astype(np.float64),
        known,
        np.where(meanings.of_sentence >= 0, 1.0, 0.0),
        weights,
        min_studies,
    )


def measure_wordings(
    pll_nats: Float[np.ndarray, " sentences"],
    sayings: Sayings,
    weights: Weights,
    min_studies: int,
) -> Evidence:
    """Measure each sentence by the studies that say the very same words.

    Args:
        pll_nats: pseudo-log-likelihoods.
        sayings: who says what.
        weights: how often each study counts.
        min_studies: other studies that a share must rest on to count as measured.

    Returns:
        The evidence: too small wherever a meaning has several wordings.
    """
    ones = np.ones(len(sayings.study))
    said = sayings.sums(ones, weights)
    everywhere, always = np.ones(sayings.studies), np.ones(sayings.sentences)
    return _evidence(pll_nats, sayings, said, ones, everywhere, always, weights, min_studies)


def _evidence(
    pll_nats: Float[np.ndarray, " sentences"],
    sayings: Sayings,
    fitting: Float[np.ndarray, " sentences"],
    own: Float[np.ndarray, " pairs"],
    known: Weights,
    counts: Float[np.ndarray, " sentences"],
    weights: Weights,
    min_studies: int,
) -> Evidence:
    """Leave the study that says a sentence out, on average over those that say it."""
    said = sayings.sums(np.ones(len(own)), weights)
    square, safe = weights**2, np.maximum(said, 1e-300)
    total = float((weights * known).sum())
    others = fitting - sayings.sums(own, square) / safe
    studies = total - sayings.sums(known[sayings.study], square) / safe
    share = np.clip(others / np.maximum(studies, 1e-300), 0.0, 1.0)
    return Evidence(pll_nats, share, said * counts, min_studies / max(total - 1, 1.0))
