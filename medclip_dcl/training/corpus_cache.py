"""The corpus that training reads: made once of the artifacts, mapped by every process.

    train/studies.arrow, ...    ids and numbers of the training split; `validate/`, where it is used
    train/sentence_codes.npy    a column of `supervision`, and so on

Columns are there where the objective asks for them. The first process of a training run writes the
artifact, unless there is one of the same inputs, tokenizer and code. All processes of a machine
share its pages: none holds a string or a number of its own for a study.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from medclip_dcl.core.artifact import (
    Artifact,
    ArtifactType,
    json_digest,
    make_fingerprint,
    open_artifact,
    remove_retired,
)
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import ArtifactError
from medclip_dcl.core.provenance import changed_code
from medclip_dcl.core.tables import (
    Column,
    TableFormat,
    map_array,
    read_table,
    write_array,
    write_table,
)
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.training.corpus import Corpus, Strings, TokenTable, read_corpus
from medclip_dcl.training.sampler import RaggedIndex
from medclip_dcl.training.settings import ObjectiveConfig
from medclip_dcl.training.supervision import COLUMNS, Supervision, needs_claims, read_supervision

if TYPE_CHECKING:
    from medclip_dcl.data.ground_truth import Truth

ARTIFACT = ArtifactType("corpus", 1, "train")

_STUDIES = TableFormat(
    "studies.arrow",
    (
        Column("study_id", pa.string(), "id of the study"),
        Column("images", pa.int64(), "number of its images"),
        Column("first_image", pa.int64(), "where they begin in `images.arrow`, column `of_study`"),
        Column("sentences", pa.int64(), "number of its sentences"),
        Column("first_sentence", pa.int64(), "where they begin in `sentences.arrow`"),
    ),
)
"""One row per study that has a prepared image and a usable sentence, in order of study_id."""

_PATIENTS = TableFormat("patients.arrow", (Column("subject_id", pa.string(), "id of the patient"),))
"""One row per patient, in order of subject_id."""

_IMAGES = TableFormat(
    "images.arrow",
    (
        Column("image_id", pa.string(), "id of the image"),
        Column("study", pa.int64(), "its study: row of `studies.arrow`"),
        Column("row", pa.int64(), "its row among the prepared images"),
        Column("of_study", pa.int64(), "row of this table: the images once more, study by study"),
    ),
)
"""One row per image, in order of image_id."""

_SENTENCES = TableFormat(
    "sentences.arrow",
    (Column("text", pa.int64(), "distinct text of the sentence: row of `texts.arrow`"),),
)
"""One row per sentence, study by study."""

_TEXTS = TableFormat(
    "texts.arrow",
    (
        Column("text_key", pa.string(), "`text_key` of the text"),
        Column("text", pa.string(), "the sentence"),
        Column("eta", pa.float32(), "class probability, [0, 1)"),
        Column("pieces", pa.large_list(pa.int32()), "its word pieces, by the model's tokenizer"),
    ),
)
"""One row per distinct text, in order of text_key."""


class CorpusSplit(NamedTuple):
    """One split as training reads it."""

    corpus: Corpus
    tokens: TokenTable
    supervision: Supervision


def cache_corpus(
    work: Path,
    inputs: Mapping[str, Artifact],
    truth: "Truth | None",
    objective: ObjectiveConfig,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    splits: tuple[str, ...],
) -> Artifact:
    """Write the corpus of some splits, unless that is done already.

    Args:
        work: folder that has the artifacts of the run.
        inputs: `manifest`, `prepared`, `sentences` and `eta_cache`, and `claims` where there are.
        truth: what a generated source knows; None for any other.
        objective: settings of the loss, which say which columns are read.
        tokenizer: that of the model.
        max_tokens: the most word pieces of a text.
        splits: `train`, and `validate` where the run validates.

    Raises:
        MedclipError: as `read_corpus` and `read_supervision`.
    """
    reads_claims = needs_claims(objective)
    settings = {
        "columns": [column.name for column in COLUMNS if column.is_read(objective)],
        "relation": objective.relation if reads_claims else "none",
        "max_tokens": max_tokens,
        "splits": splits,
    }
    digests: dict[str, Artifact | str] = {
        name: item for name, item in inputs.items() if name != "claims" or reads_claims
    }
    digests["tokenizer"] = _tokenizer_digest(tokenizer)
    if truth is not None and objective.relation == "truth":
        present = {name: sorted(types) for name, types in truth.findings_of.items()}
        digests["truth"] = json_digest([present, dict(truth.gallery)])
    fingerprint = make_fingerprint(ARTIFACT, settings, digests)
    path = ARTIFACT.at(work)
    with suppress(ArtifactError):
        existing = open_artifact(path, ARTIFACT)
        if existing.fingerprint == fingerprint and not changed_code(existing):
            remove_retired(path)
            return existing
    prepared = PreparedImages(inputs["prepared"])
    with write_artifact(path, ARTIFACT, fingerprint, same_code=True) as writer:
        counts: dict[str, Any] = {}
        for split in splits:
            corpus = read_corpus(
                inputs["manifest"], prepared, inputs["sentences"], inputs["eta_cache"], split
            )
            supervision = read_supervision(
                objective, corpus, inputs["manifest"], inputs.get("claims"), truth
            )
            tokens = TokenTable(tokenizer, corpus.texts, max_tokens)
            folder = writer.directory / split
            folder.mkdir(exist_ok=True)
            _write_split(folder, CorpusSplit(corpus, tokens, supervision))
            counts[f"{split}_studies"] = len(corpus.study_ids)
            counts[f"{split}_images"] = len(corpus.image_ids)
            counts[f"{split}_sentences"] = len(corpus.text_of)
            counts[f"{split}_texts"] = len(corpus.texts)
        return writer.commit(counts)


def map_corpus(artifact: Artifact, split: str, tokenizer: PreTrainedTokenizerBase) -> CorpusSplit:
    """Map one split of a corpus into memory; `tokenizer` is the one that it was made with."""
    folder = artifact.path / split
    studies, images = read_table(folder, _STUDIES), read_table(folder, _IMAGES)
    texts = read_table(folder, _TEXTS)
    pieces = _array(texts["pieces"])
    corpus = Corpus(
        study_ids=Strings(_array(studies["study_id"])),
        subject_ids=Strings(_array(read_table(folder, _PATIENTS)["subject_id"])),
        images=RaggedIndex.of_arrays(
            _numbers(studies, "images"),
            _numbers(studies, "first_image"),
            _numbers(images, "of_study"),
        ),
        image_ids=Strings(_array(images["image_id"])),
        study_of_image=_numbers(images, "study"),
        image_rows=_numbers(images, "row"),
        sentences=RaggedIndex.of_arrays(
            _numbers(studies, "sentences"), _numbers(studies, "first_sentence"), None
        ),
        text_of=_numbers(read_table(folder, _SENTENCES), "text"),
        texts=Strings(_array(texts["text"])),
        text_keys=Strings(_array(texts["text_key"])),
        eta=_numbers(texts, "eta"),
    )
    tokens = TokenTable.of_pieces(pieces.offsets.to_numpy(), pieces.values.to_numpy(), tokenizer)
    columns: dict[str, dict[str, Tensor]] = {"texts": {}, "studies": {}}
    for column in COLUMNS:
        if f"{split}/{column.name}.npy" in artifact.files:
            values = map_array(folder / f"{column.name}.npy", column.dtype)
            columns[column.of][column.name] = torch.from_numpy(values)
    return CorpusSplit(corpus, tokens, Supervision(columns["texts"], columns["studies"]))


def _write_split(folder: Path, made: CorpusSplit) -> None:
    corpus, tokens, supervision = made
    assert corpus.images.members is not None
    tables: dict[TableFormat, dict[str, Any]] = {
        _STUDIES: {
            "study_id": _column(corpus.study_ids),
            "images": corpus.images.sizes,
            "first_image": corpus.images.starts,
            "sentences": corpus.sentences.sizes,
            "first_sentence": corpus.sentences.starts,
        },
        _PATIENTS: {"subject_id": _column(corpus.subject_ids)},
        _IMAGES: {
            "image_id": _column(corpus.image_ids),
            "study": corpus.study_of_image,
            "row": corpus.image_rows,
            "of_study": corpus.images.members,
        },
        _SENTENCES: {"text": corpus.text_of},
        _TEXTS: {
            "text_key": _column(corpus.text_keys),
            "text": _column(corpus.texts),
            "eta": corpus.eta,
            "pieces": pa.LargeListArray.from_arrays(tokens.starts, tokens.pieces),
        },
    }
    for form, columns in tables.items():
        write_table(folder, form, pa.table(columns))
    for name, codes in {**supervision.of_texts, **supervision.of_studies}.items():
        write_array(folder / f"{name}.npy", codes.numpy())


def _column(values: object) -> pa.Array | pa.ChunkedArray:
    assert isinstance(values, Strings)
    return values.column


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    numbers: np.ndarray = _array(table[name]).to_numpy()
    return numbers


def _array(column: pa.ChunkedArray) -> pa.Array:
    # The mapped bytes themselves: combining would copy them.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    used = {name: rules[name] for name in sorted(rules.keys() - {"truncation", "padding"})}
    return json_digest([tokenizer.pad_token_id, used])
