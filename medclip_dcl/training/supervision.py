"""What texts and studies say, as small integers: the objective's supervision."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Bool, Float, Int8
from torch import Tensor

from medclip_dcl.artifact import Artifact
from medclip_dcl.data.ground_truth import Truth
from medclip_dcl.data.manifest import label_names, read_labels
from medclip_dcl.errors import ConfigError
from medclip_dcl.losses.place import encode_zones
from medclip_dcl.losses.relations import encode_claims, encode_labels, encode_truth
from medclip_dcl.tables import TableFormat, read_table
from medclip_dcl.text.labeler.labels import (
    REPORT_CLAIMS,
    SENTENCE_CLAIMS,
    SILENT,
    ReportLabels,
    claimed_findings,
    read_claims,
)
from medclip_dcl.training.corpus import Corpus, Strings
from medclip_dcl.training.settings import ObjectiveConfig

# Labels that `remove_labels` compares; the paper's five findings.
_CHEX5 = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax")

_ROWS_AT_ONCE = 8192  # of a table that become Python objects


@dataclass(frozen=True)
class Supervision:
    """Codes of texts and studies; None where the objective asks for none."""

    sentence_codes: Int8[Tensor, "texts codes"] | None = None
    """Claims of each distinct text."""
    report_codes: Int8[Tensor, "studies codes"] | None = None
    """Claims of each study's report, or its labels."""
    labels: Bool[Tensor, "studies findings"] | None = None
    """Which of the five findings are labelled present."""
    zones: Int8[Tensor, " texts"] | None = None
    """Third of the lung that each distinct text names."""
    text_vectors: Float[Tensor, "texts dim"] | None = None
    """Unit vector of each distinct text, by which texts are compared."""


def needs_claims(settings: ObjectiveConfig) -> bool:
    """Return whether an objective reads the claims artifact."""
    return settings.relation != "none" or settings.place_weight > 0


def read_supervision(
    settings: ObjectiveConfig,
    corpus: Corpus,
    manifest: Artifact,
    claims: Artifact | None,
    truth: Truth | None,
) -> Supervision:
    """Read what the objective asks for; ConfigError where the source has no labels or truth."""
    sentence_codes = report_codes = labels = zones = None
    if claims is not None and needs_claims(settings):
        findings = claimed_findings(claims)
        parts = list(_labels_in_parts(claims, SENTENCE_CLAIMS, "text_key", corpus.text_keys))
        sentence_codes = torch.cat([encode_claims(said, findings) for said in parts])
        zones = torch.cat([encode_zones(said) for said in parts])
        if settings.relation in {"claims", "none"}:
            reports = _labels_in_parts(claims, REPORT_CLAIMS, "study_id", corpus.study_ids)
            report_codes = torch.cat([encode_claims(said, findings) for said in reports])
        if settings.relation == "labels":
            rows = _label_rows(manifest, corpus.study_ids, findings)
            report_codes = torch.cat([encode_labels(part, findings) for part in rows])
        elif settings.relation == "truth":
            report_codes = encode_truth(_present(truth, corpus), findings)
    if settings.negatives == "remove_labels":
        rows = _label_rows(manifest, corpus.study_ids, _CHEX5)
        labels = torch.tensor(
            [[row.get(name) == 1 for name in _CHEX5] for row in chain.from_iterable(rows)]
        )
    return Supervision(sentence_codes, report_codes, labels, zones)


def read_report_labels(
    claims: Artifact, form: TableFormat, key: str, ids: Sequence[str]
) -> list[ReportLabels]:
    """Read the claims of sentences or reports, in order of `ids`; unknown ones are silent."""
    return list(chain.from_iterable(_labels_in_parts(claims, form, key, ids)))


def _labels_in_parts(
    claims: Artifact, form: TableFormat, key: str, ids: Sequence[str]
) -> Iterator[list[ReportLabels]]:
    table = read_table(claims.path, form)
    for rows in _rows_in_parts(table, table[key], ids):
        yield [SILENT if row[key] is None else ReportLabels.from_row(row) for row in rows]


def _rows_in_parts(
    table: pa.Table, keys: pa.ChunkedArray, ids: Sequence[str]
) -> Iterator[list[dict[str, Any]]]:
    # The row of each id, without values where it has none; at least one part.
    rows = pc.index_in(_column(ids), keys.combine_chunks())
    for start in range(0, max(1, len(rows)), _ROWS_AT_ONCE):
        yield table.take(rows.slice(start, _ROWS_AT_ONCE)).to_pylist()


def _column(ids: Sequence[str]) -> pa.Array | pa.ChunkedArray:
    return ids.column if isinstance(ids, Strings) else pa.array(ids, pa.string())


def _present(truth: Truth | None, corpus: Corpus) -> list[dict[str, frozenset[str]]]:
    # Findings of each study with their sides, as the plainest sentences put them.
    if truth is None:
        raise ConfigError("objective.relation is truth, which generated studies alone have")
    sides_of = {name: read_claims(text).asserted for name, text in truth.gallery.items()}
    present: list[dict[str, frozenset[str]]] = [{} for _ in corpus.study_ids]
    for image_id, study in zip(corpus.image_ids, corpus.study_of_image.tolist(), strict=True):
        for fine in truth.findings_of.get(image_id, frozenset()):
            for name, sides in sides_of[fine].items():
                present[study][name] = present[study].get(name, frozenset()) | sides
    return present


def _label_rows(
    manifest: Artifact, study_ids: Sequence[str], findings: Sequence[str]
) -> Iterator[list[dict[str, Any]]]:
    table, wanted = read_labels(manifest), _column(study_ids)
    is_labelled = pc.any(pc.is_in(wanted, pc.unique(table["study_id"]))).as_py()
    if not (is_labelled and set(label_names(table)) & set(findings)):
        raise ConfigError(
            "the objective reads labels and no training study has one of its findings; set "
            "source.columns.labels or source.labels, or objective.relation and "
            "objective.negatives to other kinds"
        )
    return _rows_in_parts(table.drop_columns("study_id"), table["study_id"], study_ids)
