"""What an objective reads besides images, sentences and eta: a column for every option of it.

Claims and labels are small integers. Texts are compared by unit vectors, made once and
before training. Corpus, dataset and batch carry columns by their names and know none of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.tables import TableFormat, read_table
from medclip_dcl.data.manifest import label_names, read_labels
from medclip_dcl.models.dual_encoder import evaluating
from medclip_dcl.models.text_encoder import TextEncoder
from medclip_dcl.training.corpus import Corpus, Strings, TokenTable
from medclip_dcl.training.sampler import ImageTextSampler
from medclip_dcl.training.settings import ObjectiveConfig

if TYPE_CHECKING:  # what options alone read is imported where they do
    from medclip_dcl.text.labeler.labels import ReportLabels

# Labels that `remove_labels` compares; the paper's five findings.
_CHEX5 = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax")

_ROWS_AT_ONCE = 8192  # of a table that become Python objects
_TEXTS_PER_PASS = 256
_SAMPLED_BATCHES, _SAMPLED_SLOTS = 32, 64  # some 130,000 pairs: a share of 1 % within 0.1 %
_ROUNDING = 1e-4  # two copies of a sentence count as closer than any threshold


class Supervision(NamedTuple):
    """Columns by name, each with a row for every distinct text or for every study."""

    of_texts: dict[str, Tensor]
    of_studies: dict[str, Tensor]


def read_supervision(
    settings: ObjectiveConfig, corpus: Corpus, manifest: Artifact, claims: Artifact | None
) -> Supervision:
    """Read the columns of an objective; ConfigError where it asks for labels and there are none."""
    of_texts: dict[str, Tensor] = {}
    of_studies: dict[str, Tensor] = {}
    if settings.relation != "none":
        from medclip_dcl.losses.relations import encode_claims, encode_labels
        from medclip_dcl.text.labeler.labels import REPORT_CLAIMS, SENTENCE_CLAIMS, claimed_findings

        assert claims is not None, "the table of inputs opens claims where they are read"
        findings = claimed_findings(claims)
        texts = _labels_in_parts(claims, SENTENCE_CLAIMS, "text_key", corpus.text_keys)
        of_texts["sentence_codes"] = torch.cat([encode_claims(part, findings) for part in texts])
        if settings.relation == "labels":
            rows = _label_rows(manifest, corpus.study_ids, findings)
            codes = [encode_labels(part, findings) for part in rows]
        else:
            reports = _labels_in_parts(claims, REPORT_CLAIMS, "study_id", corpus.study_ids)
            codes = [encode_claims(part, findings) for part in reports]
        of_studies["report_codes"] = torch.cat(codes)
    if settings.negatives == "remove_labels":
        rows = _label_rows(manifest, corpus.study_ids, _CHEX5)
        # Uncertain counts as absent, as in the paper: 1 alone makes an overlap.
        present = [[row.get(name) == 1 for name in _CHEX5] for part in rows for row in part]
        of_studies["labels"] = torch.tensor(present)
    return Supervision(of_texts, of_studies)


def text_vectors(
    encoder: TextEncoder, splits: Mapping[str, tuple[Corpus, TokenTable]], device: torch.device
) -> dict[str, Float[Tensor, "texts width"]]:
    """Make the unit vectors by whose cosines the texts of each split are compared.

    They are mean states of the encoder before its first step, less the mean over the training
    sentences, each as often as it is said. The cosines of raw BERT states are all close to 1,
    whatever the texts say; less their mean they spread over both signs. Wang et al. 2023 name the
    rivals that compare texts, and no space.
    """
    states = {name: _mean_states(encoder, tokens, device) for name, (_, tokens) in splits.items()}
    corpus, _ = splits["train"]
    counts = torch.from_numpy(np.bincount(corpus.text_of, minlength=len(corpus.texts))).float()
    centre = counts @ states["train"] / counts.sum()
    return {name: functional.normalize(each - centre, dim=-1) for name, each in states.items()}


def _mean_states(
    encoder: TextEncoder, tokens: TokenTable, device: torch.device
) -> Float[Tensor, "texts width"]:
    # Mean over the states of each text's word pieces.
    order = np.argsort(tokens.lengths, kind="stable")  # of like length: little padding
    parts = []
    with evaluating(encoder.to(device)):
        for start in range(0, len(order), _TEXTS_PER_PASS):
            some = tokens.padded(order[start : start + _TEXTS_PER_PASS])
            ids, mask = (side.to(device) for side in some)
            states = encoder.backbone(input_ids=ids, attention_mask=mask)[0]
            share = mask / mask.sum(dim=1, keepdim=True)
            parts.append((share.unsqueeze(-1) * states).sum(dim=1).float().cpu())
    return torch.cat(parts)[torch.from_numpy(np.argsort(order))]  # in the order of the texts


def closest_threshold(
    vectors: Float[Tensor, "texts dim"], corpus: Corpus, sampler: ImageTextSampler, share: float
) -> float:
    """Find the cosine above which the closest share of the pairs in a batch are.

    The pairs are those of the first batches, so each is as frequent as in training, and they are
    the same whenever the run is started again. Copies of one sentence are always above.

    Source: ours; Wang et al. 2023 choose their threshold by a grid search, and do not give it.
    """
    cosines = []
    for step in range(_SAMPLED_BATCHES):
        texts = corpus.text_of[sampler.draw(step).sentences[:_SAMPLED_SLOTS]]
        some = vectors[torch.from_numpy(texts)]
        apart = ~torch.eye(len(some), dtype=torch.bool)  # a text is no negative of itself
        cosines.append((some @ some.T)[apart].numpy())
    return min(float(np.quantile(np.concatenate(cosines), 1 - share)), 1 - _ROUNDING)


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


def _label_rows(
    manifest: Artifact, study_ids: Sequence[str], findings: Sequence[str]
) -> Iterator[list[dict[str, Any]]]:
    table, wanted = read_labels(manifest), _column(study_ids)
    # Labels of other studies alone would train as if none had a finding.
    is_labelled = pc.any(pc.is_in(wanted, pc.unique(table["study_id"]))).as_py()
    if not (is_labelled and set(label_names(table)) & set(findings)):
        raise ConfigError(
            "the objective reads labels and no training study has one of its findings; set "
            "source.columns.labels or source.labels, or objective.relation and "
            "objective.negatives to other kinds"
        )
    return _rows_in_parts(table.drop_columns("study_id"), table["study_id"], study_ids)
