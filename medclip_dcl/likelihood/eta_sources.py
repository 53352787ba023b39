"""Other estimates of a sentence's class probability than its likelihood."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medclip_dcl.errors import ScoreError

Floats = NDArray[np.float64]

NOT_MENTIONED = -2
"""Label of a finding that a study's label table leaves blank."""


@dataclass(frozen=True)
class SentenceClaims:
    """What one sentence says, as far as a table of findings can tell."""

    asserted: tuple[str, ...]
    negated: tuple[str, ...]
    normal: bool


def eta_from_frequency(reports: NDArray[np.int64], total: int) -> Floats:
    """Estimate the class probability by how many reports say the very same sentence.

    Args:
        reports: training reports that contain each sentence.
        total: training reports with any sentence.

    Returns:
        Shares in [0, 1].

    Raises:
        ScoreError: there is no training report, or fewer than contain a sentence.

    Source: ours; a report is one random film's text, so the share of reports is the
        chance that a random film comes with this sentence.
    """
    if total < 1 or int(reports.max(initial=0)) > total:
        raise ScoreError(f"{total} training reports do not fit the counts; rerun split_sentences")
    return reports.astype(np.float64) / total


def eta_from_labels(
    said: Iterable[SentenceClaims], labels: NDArray[np.int8], names: Sequence[str]
) -> Floats:
    """Estimate the class probability by how many labelled studies a sentence fits.

    A study fits if every asserted finding is labelled present and no negated one is
    labelled present or uncertain; a sentence that calls the film normal fits studies
    labelled `No Finding`.

    Args:
        said: claims of each sentence.
        labels: (studies, findings): 1 present, 0 absent, -1 uncertain, or
            `NOT_MENTIONED`; training studies alone.
        names: finding of each column.

    Returns:
        Shares in [0, 1]; 0 for a sentence without claims, which is left uncorrected.

    Raises:
        ScoreError: there is no labelled study, or a claim names an unknown finding.

    Source: ours; the counterpart of "Remove by CheX5 labels" in Wang et al. 2023, Table 1.
    """
    if not len(labels):
        raise ScoreError("no training study has labels; set eta.source to another value")
    column = {name: number for number, name in enumerate(names)}
    shares: dict[SentenceClaims, float] = {}
    eta = []
    for claims in said:
        if claims not in shares:
            shares[claims] = _fitting_share(claims, labels, column)
        eta.append(shares[claims])
    return np.array(eta, dtype=np.float64)


def _fitting_share(
    claims: SentenceClaims, labels: NDArray[np.int8], column: dict[str, int]
) -> float:
    if not (claims.asserted or claims.negated or claims.normal):
        return 0.0
    fits = np.ones(len(labels), dtype=bool)
    try:
        for finding in claims.asserted:
            fits &= labels[:, column[finding]] == 1
        for finding in claims.negated:
            fits &= np.isin(labels[:, column[finding]], (0, NOT_MENTIONED))
    except KeyError as error:
        raise ScoreError("a claim names a finding without labels; rerun read_claims") from error
    if claims.normal and not claims.asserted:
        fits &= labels[:, column["No Finding"]] == 1
    return float(fits.mean())
