"""From studies to what training reads: the manifest, prepared images, sentences, claims."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from medclip_dcl.core.artifact import HEADER, Artifact
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.errors import ArtifactError, ConfigError, StudyError
from medclip_dcl.core.progress import Progress
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.core.tables import TableWriter, read_in_parts
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.records import Source, stamp_files
from medclip_dcl.data.selection import write_manifest
from medclip_dcl.data.source_settings import LABEL_CODES, SourceConfig, label_word
from medclip_dcl.data.sources import readers
from medclip_dcl.data.sources.labels import template_sentences
from medclip_dcl.data.table_files import clean_id, read_any, take_rows
from medclip_dcl.synthetic import tree
from medclip_dcl.text import sentences
from medclip_dcl.text.boundaries import without_number
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.labels import SILENT, GivenClaims, ReportLabels, unite
from medclip_dcl.text.language import language_warning
from medclip_dcl.text.sentences import text_key

from .config import Config
from .job import Job

_REPORTS_AT_ONCE = 2000  # as Python's objects: they take ten times what a table takes


def generate_studies(job: Job) -> None:
    """Draw chest images, reports and boxes with known truth as a MIMIC-CXR-shaped tree.

    They are written at `source.root`, unless those there have the same fingerprint. ArtifactError
    where the folder holds something that this job did not write.
    """
    settings, seed = job.config.generate, job.config.seed
    path = resolve_path(job.config.source.root, job.config.work)
    if path.exists() and not (path / HEADER).is_file():
        raise ArtifactError("source.root names a folder that this job did not write; name another")
    job.make(
        tree.ARTIFACT,
        {"generate": settings, "seed": seed},
        {},
        lambda writer: tree.write_tree(writer, seed, settings, job.config.workers),
        path,
    )


def source_of(config: Config) -> Source:
    """Read the source that a config names, as `read_source`; no image is decoded."""
    return readers.read_source(config.source, lambda text: resolve_path(text, config.work))


def build_manifest(job: Job) -> None:
    """List the usable images with their reports, labels and boxes, and what was rejected.

    Reads a MIMIC-CXR(-JPG) tree, Open-i, any mapped table or a folder of DICOM files; writes
    `manifest`. A run takes seconds to minutes and starts from the beginning when killed.
    """
    settings = job.config.source
    source = source_of(job.config)
    listed = job.make(
        manifest.ARTIFACT,
        {"source": settings.result_settings()},
        source.inputs,
        lambda writer: write_manifest(writer.directory, source, settings),
    )
    refuse_missing_labels(job.config, listed)


def refuse_missing_labels(config: Config, listed: Artifact) -> None:
    """Refuse a config that trains by labels, where a manifest has none: now and not hours later.

    ConfigError where a setting reads labels, and no study has any.
    """
    readers = {
        "objective.negatives: remove_labels": config.objective.negatives == "remove_labels",
        "objective.relation: labels": config.objective.relation == "labels",
    }
    wanting = [name for name, reads in readers.items() if reads]
    if wanting and not manifest.read_labels(listed).num_rows:
        raise ConfigError(
            f"{' and '.join(wanting)}: no study of the source has labels; name them in "
            "source.columns.labels or source.labels, or choose another value"
        )


def prepare_images(job: Job) -> None:
    """Decode every image of the manifest and keep it as a square 8-bit picture.

    Reads the manifest and the images below `source.root`; writes `prepared`. Images are
    written shard by shard, so a killed run resumes after the last whole shard.
    """
    config, inputs = job.config, job.open_inputs()
    root = readers.images_root(config.source, lambda text: resolve_path(text, config.work))
    images = prepared.list_images(inputs.values["manifest"])
    job.make(
        prepared.ARTIFACT,
        {"images": config.images.result_settings()},
        {**inputs.digests, "images": stamp_files(root, (image.path for image in images))},
        lambda writer: prepared.prepare_images(
            writer.directory,
            images,
            root,
            config.images,
            config.source.max_reject_share,
            config.workers,
        ),
    )


def split_sentences(job: Job) -> None:
    """Split the reports' findings and impressions into sentences.

    Reads the manifest, writes sentences. Minutes for all of MIMIC-CXR on one core.
    """
    inputs, settings = job.open_inputs(), job.config.sentences

    def write(writer: ArtifactWriter) -> Mapping[str, Any]:
        with TableWriter(writer.directory, sentences.SENTENCES) as table:
            return sentences.split_reports(_reports(inputs.values["manifest"]), settings, table.add)

    made_by = {"sentences": settings, "splitter": sentences.SPLITTER}
    job.make(sentences.ARTIFACT, made_by, inputs.digests, write)


def _reports(listed: Artifact) -> Iterator[list[dict[str, Any]]]:
    parts = read_in_parts(listed.path, manifest.REPORTS, manifest.REPORTS.schema.names)
    some = chain.from_iterable(part.to_batches(_REPORTS_AT_ONCE) for part in parts)
    with Progress("split reports", listed.summary.get("reports", 0), "report") as progress:
        for batch in some:
            yield batch.to_pylist()
            progress.advance(len(batch))


def read_claims(job: Job) -> None:
    """Sentences -> claims: which findings each sentence and report asserts, denies or hedges.

    Our labeler reads them, or `claims.table` says what others have read. Such a table has one row a
    claim: what it is about (`text`, a sentence, or `study_id`, a report), `finding`, `state`
    (present, absent, uncertain; 1, 0, -1) and, where they are known, `side` (left, right, both).
    `No Finding` that is present calls the text normal. A row without a finding says that the text
    was read and says nothing. CheXbert, RadGraph or a language model can fill such a table.
    """
    inputs, config = job.open_inputs(), job.config
    source, table = inputs.values["sentences"], inputs.values.get("claims_table")
    given = None if table is None else read_claims_table(table, config.source.fallback_encoding)
    settings: dict[str, Any] = {"reader": labels.reader_digest()}
    if given is None and config.source.template:
        given = claims_of_template(config.source)
        settings |= {"template": config.source.template, "findings": config.source.findings}

    def write(writer: ArtifactWriter) -> Mapping[str, Any]:
        distinct = sentences.distinct_sentences(source)
        columns = ("study_id", "text_key")
        rows = read_in_parts(source.path, sentences.SENTENCES, columns, whole="study_id")
        return labels.write_claims(writer.directory, distinct, rows, given)

    artifact = job.make(labels.ARTIFACT, settings, inputs.digests, write)
    if given is None and (warning := language_warning(artifact.summary["languages"])):
        job.say(warning=warning)


_SUBJECTS = ("text", "study_id")
_SIDES = {"": (), "left": ("left",), "right": ("right",), "both": ("left", "right")}
_NORMAL = "no finding"


def read_claims_table(path: Path, fallback_encoding: str = "") -> GivenClaims:
    """Read the claims of a table.

    StudyError where it cannot be read, lacks a column, or a row's state or side is not one.
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
        state, side = label_word(values["state"]), values["side"].lower()
        if state not in LABEL_CODES or side not in _SIDES:
            raise StudyError(
                f"row {row} of {path.name} has no usable state or side; use present, absent or "
                "uncertain (1, 0, -1), and left, right, both or nothing"
            )
        read = _labels(" ".join(values["finding"].split()), LABEL_CODES[state], side)
        before = labels_of[name].get(key)
        labels_of[name][key] = read if before is None else unite((before, read))
    return GivenClaims(labels_of.get("text"), labels_of.get("study_id"))


def claims_of_template(settings: SourceConfig) -> GivenClaims:
    """Say what the sentences of `source.template` claim, of findings that no labeler knows too."""
    template = template_sentences(settings)
    claims = {text: _labels(name, 1) for name, text in template.present.items()}
    claims |= {text: _labels(name, 0) for name, text in template.absent.items() if text}
    claims |= {template.none: _labels(_NORMAL, 1)} if template.none else {}
    return GivenClaims({text_key(text): claim for text, claim in claims.items()})


def _labels(finding: str, state: int | None, side: str = "") -> ReportLabels:
    if not finding or state is None:
        return SILENT
    if finding.lower() == _NORMAL:
        return ReportLabels({}, frozenset(), frozenset(), normal=state == 1)
    named = frozenset({finding})
    return ReportLabels(
        asserted={finding: frozenset(_SIDES[side])} if state == 1 else {},
        negated=named if state == 0 else frozenset(),
        uncertain=named if state == -1 else frozenset(),
        normal=False,
    )
