"""Sentences -> claims: which findings each sentence and each report asserts, denies or hedges.

Our labeler reads them, or `claims.table` says what others have read. Such a table has one row a
claim: what it is about (`text`, a sentence, or `study_id`, a report), `finding`, `state` (present,
absent, uncertain; 1, 0, -1) and, where they are known, `side` (left, right, both). `No Finding`
that is present calls the text normal. A row without a finding says that the text was read and says
nothing. CheXbert, RadGraph or a language model can fill such a table.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.tables import read_in_parts
from medclip_dcl.data.source_settings import LABEL_CODES, SourceConfig
from medclip_dcl.data.sources.template import template_sentences
from medclip_dcl.data.table_columns import clean_id, take_rows
from medclip_dcl.data.table_files import read_any
from medclip_dcl.text import sentences
from medclip_dcl.text.boundaries import without_number
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.labels import SILENT, GivenClaims, ReportLabels, unite
from medclip_dcl.text.language import language_warning
from medclip_dcl.text.sentences import text_key

from .job import Job, job_main


def build(job: Job) -> None:
    """Read the claims of every sentence, and unite them per report."""
    inputs, config = job.open_inputs(), job.config
    source, table = inputs.values["sentences"], inputs.values.get("claims_table")
    given = None if table is None else read_claims_table(table, config.source.fallback_encoding)
    said = {}
    if given is None and config.source.template:
        given = claims_of_template(config.source)
        said = {"template": config.source.template, "findings": config.source.findings}

    def write(writer: ArtifactWriter) -> Mapping[str, Any]:
        distinct = sentences.distinct_sentences(source)
        columns = ("study_id", "text_key")
        rows = read_in_parts(source.path, sentences.SENTENCES, columns, whole="study_id")
        return labels.write_claims(writer.directory, distinct, rows, given)

    settings = {"reader": labels.reader_digest(), **said}
    artifact = job.make(labels.ARTIFACT, settings, inputs.digests, write)
    if given is None and (warning := language_warning(artifact.summary["languages"])):
        job.say(warning=warning)


_SUBJECTS = ("text", "study_id")
_SIDES = {"": (), "left": ("left",), "right": ("right",), "both": ("left", "right")}
_NORMAL = "no finding"


class _Claim(NamedTuple):
    finding: str
    state: int | None
    side: str


def read_claims_table(path: Path, fallback_encoding: str = "") -> GivenClaims:
    """Read the claims of a table.

    Raises:
        StudyError: it cannot be read, lacks a column, or a row's state or side is not one.
    """
    table = read_any(path, fallback_encoding)
    subjects = [name for name in _SUBJECTS if name in table.column_names]
    if not subjects:
        raise StudyError(f"table {path.name} has neither column text nor study_id; add one")
    columns = take_rows(table, path.name, [*subjects, "finding", "state"])
    columns["side"] = [""] * table.num_rows
    if "side" in table.column_names:
        columns |= take_rows(table, path.name, ["side"])
    labels_of: dict[str, dict[str, ReportLabels]] = {name: {} for name in subjects}
    for row in range(table.num_rows):
        values = {name: column[row].strip() for name, column in columns.items()}
        named = [name for name in subjects if values[name]]
        if len(named) != 1:
            raise StudyError(
                f"row {row} of {path.name} names {len(named)} of text and study_id; name one"
            )
        name = named[0]
        key = text_key(without_number(values[name])) if name == "text" else clean_id(values[name])
        labels = _labels(_claim(values, row, path.name))
        before = labels_of[name].get(key)
        labels_of[name][key] = labels if before is None else unite((before, labels))
    return GivenClaims(labels_of.get("text"), labels_of.get("study_id"))


def _claim(values: dict[str, str], row: int, file: str) -> _Claim:
    state, side = values["state"].lower(), values["side"].lower()
    if state not in LABEL_CODES or side not in _SIDES:
        raise StudyError(
            f"row {row} of {file} has no usable state or side; use present, absent or uncertain "
            "(1, 0, -1), and left, right, both or nothing"
        )
    return _Claim(" ".join(values["finding"].split()), LABEL_CODES[state], side)


def claims_of_template(settings: SourceConfig) -> GivenClaims:
    """Say what the sentences of `source.template` claim, of findings that no labeler knows too."""
    said = template_sentences(settings)
    claims = [(text, _Claim(name, 1, "")) for name, text in said.present.items()]
    claims += [(text, _Claim(name, 0, "")) for name, text in said.absent.items() if text]
    claims += [(said.none, _Claim(_NORMAL, 1, ""))] * bool(said.none)
    return GivenClaims({text_key(text): _labels(claim) for text, claim in claims})


def _labels(claim: _Claim) -> ReportLabels:
    if not claim.finding or claim.state is None:
        return SILENT
    if claim.finding.lower() == _NORMAL:
        return ReportLabels({}, frozenset(), frozenset(), normal=claim.state == 1)
    own: dict[str, Any] = {"asserted": {}, "negated": frozenset(), "uncertain": frozenset()}
    if claim.state == 1:
        own["asserted"] = {claim.finding: frozenset(_SIDES[claim.side])}
    else:
        own["uncertain" if claim.state else "negated"] = frozenset({claim.finding})
    return ReportLabels(**own, normal=False)


main = job_main("read_claims", build)

if __name__ == "__main__":
    sys.exit(main())
