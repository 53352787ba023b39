"""Class probabilities of sentences by a label table: the artifacts that hold both sides."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from medclip_dcl.artifacts import claims, manifest
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.artifacts.tables import read_table
from medclip_dcl.errors import ArtifactStale, ConfigError
from medclip_dcl.likelihood.eta_sources import NOT_MENTIONED, SentenceClaims, eta_from_labels


def label_shares(keys: Sequence[str], claimed: Artifact, listed: Artifact) -> NDArray[np.float64]:
    """Give the share of labelled training studies that each sentence fits.

    Args:
        keys: text keys of the sentences.
        claimed: the claims.
        listed: the manifest.

    Returns:
        Shares in the order of the keys; 0 for a sentence without claims.

    Raises:
        ArtifactStale: the claims lack a sentence.
        ConfigError: the manifest has no label table.
        ScoreError: no training study has labels.
    """
    rows = {
        row["text_key"]: SentenceClaims(
            tuple(sorted({name.partition("|")[0] for name in row["asserted"]})),
            tuple(sorted(row["negated"])),
            row["normal"],
        )
        for row in read_table(claimed.path, claims.SENTENCE_CLAIMS).to_pylist()
    }
    if not rows.keys() >= set(keys):
        raise ArtifactStale("claims and sentences differ; rerun read_claims")
    return eta_from_labels((rows[key] for key in keys), _labels(listed), manifest.LABELS)


def has_labels(listed: Artifact) -> bool:
    """Tell whether a training study of a source has labels.

    Args:
        listed: the manifest.

    Returns:
        Whether one has.
    """
    return _has_table(listed) and len(_labels(listed)) > 0


def _has_table(listed: Artifact) -> bool:
    return manifest.STUDY_LABELS.file in listed.files


def _labels(listed: Artifact) -> NDArray[np.int8]:
    if not _has_table(listed):
        raise ConfigError("eta.source is 'labels' and the manifest has none; set another source")
    table = read_table(listed.path, manifest.STUDY_LABELS).to_pylist()
    reports = read_table(listed.path, manifest.REPORTS, ["study_id", "split"]).to_pylist()
    training = {row["study_id"] for row in reports if row["split"] == "train"}
    rows = [
        [NOT_MENTIONED if row[name] is None else row[name] for name in manifest.LABELS]
        for row in table
        if row["study_id"] in training
    ]
    return np.array(rows, dtype=np.int8).reshape(-1, len(manifest.LABELS))
