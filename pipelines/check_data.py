"""Check of a source: images opened through the gate, reports split and read, faults and leaks."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from medclip_dcl.core.artifact_writer import ArtifactWriter, map_resumable, remove_resumable
from medclip_dcl.core.errors import ImageError, StudyError
from medclip_dcl.core.files import path_under, write_text
from medclip_dcl.core.progress import Progress, available_cores
from medclip_dcl.core.tables import SPLITS, write_table
from medclip_dcl.data import manifest
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.records import ImageRecord, RawStudies, Source, Study, Text
from medclip_dcl.data.selection import (
    REJECT_REASONS,
    VIEW_REASONS,
    Selection,
    labels_of,
    parts_of_report,
    select,
    split_patients,
)
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.text.boundaries import find_sentences
from medclip_dcl.text.labeler.labels import ReportLabels, read_sentence, report_labels_of
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.language import prevailing
from medclip_dcl.text.mimic_sections import Part
from medclip_dcl.text.sections import ELSEWHERE, USUAL_NAMES
from medclip_dcl.text.sentences import (
    LONGEST_SECTION,
    SPLITTER,
    SentencesConfig,
    broken_rule,
    text_key,
    used_sections,
)

from .config import Config
from .data import source_of
from .job import Job, job_command
from .report import preflight
from .report.page import render_check
from .report.preflight import (
    ANSWERS,
    CODES,
    DUPLICATE,
    FIGURES,
    FOUND,
    IMAGES,
    LEAK,
    NOTE,
    UNUSABLE,
)

Row = dict[str, Any]
_FILE_REASONS = ("missing_image", "empty_image", "backslash_path", "pointer_file")

PAGE = "preflight.html"
"""Name of the page, in the config's folder."""

_DECODING = {
    *("voi", "reject_burned_in", "max_megapixels", "max_bytes", "deadline_s", "memory_mb"),
}  # settings of images that decide whether and how one opens


def check(job: Job) -> None:
    """Count what a source holds, name its faults and leaks, before anything is prepared.

    Reads the source's tables, reports and images; writes `preflight` and the page `preflight.html`.
    A killed run resumes with the next unit of images or reports. StudyError where the source has
    more faults than are allowed.
    """
    config = job.config
    source = source_of(config)
    settings = {
        "source": config.source.result_settings(),
        "images": config.images.model_dump(mode="json", include=_DECODING),
        "max_reject_share": config.source.max_reject_share,
        "sentences": config.sentences,
        "splitter": SPLITTER,
    }
    chosen = select(source.raw, config.source)
    study_of = {study.study_id: study for study in source.raw.studies}

    def parts_of(study: str) -> list[Part]:
        reports = source.raw.reports_root
        return parts_of_report(study_of[study], reports, config.source.fallback_encoding)

    def fill(writer: ArtifactWriter) -> Mapping[str, Any]:
        folder = writer.directory
        split_of = split_patients(source, chosen, config.source)
        reports = read_reports(folder, chosen.texts, parts_of, config.sentences)
        images = inspect_images(
            folder, chosen.images, source.raw.root, config.images, config.workers
        )
        inspected = Inspection(source, chosen, split_of, images, reports)
        return _write_preflight(folder, inspected, config.source)

    artifact = job.make(preflight.ARTIFACT, settings, source.inputs, fill)
    tree = preflight.read_preflight(artifact)
    page, shown = job.work / PAGE, _shown_reports(config, chosen, parts_of)
    page.touch(mode=0o600)
    write_text(page, render_check(job.work.name, artifact, shown))
    page.chmod(0o600)  # it holds reports
    print(preflight.preflight_table(tree), flush=True)
    job.say(page=str(page))
    for warning in preflight.reading_warnings(tree):
        job.say(warning=warning)
    if not tree["verdict"]["clean"]:
        raise StudyError(
            "the source has more faults than source.max_reject_share allows, or leaks between its "
            f"splits; {preflight.FOUND.file} of {artifact.path} names each, and its row "
            "where a table has it: correct them"
        )


_SHOWN_REPORTS = 20


def _shown_reports(
    config: Config, chosen: Selection, parts_of: Callable[[str], list[Part]]
) -> list[list[Row]]:
    """Show how some reports are read; none where `report.private` is set."""
    if config.report.private:
        return []
    texts, studies = chosen.texts, sorted(chosen.texts)
    draw = np.random.default_rng(config.seed)
    drawn = draw.choice(len(studies), min(_SHOWN_REPORTS, len(studies)), replace=False)
    shown = []
    for study in (studies[index] for index in sorted(drawn.tolist())):
        used = used_sections(texts[study]._asdict(), config.sentences)
        pieces = mark_report(parts_of(study), used)
        shown.append([piece._asdict() | {"says": _in_words(piece.labels)} for piece in pieces])
    return shown


class Found(NamedTuple):
    """One thing that was found: its code, on which id, and what it repeats."""

    code: str
    id: str
    other: str = ""


@dataclass(frozen=True)
class Inspection:
    """Inspected files of a source, and the manifest's view of them.

    `split_of`: patient -> split; `reports`: study -> what `describe_report` gave.
    """

    source: Source
    chosen: Selection
    split_of: Mapping[str, str]
    images: Sequence[Row]
    reports: Mapping[str, Row]

    @cached_property
    def subject_of(self) -> dict[str, str]:
        """Image or study -> patient."""
        owners = {image.image_id: image.subject_id for image in self.chosen.images}
        return owners | self.chosen.subjects


def _write_preflight(folder: Path, inspected: Inspection, settings: SourceConfig) -> Row:
    faults = find_faults(inspected)
    tree = _describe(inspected, faults, settings.kind, settings.max_reject_share)
    remove_resumable(folder)
    write_table(folder, IMAGES, inspected.images)
    write_table(folder, FOUND, name_rows(sorted(set(faults)), inspected.source.raw))
    write_text(folder / FIGURES, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    return {
        "images": len(inspected.images),
        "opened": tree["images"]["opened"],
        "reports": len(inspected.chosen.texts),
        **{f"found_{line['code']}": line["count"] for line in tree["lines"]},
        "clean": tree["verdict"]["clean"],
    }


def find_faults(inspected: Inspection) -> list[Found]:
    """Name everything that was found."""
    source, chosen = inspected.source, inspected.chosen
    faults = name_rejects(source.raw, chosen)
    faults += [Found(row["code"], row["image_id"]) for row in inspected.images if row["code"]]
    faults += [Found("monochrome1", row["image_id"]) for row in inspected.images if row["inverted"]]
    faults += find_leaks(source.raw.splits, source.boxes.subjects)
    faults += [
        Found("no_sentence", study) for study, row in inspected.reports.items() if not row["kept"]
    ]
    pixels = _groups({row["image_id"]: row["pixels_key"] for row in inspected.images})
    texts = _groups({s: text_key(" ".join(text)) for s, text in chosen.texts.items()})
    for code, groups in (("same_pixels", pixels), ("same_text", texts)):
        faults += [Found(code, item, group[0]) for group in groups for item in group[1:]]
    split_of = {item: inspected.split_of[who] for item, who in inspected.subject_of.items()}
    for group in pixels:
        for item in group[1:]:
            elsewhere = [other for other in group if split_of[other] != split_of[item]]
            faults += [Found("pixels_across_splits", item, other) for other in elsewhere[:1]]
    return faults


def name_rejects(raw: RawStudies, chosen: Selection) -> list[Found]:
    """Name what the manifest leaves out; an image that goes with its report is named so."""
    study_of = {image.image_id: image.study_id for image in raw.images}
    blamed = {item.id for item in chosen.rejects if item.reason != "no_report"}
    named = []
    for reason, name in ((item.reason, item.id) for item in chosen.rejects):
        # An image's id may be its study's, too.
        is_image = name in study_of and (study_of[name] != name or name in blamed)
        goes_along = reason == "no_report" and is_image
        named.append(Found("image_without_report" if goes_along else reason, name))
    return named


def name_rows(faults: Iterable[Found], raw: RawStudies) -> list[Row]:
    """Add the row of a table to each thing that was found: rows of `FOUND`."""
    rows = []
    for item in faults:
        table, row = raw.rows.find(item.id, repeated=item.code == "duplicate_id")
        rows.append(item._asdict() | {"table": table, "row": row})
    return rows


def find_leaks(splits: Mapping[str, Collection[str]], evaluated: Collection[str]) -> list[Found]:
    """Find patients whom the source puts on both sides of a split; the manifest corrects it."""
    both = [Found("two_splits", who) for who, named in sorted(splits.items()) if len(named) > 1]
    boxed = [who for who in sorted(evaluated) if "train" in splits.get(who, ())]
    return both + [Found("boxed_training", who) for who in boxed]


def _groups(keys: Mapping[str, str]) -> list[list[str]]:
    """Group ids with the same key, two or more in order; an empty key stands for nothing."""
    groups: dict[str, list[str]] = defaultdict(list)
    for item in sorted(keys):
        if keys[item]:
            groups[keys[item]].append(item)
    return [group for group in groups.values() if len(group) > 1]


def _describe(inspected: Inspection, faults: Sequence[Found], kind: str, max_share: float) -> Row:
    chosen, raw, read = inspected.chosen, inspected.source.raw, inspected.reports
    facts = describe_images(inspected.images)
    of_images = {"monochrome1", "same_pixels", "pixels_across_splits"}
    of = dict.fromkeys(
        of_images | {row["code"] for row in inspected.images}, len(inspected.images)
    ) | {
        "same_text": len(chosen.texts),
        "no_sentence": len(read),
        "two_splits": len(raw.splits),
        "boxed_training": len(inspected.source.boxes.subjects),
    }
    refused = {row["image_id"] for row in inspected.images if row["code"]}
    usable = {study for study in chosen.texts if read[study]["kept"]}
    total = len(raw.images) if raw.has_images else len(raw.studies)
    split_of = inspected.split_of
    counts = {
        "images": Counter(split_of[image.subject_id] for image in chosen.images),
        "reports": Counter(split_of[chosen.subjects[study]] for study in chosen.texts),
        "patients": Counter(split_of.values()),
    }
    dropped: Counter[str] = sum((Counter(row["dropped"]) for row in read.values()), Counter())
    return {
        "source": {"kind": kind, "has_images": raw.has_images, "by_patient": raw.by_patient},
        "steps": count_steps(raw, chosen, usable, refused),
        "lines": make_lines(faults, of, total + len(raw.rejects)),
        "splits": {split: {what: n[split] for what, n in counts.items()} for split in SPLITS},
        "images": facts,
        "text": {
            "reports": len(read),
            "sentences": sum(row["kept"] for row in read.values()),
            "languages": dict(Counter(row["language"] for row in read.values()).most_common()),
            "characters": sum(row["characters"] for row in read.values()),
            "dropped": dict(dropped.most_common()),
        },
        "labels": count_labels(raw.labels, chosen.subjects, read.values()),
        "verdict": judge(chosen, facts, faults, max_share),
    }


def count_steps(
    raw: RawStudies, chosen: Selection, usable: Collection[str], refused: Collection[str]
) -> list[Row]:
    """Count what is left after each step; `images` is None where the source has none.

    `usable`: studies with a usable sentence; `refused`: images that do not open.
    """
    left: dict[str, ImageRecord | Study]
    lost: dict[str, set[str]] = defaultdict(set)
    for item in chosen.rejects:
        lost[item.reason].add(item.id)
    dropped: dict[str, Collection[str]] = {"in the source": ()}  # step -> ids that it drops
    if raw.has_images:
        left = {image.image_id: image for image in raw.images}
        study_of = {image.image_id: image.study_id for image in chosen.images}
        dropped["frontal"] = {name for reason in VIEW_REASONS for name in lost[reason]}
        dropped["with a file"] = {name for reason in _FILE_REASONS for name in lost[reason]}
        if raw.has_reports:
            dropped["with text"] = left.keys() - study_of
            dropped["with usable sentences"] = {
                name for name, study in study_of.items() if study not in usable
            }
        dropped["that opens"] = refused
    else:
        left = {study.study_id: study for study in raw.studies}
        dropped["with text"] = left.keys() - chosen.texts.keys()
        dropped["with usable sentences"] = left.keys() - usable
    steps = []
    for name, ids in dropped.items():
        left = {key: item for key, item in left.items() if key not in ids}
        studies = len({item.study_id for item in left.values()})
        patients = len({item.subject_id for item in left.values()})
        images = len(left) if raw.has_images else None
        steps.append({"name": name, "images": images, "studies": studies, "patients": patients})
    return steps


def make_lines(faults: Iterable[Found], of: Mapping[str, int], total: int) -> list[Row]:
    """Count distinct ids per code, gravest kind first.

    `of`: code -> how many were looked at; `total`: how many for every other code.
    """
    counts = Counter(code for code, _ in {(item.code, item.id) for item in faults})
    meanings = REJECT_REASONS | {code: text for code, (_, text) in CODES.items()}
    rows = [
        {"code": code, "kind": _kind_of(code), "count": count, "of": of.get(code, total)}
        | {"meaning": meanings[code]}
        for code, count in counts.items()
    ]
    order = [LEAK, UNUSABLE, DUPLICATE, NOTE]
    return sorted(rows, key=lambda row: (order.index(row["kind"]), -row["count"], row["code"]))


def judge(chosen: Selection, facts: Row, faults: Iterable[Found], max_share: float) -> Row:
    """Hold what was found against what is allowed; `facts`: from `describe_images`.

    Unusable are rows lost by the manifest, and opened images of the rest that are refused.
    """
    lost = chosen.lost / chosen.candidates if chosen.candidates else 1.0
    opened = facts["opened"]
    refused = facts["refused"] / opened if opened else 0.0
    repeats = sum(item.code == "same_pixels" for item in faults)
    verdict = {
        "unusable_share": round(lost + (1 - lost) * refused, 6),
        "duplicate_share": round(repeats / opened, 6) if opened else 0.0,
        "leaks": len({item for item in faults if _kind_of(item.code) == LEAK}),
    }
    clean = not verdict["leaks"] and all(value <= max_share for value in verdict.values())
    return verdict | {"max_share": max_share, "clean": clean}


def _kind_of(code: str) -> str:
    if code in CODES:
        return CODES[code][0]
    return NOTE if code in VIEW_REASONS else UNUSABLE


# --- Inspection of files: images opened through the gate, reports split and read

UNIT = 256  # images or reports in one unit of work: what a kill can lose, some seconds
_ANSWER_OF = {1: "present", 0: "absent", -1: "uncertain"}  # in a label table


class Piece(NamedTuple):
    """A stretch of a report and what is done with it."""

    text: str
    reason: str  # why it is left out; empty where it is a sentence that is kept, or a heading
    section: str
    labels: ReportLabels | None = None  # what a kept sentence says


_read = lru_cache(1 << 16)(read_sentence)  # many reports say the same
OTHER_HEADING = "other heading"
UNNAMED = "before the first heading"


def mark_report(parts: Sequence[Part], used: Collection[str]) -> list[Piece]:
    """Mark what is done with every stretch of a report; `used`: sections that are split."""
    pieces: list[Piece] = []
    for part in parts:
        pieces.append(Piece(part.heading, "", part.section or part.name))
        if part.section not in used:
            name = part.section or part.name or UNNAMED
            is_usual = name in USUAL_NAMES or name in {UNNAMED, ELSEWHERE, "withdrawn"}
            pieces.append(Piece(part.body, name if is_usual else OTHER_HEADING, name))
            continue
        last = 0
        for start, end, sentence in find_sentences(part.body):
            rule = broken_rule(sentence)
            if start >= LONGEST_SECTION:
                rule = "too long"
            labels = None if rule else report_labels_of([_read(sentence)])
            pieces.append(Piece(part.body[last:start], "", part.section))
            pieces.append(Piece(part.body[start:end], rule, part.section, labels))
            last = end
        pieces.append(Piece(part.body[last:], "", part.section))
    return pieces


def describe_report(parts: Sequence[Part], used: Collection[str]) -> Row:
    """Count the sentences `kept` of a report, its characters and those left out, by reason.

    `said` is finding -> answer, and `language` as `language_of` names it.
    """
    pieces = mark_report(parts, used)
    sentences = [" ".join(piece.text.split()) for piece in pieces if piece.labels is not None]
    readings = [_read(sentence) for sentence in sentences]
    claims = report_labels_of(readings)
    answers = dict.fromkeys(claims.negated, "absent")
    answers |= dict.fromkeys(claims.uncertain, "uncertain")
    answers |= dict.fromkeys([*claims.asserted, *["No Finding"] * claims.normal], "present")
    dropped: Counter[str] = Counter()
    for piece in pieces:
        dropped[piece.reason] += len("".join(piece.text.split()))
    return {
        "kept": len(sentences),
        "said": answers,
        "language": prevailing(chain(*(reading.languages for reading in readings))),
        "characters": dropped.total(),
        "dropped": {reason: count for reason, count in dropped.items() if reason and count},
    }


def read_reports(
    folder: Path,
    texts: Mapping[str, Text],
    parts_of: Callable[[str], Sequence[Part]],
    settings: SentencesConfig,
) -> dict[str, Row]:
    """Read the reports of studies, resumable in `folder`; `parts_of` cuts one into its parts."""
    studies = sorted(texts)

    def read(part: Sequence[str]) -> list[Row]:
        return [
            describe_report(parts_of(study), used_sections(texts[study]._asdict(), settings))
            for study in part
        ]

    with Progress("reports read", len(studies), "report") as progress:
        rows = map_resumable(folder, "reports", studies, UNIT, read, progress.advance)
    return dict(zip(studies, rows, strict=True))


def _in_words(labels: ReportLabels | None) -> list[Row]:
    """List what a sentence says: finding with its sides, and polarity."""
    if labels is None:
        return []
    asserted = [" ".join([*sorted(sides), name]) for name, sides in sorted(labels.asserted.items())]
    names_of = {
        "present": asserted,
        "absent": sorted(labels.negated),
        "uncertain": sorted(labels.uncertain),
        "normal": ["normal"] * labels.normal,
    }
    return [{"name": name, "polarity": kind} for kind, names in names_of.items() for name in names]


def count_labels(labels: pa.Table | None, studies: Collection[str], rows: Iterable[Row]) -> Row:
    """Count studies per finding and answer: in the source's label table, else in the reports.

    No Finding is present where a report calls the image normal.
    """
    names = LABELS if labels is None else manifest.label_names(labels)
    if labels is None:
        given = [row["said"] for row in rows]
    else:
        given = [
            {name: _ANSWER_OF[row[name]] for name in names if row[name] in _ANSWER_OF}
            for row in labels_of(labels, studies).to_pylist()
        ]
    counts = Counter(item for answers in given for item in answers.items())
    return {
        "source": "reports" if labels is None else "table",
        "studies": len(given),
        "findings": {name: {word: counts[name, word] for word in ANSWERS} for name in names},
    }


def inspect_images(
    folder: Path,
    listed: Sequence[ImageRecord],
    root: Path,
    settings: ImagesConfig,
    workers: int,
) -> list[Row]:
    """Open images through the gate, in order of their ids; resumable in `folder`."""
    chosen = sorted(listed, key=lambda image: image.image_id)
    workers = workers or available_cores()
    with (
        Progress("images opened", len(chosen), "image") as progress,
        Decoder(settings, workers) as decoder,
        ThreadPoolExecutor(workers) as threads,
    ):

        def inspect(part: Sequence[ImageRecord]) -> list[Row]:
            return list(threads.map(lambda image: inspect_image(image, root, decoder), part))

        try:
            return map_resumable(folder, "images", chosen, UNIT, inspect, progress.advance)
        finally:  # stopped: what is queued need not be opened first
            threads.shutdown(cancel_futures=True)


def inspect_image(record: ImageRecord, root: Path, decoder: Decoder) -> Row:
    """Open an image through the gate: a row of `IMAGES`."""
    row = dict.fromkeys(IMAGES.schema.names) | {"image_id": record.image_id, "code": ""}
    try:
        image = decoder.open(path_under(root, record.path))
    except ImageError as error:
        return row | {"code": error.code, "source": "", "inverted": False, "pixels_key": ""}
    height, width = image.pixels.shape
    return row | {
        "code": "constant" if image.constant else "",
        "source": image.source,
        "bits_stored": image.bits_stored,
        "inverted": image.inverted,
        "height_px": height,
        "width_px": width,
        "ignored": " ".join(image.ignored),
        "pixels_key": "" if image.constant else pixels_key(image.pixels),
    }


def pixels_key(pixels: npt.NDArray[np.uint16]) -> str:
    """Name a picture by its size and grey values, however the file stores it: 32 hex digits."""
    digest = hashlib.sha256(f"{pixels.shape[0]} {pixels.shape[1]} ".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()[:32]


def describe_images(rows: Sequence[Row]) -> Row:
    """Count what images are; heights and widths: the least, the middle and the greatest, pixels."""
    sound = [row for row in rows if row["source"]]
    heights, widths = (sorted(row[side] for row in sound) for side in ("height_px", "width_px"))
    return {
        "opened": len(rows),
        "refused": sum(row["code"] != "" for row in rows),
        "inverted": sum(row["inverted"] for row in sound),
        "formats": dict(Counter(row["source"] for row in sound).most_common()),
        "ignored": dict(Counter(name for row in sound for name in row["ignored"].split())),
        "bits": {
            str(bits): n for bits, n in sorted(Counter(x["bits_stored"] for x in sound).items())
        },
        "heights": [heights[0], heights[len(sound) // 2], heights[-1]] if sound else [],
        "widths": [widths[0], widths[len(sound) // 2], widths[-1]] if sound else [],
    }


check_data = job_command("check_data", check)
