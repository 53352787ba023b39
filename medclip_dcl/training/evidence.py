"""What is known of sentences and studies beyond who was paired with whom."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int8
from torch import Tensor

from medclip_dcl.artifacts.claims import REPORT_CLAIMS, SENTENCE_CLAIMS
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.artifacts.manifest import LABELS, STUDY_LABELS
from medclip_dcl.artifacts.tables import TableFormat, read_table
from medclip_dcl.config.objective import ObjectiveConfig
from medclip_dcl.errors import ConfigError
from medclip_dcl.objective.relations import encode_claims, encode_labels, encode_truth
from medclip_dcl.reports.claims import Claims, read_claims
from medclip_dcl.studies.truth import Truth
from medclip_dcl.training.corpus import Corpus

CHEX5 = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax")
"""Labels that `remove_labels` compares; the paper's five findings."""


@dataclass(frozen=True)
class Evidence:
    """Codes of texts and studies; None where the objective asks for none."""

    sentence_codes: Int8[Tensor, "texts codes"] | None = None
    """Claims of each distinct text."""
    report_codes: Int8[Tensor, "studies codes"] | None = None
    """Claims of each study's report, or its labels."""
    labels: Bool[Tensor, "studies findings"] | None = None
    """Which of the five findings are labelled present."""


def needs_claims(settings: ObjectiveConfig) -> bool:
    """Tell whether an objective reads the claims artifact.

    Args:
        settings: the objective.

    Returns:
        Whether it does.
    """
    return settings.relation != "none"


def read_evidence(
    settings: ObjectiveConfig,
    corpus: Corpus,
    manifest: Artifact,
    claims: Artifact | None,
    truth: Truth | None,
) -> Evidence:
    """Read what the objective asks for.

    Args:
        settings: the objective.
        corpus: the studies.
        manifest: the manifest, with the label table.
        claims: the claims; None where `needs_claims` is false.
        truth: what a generated source knows; None for any other.

    Returns:
        The evidence.

    Raises:
        ConfigError: the objective reads labels or truth and the source has none.
    """
    sentence_codes = report_codes = labels = None
    if claims is not None:
        sentence_codes = _encoded(claims, SENTENCE_CLAIMS, "text_key", corpus.text_keys)
        if settings.relation == "claims":
            report_codes = _encoded(claims, REPORT_CLAIMS, "study_id", corpus.study_ids)
    if settings.relation == "labels":
        report_codes = encode_labels(_label_rows(manifest, corpus.study_ids))
    elif settings.relation == "truth":
        report_codes = encode_truth(_present(truth, corpus))
    if settings.negatives == "remove_labels":
        rows = _label_rows(manifest, corpus.study_ids)
        labels = torch.tensor([[row.get(name) == 1 for name in CHEX5] for row in rows])
    return Evidence(sentence_codes, report_codes, labels)


def _encoded(
    claims: Artifact, form: TableFormat, key: str, ids: Sequence[str]
) -> Int8[Tensor, "rows codes"]:
    wanted = set(ids)
    rows = {
        row[key]: Claims.from_row(row)
        for row in read_table(claims.path, form).to_pylist()
        if row[key] in wanted
    }
    silent = Claims({}, frozenset(), frozenset(), normal=False)
    return encode_claims([rows.get(name, silent) for name in ids])


def _present(truth: Truth | None, corpus: Corpus) -> list[dict[str, frozenset[str]]]:
    """Findings of each study with their sides, as the plainest sentences put them."""
    if truth is None:
        raise ConfigError("objective.relation is truth, which generated studies alone have")
    sides_of = {name: read_claims(text).asserted for name, text in truth.gallery.items()}
    present: list[dict[str, frozenset[str]]] = [{} for _ in corpus.study_ids]
    for image_id, study in zip(corpus.image_ids, corpus.study_of_film.tolist(), strict=True):
        for fine in truth.findings_of.get(image_id, frozenset()):
            for name, sides in sides_of[fine].items():
                present[study][name] = present[study].get(name, frozenset()) | sides
    return present


def _label_rows(manifest: Artifact, study_ids: Sequence[str]) -> list[dict[str, int | None]]:
    if STUDY_LABELS.file not in manifest.files:
        raise ConfigError(
            "the objective reads labels and the source has no label table; set "
            "objective.relation and objective.negatives to kinds that need none"
        )
    table = read_table(manifest.path, STUDY_LABELS)
    rows = {row["study_id"]: row for row in table.to_pylist()}
    return [{name: rows.get(study, {}).get(name) for name in LABELS} for study in study_ids]
