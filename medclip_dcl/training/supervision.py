"""What texts and studies say, as small integers: the columns that an objective reads.

An option of the objective has its column here: of what it holds a row, which objectives read it,
and how it is read. Corpus, dataset and batch carry columns by their names and know none of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.tables import TableFormat, read_table
from medclip_dcl.data.manifest import label_names, read_labels
from medclip_dcl.training.corpus import Corpus, Strings
from medclip_dcl.training.settings import ObjectiveConfig

if TYPE_CHECKING:  # what options alone read is imported where they do
    from medclip_dcl.data.records import Truth
    from medclip_dcl.text.labeler.labels import ReportLabels

# Labels that `remove_labels` compares; the paper's five findings.
_CHEX5 = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax")

_ROWS_AT_ONCE = 8192  # of a table that become Python objects


@dataclass(frozen=True)
class Supervision:
    """Columns by name, each with a row for every distinct text or for every study."""

    of_texts: Mapping[str, Tensor] = field(default_factory=dict)
    of_studies: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Sources:
    settings: ObjectiveConfig
    corpus: Corpus
    manifest: Artifact
    claims: Artifact | None
    truth: "Truth | None"

    @property
    def findings(self) -> Sequence[str]:
        from medclip_dcl.text.labeler.labels import claimed_findings

        assert self.claims is not None, "the table of inputs opens claims where they are read"
        return claimed_findings(self.claims)

    def sentences(self) -> "Iterator[list[ReportLabels]]":
        from medclip_dcl.text.labeler.labels import SENTENCE_CLAIMS

        assert self.claims is not None
        return _labels_in_parts(self.claims, SENTENCE_CLAIMS, "text_key", self.corpus.text_keys)

    def reports(self) -> "Iterator[list[ReportLabels]]":
        from medclip_dcl.text.labeler.labels import REPORT_CLAIMS

        assert self.claims is not None
        return _labels_in_parts(self.claims, REPORT_CLAIMS, "study_id", self.corpus.study_ids)


def _sentence_codes(read: _Sources) -> Tensor:
    from medclip_dcl.losses.relations import encode_claims

    return torch.cat([encode_claims(part, read.findings) for part in read.sentences()])


def _claimed(read: _Sources) -> Tensor:
    from medclip_dcl.losses.relations import encode_claims

    return torch.cat([encode_claims(part, read.findings) for part in read.reports()])


def _labelled(read: _Sources) -> Tensor:
    from medclip_dcl.losses.relations import encode_labels

    rows = _label_rows(read.manifest, read.corpus.study_ids, read.findings)
    return torch.cat([encode_labels(part, read.findings) for part in rows])


def _true(read: _Sources) -> Tensor:
    from medclip_dcl.losses.relations import encode_truth

    return encode_truth(_present(read.truth, read.corpus), read.findings)


_RELATIONS: Mapping[str, Callable[[_Sources], Tensor]] = {
    "claims": _claimed,
    "labels": _labelled,
    "truth": _true,
}
"""`objective.relation` -> codes of what each study's report, labels or truth say."""


def _labels(read: _Sources) -> Tensor:
    rows = chain.from_iterable(_label_rows(read.manifest, read.corpus.study_ids, _CHEX5))
    return torch.tensor([[row.get(name) == 1 for name in _CHEX5] for row in rows])


def needs_claims(settings: ObjectiveConfig) -> bool:
    """Return whether an objective reads the claims artifact."""
    return settings.relation != "none"


class SupervisionColumn(NamedTuple):
    """Column of small integers: a row for every distinct text, or every study, of a corpus."""

    name: str
    of: Literal["texts", "studies"]
    is_read: Callable[[ObjectiveConfig], bool]
    read: Callable[[_Sources], Tensor]


COLUMNS = (
    # Claims of each distinct text: a row of bits a finding, then normal.
    SupervisionColumn("sentence_codes", "texts", needs_claims, _sentence_codes),
    # Claims, labels or truth of each study, likewise.
    SupervisionColumn("report_codes", "studies", needs_claims,
                      lambda read: _RELATIONS[read.settings.relation](read)),
    # Which of the paper's five findings are labelled present.
    SupervisionColumn("labels", "studies",
                      lambda settings: settings.negatives == "remove_labels", _labels),
)  # fmt: skip


def read_supervision(
    settings: ObjectiveConfig,
    corpus: Corpus,
    manifest: Artifact,
    claims: Artifact | None,
    truth: "Truth | None",
) -> Supervision:
    """Read the columns of an objective; ConfigError where the source has no labels or truth."""
    sources = _Sources(settings, corpus, manifest, claims, truth)
    columns: dict[str, dict[str, Tensor]] = {"texts": {}, "studies": {}}
    for column in COLUMNS:
        if column.is_read(settings):
            columns[column.of][column.name] = column.read(sources)
    return Supervision(columns["texts"], columns["studies"])


def read_report_labels(
    claims: Artifact, form: TableFormat, key: str, ids: Sequence[str]
) -> "list[ReportLabels]":
    """Read the claims of sentences or reports, in order of `ids`; unknown ones are silent."""
    return list(chain.from_iterable(_labels_in_parts(claims, form, key, ids)))


def _labels_in_parts(
    claims: Artifact, form: TableFormat, key: str, ids: Sequence[str]
) -> "Iterator[list[ReportLabels]]":
    from medclip_dcl.text.labeler.labels import SILENT, ReportLabels

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


def _present(truth: "Truth | None", corpus: Corpus) -> list[dict[str, frozenset[str]]]:
    # Findings of each study with their sides, as the plainest sentences put them.
    if truth is None:
        raise ConfigError("objective.relation is truth, which generated studies alone have")
    from medclip_dcl.text.labeler.labels import read_claims

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
