"""Labels in a user's tables -> one code per study and finding of the source.

A table has a column a finding, or one column that lists what is there. Either stands in the
source's own table or in one of its own, joined by ids. Where nobody wrote reports, a template makes
a sentence of each label.
"""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.data import table_files
from medclip_dcl.data.records import RawStudies, Study, Text
from medclip_dcl.data.source_settings import (
    FINDING_FIELD,
    LABEL_CODES,
    LABEL_KEY,
    SourceConfig,
    label_word,
    relative_to_root,
)
from medclip_dcl.text.labeler.lexicon import LABELS

Labels = dict[str, int]  # finding -> 1 present, 0 absent, -1 uncertain; left out: not labelled

_NO_FINDING = "No Finding"
# ChestX-ray14's names; what they are in CheXpert is read off the phrases of CheXpert's labeler.
OTHER_NAMES = {
    "Lung Lesion": ("Mass", "Nodule"),
    "Lung Opacity": ("Infiltration",),
    "No Finding": ("Normal",),
    "Pleural Effusion": ("Effusion",),
    "Pleural Other": ("Pleural Thickening",),
}
# What Open-i and PadChest list where nobody sorted the image: then nothing is known of it.
_NOT_SORTED = {"no indexing", "exclude", "suboptimal study"}
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_WEIGHT = {0: 0, -1: 1, 1: 2}  # of a code, where rows of a study differ


def read_row_labels(
    table: pa.Table, file: str, settings: SourceConfig, counts: dict[str, int]
) -> Iterable[Labels]:
    """Read the labels of every row by `source.columns.labels`; without it, by `source.findings`.

    Names in lists that stand for no finding are counted, as `unknown_labels`, each once.

    Raises:
        StudyError: a column is missing, or holds something else than labels.
    """
    named = settings.columns.get("labels") or {
        name: name for name in settings.findings if name in table.column_names
    }
    if not named:
        ids = table_files.pattern_columns(_label_id(settings)[1])
        there = table_files.only_columns(file, table.column_names, ids)
        raise StudyError(
            f"{file} has no column of source.findings{there}; name the columns of labels in "
            "source.columns.labels"
        )
    if isinstance(named, str):
        return _listed(table, named, file, settings, counts)
    table = table_files.take_columns(table, file, named.values())
    # One column after the other: millions of strings take gigabytes.
    columns = read_codes(
        ((name, table_files.strings(table[name], file, name)) for name in table.column_names), file
    )
    return (
        {finding: code for finding, code in zip(named, codes, strict=True) if code is not None}
        for codes in zip(*(columns[column] for column in named.values()), strict=True)
    )


def label_table(
    studies: Iterable[str], rows: Iterable[Labels], findings: Sequence[str] = LABELS
) -> pa.Table:
    """Unite the rows of each study in the form of `RawStudies.labels`.

    Of several rows present outweighs uncertain, and uncertain absent; for `No Finding` it is the
    other way round. Studies without a label are left out.
    """
    labels_of: dict[str, Labels] = {}
    for study, row in zip(studies, rows, strict=True):
        if row:
            united = labels_of.setdefault(study, {})
            for finding, code in row.items():
                codes = (code, united.get(finding, code))
                # One image with a finding outweighs others: "No Finding" is then not true of it.
                choose = min if finding == _NO_FINDING else max
                united[finding] = choose(codes, key=_WEIGHT.__getitem__)
    columns = {
        name: pa.array([labels.get(name) for labels in labels_of.values()], pa.int8())
        for name in findings
    }
    return pa.table({LABEL_KEY: pa.array(labels_of, pa.string()), **columns})


def join_labels(raw: RawStudies, path: Path, settings: SourceConfig) -> pa.Table:
    """Read `source.labels`, whose rows name a study, an image or the path of an image.

    Raises:
        ConfigError: an id may be that of a study or of another study's image.
        StudyError: it cannot be read, has no labels, or names nothing of the source.
    """
    table = table_files.read_any(path, settings.fallback_encoding)
    named, column = _label_id(settings)
    ids = [
        table_files.clean_id(name) for name in table_files.fill_pattern(table, path.name, column)
    ]
    rows = read_row_labels(table, path.name, settings, raw.counts)
    study_of = _studies_by_name(raw, ids, named, column)
    relative = relative_to_root(raw.root, settings)
    studies_named = (study_of.get(name) or study_of.get(relative(name)) for name in ids)
    joined = [(name, row) for name, row in zip(studies_named, rows, strict=True) if name]
    if alone := len(ids) - len(joined):
        raw.counts["labels_without_study"] = alone
    studies, labelled = zip(*joined, strict=True) if joined else ((), ())
    labels = label_table(studies, labelled, settings.findings)
    if not labels.num_rows:
        alike = "" if joined else table_files.would_join(ids, study_of)
        raise StudyError(
            f"{path.name} labels no study: {len(ids)} rows, of which {len(joined)} have a study, "
            f"image or path of the source in column {column!r}{alike}; set source.label_id "
            "and source.columns.labels, or write ids in both tables alike"
        )
    return labels


def _label_id(settings: SourceConfig) -> tuple[str, str]:
    # What the ids of the table of labels name, empty for whichever it is; and their column.
    given = settings.label_id
    return ("", given) if isinstance(given, str) else next(iter(given.items()))


def _studies_by_name(
    raw: RawStudies, ids: Iterable[str], named: str, column: str
) -> dict[str, str]:
    """Look up the study of every id, or path of an image, that a table of labels may name."""
    of_image = {image.path: image.study_id for image in raw.images if image.path}
    of_image |= {image.image_id: image.study_id for image in raw.images}
    of_study = {name: name for name in of_image.values()}
    of_study |= {study.study_id: study.study_id for study in raw.studies}
    if named:
        return of_study if named == "study" else of_image
    # Studies and images numbered alike: 1, 2, 3, which are silently joined to the wrong study.
    both = {name for name in ids if name in of_study and of_image.get(name, name) != name}
    if both:
        raise ConfigError(
            f"source.label_id {column!r} has {len(both)} ids that are those of a study and of an "
            f"image of another study; say which it names: {{study: {column}}} or {{image: ...}}"
        )
    return of_image | of_study


def read_codes(
    columns: Iterable[tuple[str, Sequence[str]]], file: str
) -> dict[str, list[int | None]]:
    """Read columns of labels as codes; None: not mentioned.

    Raises:
        StudyError: values are not labels; of every column it says how many.
    """
    codes: dict[str, list[int | None]] = {}
    faults: list[str] = []
    for column, values in columns:
        # Each different word is looked at once: a column has millions of rows and few words.
        word_of = {value: label_word(value) for value in set(values)}
        others = {value for value, word in word_of.items() if word not in LABEL_CODES}
        if others:
            rows = [row for row, value in enumerate(values) if value in others]
            faults.append(
                f"column {column!r} in {len(rows)} rows ({len(others)} different), first in row "
                f"{rows[0]}"
            )
        else:
            codes[column] = [LABEL_CODES[word_of[value]] for value in values]
    if faults:  # without the values: they may be about a patient
        raise StudyError(
            f"labels of {file} hold values that are not labels: {'; '.join(faults)} (rows are "
            "counted from 0); use 1, 0, -1 and blank, true and false, or positive, negative and "
            "uncertain"
        )
    return codes


def _listed(
    table: pa.Table, column: str, file: str, settings: SourceConfig, counts: dict[str, int]
) -> list[Labels]:
    # What the user names replaces our names whole: a mixture could count a word twice.
    given = settings.label_names
    default: dict[str, tuple[str, ...]] = {name: (name,) for name in settings.findings}
    if settings.findings == LABELS:
        default |= {name: (name, *others) for name, others in OTHER_NAMES.items()}
    names = {
        finding: {_key(name) for name in others} for finding, others in (given or default).items()
    }
    all_names = set().union(*names.values())
    lists = _lists(table, column, file, all_names)
    ever = set().union(*(listed for listed in lists if listed))
    counts["unknown_labels"] = len(ever - all_names - _NOT_SORTED)
    # A finding that no row lists is not labelled: the lists may not know it.
    listed_names = {finding: keys for finding, keys in names.items() if keys & ever}
    if missing := sorted(set(given) - set(listed_names)) or ([] if listed_names else [*default]):
        raise StudyError(
            f"column {column!r} of {file} lists no name of {missing} in any row; give the names "
            "that it uses in source.label_names, and leave out findings that it does not know"
        )
    return [
        {}
        if listed is None or listed & _NOT_SORTED
        else {finding: int(not listed.isdisjoint(keys)) for finding, keys in listed_names.items()}
        for listed in lists
    ]


def _lists(table: pa.Table, column: str, file: str, names: set[str]) -> list[set[str] | None]:
    # What each row lists; None: the row is blank, which is not the same as an empty list.
    values = table_files.take_columns(table, file, [column]).column(column)
    if not table_files.is_list(values.type):
        return [_split(text, names) for text in table_files.strings(values, file, column)]
    items = iter(table_files.strings(pc.list_flatten(values), file, column))
    return [
        None if size is None else {_key(next(items)) for _ in range(size)}
        for size in pc.list_value_length(values).to_pylist()
    ]


def _split(text: str, names: set[str]) -> set[str] | None:
    text = text.strip()
    if text.lower() in {"", "nan"}:
        return None
    if text.startswith("["):  # a list of Python's, as PadChest has it
        parts = [one or other for one, other in _QUOTED.findall(text)] or text[1:-1].split(",")
        return {_key(part) for part in parts}
    parts = [_key(part) for part in re.split(r"[|;]", text)]
    # A comma may stand within a name: "Fractures, Bone".
    return {_key(name) for part in parts for name in ([part] if part in names else part.split(","))}


def _key(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())


class TemplateSentences(NamedTuple):
    """Sentences of a template, by finding; empty where nothing is said."""

    present: Mapping[str, str]
    absent: Mapping[str, str]
    none: str  # of a study without findings


def template_sentences(settings: SourceConfig) -> TemplateSentences:
    """Write the sentences of `source.template` for every one of `source.findings`."""
    given = settings.template
    forms = {"present": given} if isinstance(given, str) else dict(given)
    absent = forms.get("absent", "")
    none = forms.get("none", "" if absent else forms["present"])
    names = [name for name in settings.findings if name != _NO_FINDING]
    return TemplateSentences(
        {name: _filled(forms["present"], name) for name in names},
        {name: _filled(absent, name) for name in names},
        _filled(none, "No finding"),
    )


def _filled(form: str, finding: str) -> str:
    sentence = form.replace(FINDING_FIELD, finding).strip()
    return f"{sentence}." if sentence and sentence[-1] not in ".!?" else sentence


def speak_labels(raw: RawStudies, settings: SourceConfig) -> RawStudies:
    """Write every labelled study with an image a report: a template's sentence for each finding.

        source.template: "{finding} in the chest X-ray."       findings that are present
        source.template: {present: "There is {finding}.", absent: "There is no {finding}."}

    A study without any finding has the sentence `none`; by default that of `present` about "No
    finding" where absent findings are not named. Uncertain labels and blank ones say nothing, and a
    study with a blank one has the sentence `none` only where its label `No Finding` says so.

    Raises:
        ConfigError: the source has reports, or no labels.
    """
    if raw.has_reports:
        raise ConfigError(
            "source.template makes reports of labels, and this source has reports; leave out the "
            "template, or the columns findings, impression and report"
        )
    if raw.labels is None:
        raise ConfigError(
            "source.template makes reports of labels, and there are none; name "
            "source.columns.labels, source.findings or source.labels"
        )
    sentences = template_sentences(settings)
    labelled = {
        name for name in raw.labels.column_names if raw.labels[name].null_count < len(raw.labels)
    }
    subject_of = {image.study_id: image.subject_id for image in raw.images}
    studies = [
        Study(
            row[LABEL_KEY],
            subject_of[row[LABEL_KEY]],
            Text(_report(row, labelled, sentences), "", ""),
        )
        for row in raw.labels.to_pylist()
        if row[LABEL_KEY] in subject_of
    ]
    return replace(raw, studies=studies, has_reports=True)


def _report(labels: Mapping[str, int | None], labelled: Set[str], given: TemplateSentences) -> str:
    # `labelled`: findings that the source has labels of at all
    present = [text for name, text in given.present.items() if labels.get(name) == 1]
    absent = [text for name, text in given.absent.items() if labels.get(name) == 0 and text]
    is_none = labels.get(_NO_FINDING) == 1 or all(
        labels.get(name) == 0 for name in labelled & given.present.keys()
    )
    none = [given.none] if given.none and is_none and not present else []
    return " ".join([*present, *none, *absent])
