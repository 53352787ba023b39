"""Preflight: what a source holds and what is wrong with it, before anything is prepared.

`preflight.json` holds counts alone, no ids and no texts:

    source      kind of the source, whether it has images, whether all were opened
    steps       per step: images, studies and patients that are left, and what the step asks
    lines       per code: what was found (`count`, of how many, `kind`, `meaning`)
    splits      per split, as the manifest assigns it: images, reports, patients
    encodings   report files by their encoding
    images      images looked at and opened: formats, bits, sizes, how many are MONOCHROME1
    duplicates  same pixels, same text: groups, images or reports beyond the first of each
    text        sentences, how many hold a de-identification mask, what rules dropped
    labels      where label frequencies come from, and studies per finding and answer
    verdict     shares and leaks with what is allowed, and whether all is `clean`

Codes of lines are those of `manifest.REASONS`, of `images.REASONS`, and `CODES`. Of their kinds,
`unusable` and `duplicate` count towards a share, `leak` by number, `note` towards nothing.
"""

import contextlib
import hashlib
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from medclip_dcl.artifact import Artifact, ArtifactType, map_resumable, read_object
from medclip_dcl.data import images, manifest
from medclip_dcl.data.codestreams import read_jpeg
from medclip_dcl.data.dicom.metadata import read_picture_header
from medclip_dcl.data.formats import is_dicom, is_image, is_pointer
from medclip_dcl.data.images import Decoder, ImagesConfig, limits_of
from medclip_dcl.data.ipc import Limits
from medclip_dcl.data.manifest import Selection, Source
from medclip_dcl.data.sources.records import LONGEST_REPORT, SPLITS, ImageRecord, RawStudies
from medclip_dcl.distributed import available_cores
from medclip_dcl.errors import ImageError, StudyError
from medclip_dcl.files import path_under
from medclip_dcl.progress import Progress
from medclip_dcl.section import Section
from medclip_dcl.tables import Column, TableFormat
from medclip_dcl.text.labeler.labels import ReportLabels, read_claims
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import MASK, SentencesConfig, split_section, text_key


class CheckConfig(Section):
    """What `check_data` looks at, and how much of it may be wrong."""

    images: Annotated[int, Field(ge=0)] = 0
    """Images that are opened, drawn with the seed; 0: all."""
    reports: Annotated[int, Field(ge=0)] = 0
    """Reports that are split into sentences and read for findings, drawn with the seed; 0: all."""
    max_unusable_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rows that cannot be used (lateral views apart) above which the exit code is 3."""
    max_duplicate_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of opened images whose picture another image has, above which the exit code is 3."""
    max_leaks: Annotated[int, Field(ge=0)] = 0
    """Patients or pictures on both sides of a split, above which the exit code is 3."""


UNIT = 256
"""Images, or sections of reports, in one unit of work: what a kill can lose, some seconds."""

ARTIFACT = ArtifactType("preflight", 2, "check_data")

FIGURES = "preflight.json"

IMAGES = TableFormat(
    "images.parquet",
    (
        Column("image_id", pa.string(), "id of the image"),
        Column("opened", pa.bool_(), "whether it was opened, or its first bytes alone were read"),
        Column("code", pa.string(), "why it is refused, a reason code; empty: nothing was found"),
        Column("source", pa.string(), "dicom, jpeg or png; empty where it is refused or not known"),
        Column("bits_stored", pa.int32(), "bits of a stored value; null where it is not known"),
        Column("inverted", pa.bool_(), "whether it is MONOCHROME1"),
        Column("height_px", pa.int32(), "height, pixels; null where it is not known"),
        Column("width_px", pa.int32(), "width, pixels; null where it is not known"),
        Column(
            "pixels_key",
            pa.string(),
            "half of the SHA-256 of size and grey values; empty unless it opens",
        ),
    ),
)
"""One row per image that the manifest would keep, in order of image_id."""

FOUND = TableFormat(
    "found.parquet",
    (
        Column("code", pa.string(), "what was found, a code of `preflight.json`"),
        Column("id", pa.string(), "id of the image, study or patient"),
        Column("other", pa.string(), "the image or study that it repeats; else empty"),
    ),
)
"""One row per code and id."""


Row = dict[str, Any]

UNUSABLE, DUPLICATE, LEAK, NOTE = "unusable", "duplicate", "leak", "note"

CODES: dict[str, tuple[str, str]] = {
    "two_splits": (LEAK, "the source puts one patient's images in several splits"),
    "boxed_training": (LEAK, "the source puts a patient with boxes, who is evaluated, in train"),
    "trained_patient": (LEAK, "the model next to it was trained on this evaluated patient"),
    "pixels_across_splits": (LEAK, "the same picture is in another split, too"),
    "same_pixels": (DUPLICATE, "an earlier image is the same picture, pixel by pixel"),
    "constant": (UNUSABLE, "all pixels are equal"),
    "image_without_report": (NOTE, "the image is left out because its report is"),
    "no_sentence": (NOTE, "no sentence of the report is left once it is split"),
    "same_text": (NOTE, "an earlier report says the same, word by word"),
    "monochrome1": (NOTE, "the image is stored with low values bright, and is turned round"),
}
"""Code -> kind and meaning, beyond the reasons of manifest and gate."""

ANSWERS = ("present", "absent", "uncertain")
"""What a study may say about a finding; nothing said is none of them."""


class Found(NamedTuple):
    """One thing that was found: its code, on which id, and what it repeats."""

    code: str
    id: str
    other: str = ""


@dataclass(frozen=True)
class Belonging:
    """To whom images and studies belong, and in which split the manifest puts them."""

    subject_of: Mapping[str, str]
    split_of: Mapping[str, str]

    @classmethod
    def of(cls, chosen: Selection, split_of: Mapping[str, str]) -> "Belonging":
        """Look up every image and study of a selection; `split_of`: patient -> split."""
        owners = {image.image_id: image.subject_id for image in chosen.images} | chosen.subjects
        return cls(owners, {item: split_of[who] for item, who in owners.items()})


@dataclass(frozen=True)
class Look:
    """What was looked at.

    Attributes:
        source: the source.
        chosen: what can be used of it.
        of: to whom that belongs.
        images: rows of `IMAGES`.
        texts: of the reports that were read, from `survey`.
        asked: studies whose reports were read.
        encodings: from `count_encodings`.
        trained: patients of the evaluated split that the model at hand was trained on.
    """

    source: Source
    chosen: Selection
    of: Belonging
    images: Sequence[Row]
    texts: Row
    asked: Sequence[str]
    encodings: Mapping[str, int]
    trained: Sequence[str]


def read_preflight(artifact: Artifact) -> dict[str, Any]:
    """Read `preflight.json`; `ArtifactCorrupt` where it is not a JSON object."""
    return read_object(artifact, FIGURES, ARTIFACT)


def preflight_table(tree: Mapping[str, Any]) -> str:
    """Lay out steps, lines and verdict of `preflight.json` as text."""
    lines = [f"{'step':26}{'images':>9}{'studies':>9}{'patients':>9}"]
    for step in tree["steps"]:
        count = "-" if step["images"] is None else step["images"]
        lines.append(f"{step['name']:26}{count:>9}{step['studies']:>9}{step['patients']:>9}")
    lines.append("")
    for item in tree["lines"]:
        share = f"{item['count']:>9} of {item['of']}"
        lines.append(f"{item['kind']:10} {item['code']:24}{share:20} {item['meaning']}")
    verdict = tree["verdict"]
    lines += [
        "",
        f"unusable {verdict['unusable_share']:.4f} (at most {verdict['max_unusable_share']}), "
        f"duplicates {verdict['duplicate_share']:.4f} (at most {verdict['max_duplicate_share']}), "
        f"leaks {verdict['leaks']} (at most {verdict['max_leaks']}): "
        + ("clean" if verdict["clean"] else "FAULTS"),
    ]
    return "\n".join(lines)


def draw(ids: Sequence[str], wanted: int, seed: int) -> list[str]:
    """Draw some of the ids without replacement, in their order; 0: all."""
    if not wanted or wanted >= len(ids):
        return list(ids)
    indices = np.random.default_rng(seed).choice(len(ids), wanted, replace=False)
    return [ids[index] for index in sorted(indices.tolist())]


# Reports


def read_section(text: str, settings: SentencesConfig) -> Row:
    """Split a section and read its claims: `kept`, `masked`, `dropped` by rule, `claims`."""
    split = split_section(text, settings)
    return {
        "kept": len(split.sentences),
        "masked": sum(bool(MASK.search(sentence)) for _, sentence in split.sentences),
        "dropped": dict(split.dropped),
        "claims": read_claims(text).to_row(),
    }


def read_reports(
    folder: Path, sections_of: Mapping[str, Sequence[str]], settings: SentencesConfig
) -> Row:
    """Read every distinct section once, resumable in `folder`, and give what `survey` gives."""
    distinct = sorted({text for sections in sections_of.values() for text in sections})

    def read(part: Sequence[str]) -> list[Row]:
        return [read_section(text, settings) for text in part]

    with Progress("sections read", len(distinct), "section") as progress:
        rows = map_resumable(folder, "sections", distinct, UNIT, read, progress.advance)
    return survey(sections_of, dict(zip(distinct, rows, strict=True)))


def survey(sections_of: Mapping[str, Sequence[str]], read: Mapping[str, Row]) -> Row:
    """Bring together what the sections of studies hold.

    Args:
        sections_of: study -> its sections that are used.
        read: section -> what `read_section` gave.

    Returns:
        `usable`, the studies with a usable sentence; `sentences` and `masked_sentences`, repeats
        counted; `masked_reports`; `dropped`, rule -> sentences; `labels`, as `count_claims` gives
        them. A finding that one section asserts is present, whatever others say.
    """
    rows_of = {study: [read[text] for text in sections] for study, sections in sections_of.items()}
    rows = [row for found in rows_of.values() for row in found]
    dropped: Counter[str] = Counter()
    for row in rows:
        dropped.update(row["dropped"])
    return {
        "usable": {s for s, found in rows_of.items() if any(row["kept"] for row in found)},
        "sentences": sum(row["kept"] for row in rows),
        "masked_sentences": sum(row["masked"] for row in rows),
        "masked_reports": sum(any(row["masked"] for row in found) for found in rows_of.values()),
        "dropped": dict(dropped),
        "labels": count_claims(
            [_united([ReportLabels.from_row(row["claims"]) for row in f]) for f in rows_of.values()]
        ),
    }


def count_claims(said: Iterable[ReportLabels]) -> dict[str, dict[str, int]]:
    """Count studies per finding and answer.

    Returns:
        CheXpert's 14 names -> `ANSWERS` -> studies; No Finding is present in studies
        that are called normal.
    """
    counts = {name: dict.fromkeys(ANSWERS, 0) for name in LABELS}
    for claims in said:
        groups = zip(ANSWERS, (claims.asserted, claims.negated, claims.uncertain), strict=True)
        for answer, names in groups:
            for name in names:
                counts[name][answer] += 1
        counts["No Finding"]["present"] += claims.normal
    return counts


def _united(parts: Sequence[ReportLabels]) -> ReportLabels:
    asserted = {name: sides for item in parts for name, sides in item.asserted.items()}
    uncertain = frozenset(name for item in parts for name in item.uncertain) - asserted.keys()
    negated = frozenset(name for item in parts for name in item.negated)
    normal = any(item.normal for item in parts) and not (asserted or uncertain)
    return ReportLabels(asserted, negated - asserted.keys() - uncertain, uncertain, normal)


def encoding_of(data: bytes) -> str:
    """Name the encoding of a report file from all its bytes."""
    if not data:
        return "empty"
    if is_pointer(data):
        return "pointer file"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    if b"\0" in data:
        return "with NUL"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8"
    if data.startswith(b"\xef\xbb\xbf"):
        return "UTF-8 with BOM"
    return "ASCII" if data.isascii() else "UTF-8"


def count_encodings(
    root: Path, paths: Iterable[str], finished: Callable[[int], None]
) -> dict[str, int]:
    """Count report files by encoding, most frequent first; those that are missing are left out."""
    counts: Counter[str] = Counter()
    for path in paths:
        with contextlib.suppress(StudyError), path_under(root, path).open("rb") as stream:
            data = stream.read(LONGEST_REPORT + 1)
            counts["too long" if len(data) > LONGEST_REPORT else encoding_of(data)] += 1
        finished(1)
    return dict(counts.most_common())


# Images


def look_at_images(
    folder: Path,
    listed: Sequence[ImageRecord],
    drawn: Collection[str],
    root: Path,
    settings: ImagesConfig,
) -> list[Row]:
    """Open the drawn images and read the first bytes of the others, resumable in `folder`.

    Returns:
        Rows of `IMAGES`, in order of image_id.
    """
    chosen = [image for image in listed if image.image_id in drawn]
    others = [image for image in listed if image.image_id not in drawn]
    limits, workers = limits_of(settings), settings.workers or available_cores()

    def peek(part: Sequence[ImageRecord]) -> list[Row]:
        return [look_at_header(image, root, limits) for image in part]

    with Progress("headers read", len(others), "image") as progress:
        rows = map_resumable(folder, "headers", others, UNIT, peek, progress.advance)
    with (
        Progress("images opened", len(chosen), "image") as progress,
        Decoder(settings, workers) as decoder,
        ThreadPoolExecutor(workers) as threads,
    ):

        def look(part: Sequence[ImageRecord]) -> list[Row]:
            try:
                return list(threads.map(lambda image: look_at_image(image, root, decoder), part))
            except BaseException:  # stopped: what is queued need not be opened first
                threads.shutdown(wait=False, cancel_futures=True)
                raise

        rows += map_resumable(folder, "images", chosen, UNIT, look, progress.advance)
    return sorted(rows, key=itemgetter("image_id"))


def look_at_image(record: ImageRecord, root: Path, decoder: Decoder) -> Row:
    """Open an image through the gate: a row of `IMAGES`."""
    row = _row(record, opened=True)
    try:
        image = decoder.open(path_under(root, record.path))
    except ImageError as error:
        return row | {"code": error.code}
    height, width = image.pixels.shape
    return row | {
        "code": "constant" if image.constant else "",
        "source": image.source,
        "bits_stored": image.bits_stored,
        "inverted": image.inverted,
        "height_px": height,
        "width_px": width,
        "pixels_key": "" if image.constant else pixels_key(image.pixels),
    }


def look_at_header(image: ImageRecord, root: Path, limits: Limits) -> Row:
    """Read the first bytes of an image: a row of `IMAGES`.

    What a header does not tell stays empty, for the gate alone refuses such an image.
    """
    row = _row(image, opened=False)
    path = path_under(root, image.path)
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(1 << 16)  # a JPEG's frame header may follow an EXIF block of 64 kB
    if not is_image(head):
        return row | {"code": "unknown_format" if size else "empty"}
    facts = _picture(path, head)
    if facts is None:
        return row
    is_burned_in = facts.pop("burned_in", False)
    if size > limits.max_bytes:
        return row | {"code": "too_many_bytes"}
    if facts["height_px"] * facts["width_px"] > limits.max_pixels:
        return row | {"code": "too_many_pixels"}
    if is_burned_in and limits.reject_burned_in:
        return row | {"code": "burned_in"}
    return row | facts


def _row(image: ImageRecord, *, opened: bool) -> Row:
    empty = {"code": "", "source": "", "inverted": False, "pixels_key": ""}
    unknown = dict.fromkeys(("bits_stored", "height_px", "width_px"))
    return {"image_id": image.image_id, "opened": opened} | empty | unknown


def _picture(path: Path, head: bytes) -> Row | None:
    if is_dicom(head):
        picture = read_picture_header(path)
        return None if picture is None else {"source": "dicom", **asdict(picture)}
    if head.startswith(b"\x89PNG"):
        width, height, bits = struct.unpack_from(">IIB", head.ljust(25, b"\0"), 16)
        return {"source": "png", "bits_stored": bits, "height_px": height, "width_px": width}
    try:
        frame = read_jpeg(head)
    except ImageError:
        return None
    size = {"height_px": frame.rows, "width_px": frame.columns}
    return {"source": "jpeg", "bits_stored": frame.precision, **size}


def pixels_key(pixels: npt.NDArray[np.uint16]) -> str:
    """Name a picture by its size and grey values, however the file stores it.

    Args:
        pixels: uint16 (height, width), as the gate gives them.

    Returns:
        32 hexadecimal digits: half of a SHA-256.
    """
    digest = hashlib.sha256(f"{pixels.shape[0]} {pixels.shape[1]} ".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()[:32]


def describe_images(rows: Sequence[Row]) -> Row:
    """Count what images are.

    Args:
        rows: rows of `IMAGES`.

    Returns:
        Images `looked` at, `opened`, `refused` then, `known` (header or gate says what they are),
        `inverted`; counts per format and per bit depth; least, middle and greatest height
        and width, pixels.
    """
    known = [row for row in rows if row["source"]]
    spans = {}
    for name in ("height_px", "width_px"):
        sizes = sorted(row[name] for row in known)
        spans[name] = [sizes[0], sizes[len(sizes) // 2], sizes[-1]] if sizes else []
    return {
        "looked": len(rows),
        "opened": sum(row["opened"] for row in rows),
        "refused": sum(row["opened"] and row["code"] != "" for row in rows),
        "known": len(known),
        "inverted": sum(row["inverted"] for row in known),
        "formats": dict(Counter(row["source"] for row in known).most_common()),
        "bits": dict(Counter(str(row["bits_stored"]) for row in known).most_common()),
        "heights": spans["height_px"],
        "widths": spans["width_px"],
    }


# Findings


def name_rejects(raw: RawStudies, chosen: Selection) -> list[Found]:
    """Name what the manifest leaves out; an image that goes with its report is named so."""
    study_of = {image.image_id: image.study_id for image in raw.images}
    blamed = {item.id for item in chosen.rejects if item.reason != "no_report"}

    def goes_with_report(name: str) -> bool:  # an image's id may be its study's, too
        return name in study_of and (study_of[name] != name or name in blamed)

    return [
        Found("image_without_report", item.id)
        if item.reason == "no_report" and goes_with_report(item.id)
        else Found(item.reason, item.id)
        for item in chosen.rejects
    ]


def find_repeats(keys: Mapping[str, str]) -> list[list[str]]:
    """Group ids with the same key, two or more in order; an empty key stands for nothing."""
    groups: dict[str, list[str]] = defaultdict(list)
    for item in sorted(keys):
        if keys[item]:
            groups[keys[item]].append(item)
    return [group for group in groups.values() if len(group) > 1]


def count_repeats(groups: Sequence[Sequence[str]], of: Belonging) -> dict[str, int]:
    """Count groups, their members beyond the first, and groups of several patients or splits."""
    return {
        "groups": len(groups),
        "extra": sum(len(group) - 1 for group in groups),
        "across_patients": sum(len({of.subject_of[i] for i in group}) > 1 for group in groups),
        "across_splits": sum(len({of.split_of[i] for i in group}) > 1 for group in groups),
    }


def name_repeats(code: str, groups: Iterable[Sequence[str]]) -> list[Found]:
    """Name every member of a group but the first."""
    return [Found(code, item, group[0]) for group in groups for item in group[1:]]


def across_splits(groups: Iterable[Sequence[str]], of: Belonging) -> list[Found]:
    """Name every image of a group but the first that has another split than one of the others."""
    found = []
    for group in groups:
        for item in group[1:]:
            others = [other for other in group if of.split_of[other] != of.split_of[item]]
            if others:
                found.append(Found("pixels_across_splits", item, others[0]))
    return found


def find_leaks(splits: Mapping[str, Collection[str]], evaluated: Collection[str]) -> list[Found]:
    """Find patients whom the source puts on both sides of a split; the manifest corrects it.

    Args:
        splits: patient -> every split that the source names for an image.
        evaluated: patients of the box table.
    """
    both = [Found("two_splits", who) for who, named in sorted(splits.items()) if len(named) > 1]
    boxed = [who for who in sorted(evaluated) if "train" in splits.get(who, ())]
    return both + [Found("boxed_training", who) for who in boxed]


def find_faults(look: Look) -> tuple[list[Found], dict[str, dict[str, int]]]:
    """Name everything that was found, and count repeated `pixels` and repeated `text`."""
    source, chosen = look.source, look.chosen
    found = name_rejects(source.raw, chosen)
    found += [Found(row["code"], row["image_id"]) for row in look.images if row["code"]]
    found += [Found("monochrome1", row["image_id"]) for row in look.images if row["inverted"]]
    found += find_leaks(source.raw.splits, source.boxes.subjects)
    found += [Found("trained_patient", who) for who in look.trained]
    found += [Found("no_sentence", s) for s in look.asked if s not in look.texts["usable"]]
    pixels = find_repeats({row["image_id"]: row["pixels_key"] for row in look.images})
    texts = find_repeats({s: text_key(" ".join(text)) for s, text in chosen.texts.items()})
    found += name_repeats("same_pixels", pixels) + name_repeats("same_text", texts)
    found += across_splits(pixels, look.of)
    repeats = {"pixels": count_repeats(pixels, look.of), "text": count_repeats(texts, look.of)}
    return found, repeats


def describe_source(
    look: Look, found: Sequence[Found], repeats: Row, kind: str, allowed: CheckConfig
) -> Row:
    """Make the tree of `preflight.json`; `kind`: `source.kind`."""
    chosen, raw, texts = look.chosen, look.source.raw, dict(look.texts)
    usable, labels = texts.pop("usable"), texts.pop("labels")
    all_reports = len(look.asked) == len(chosen.texts)
    facts = describe_images(look.images)
    codes = {str(row["code"]) for row in look.images} | {"monochrome1"}
    of: dict[str, int] = dict.fromkeys(codes, int(facts["looked"]))
    of |= dict.fromkeys(("same_pixels", "pixels_across_splits"), int(facts["opened"]))
    of |= {
        "same_text": len(chosen.texts),
        "no_sentence": len(look.asked),
        "two_splits": len(raw.splits),
        "boxed_training": len(look.source.boxes.subjects),
        "trained_patient": len({*raw.splits, *(image.subject_id for image in raw.images)}),
    }
    refused = {row["image_id"] for row in look.images if row["code"]}
    unread = set() if all_reports else set(chosen.texts)  # of those nothing is known: they stay
    total = len(raw.images) if raw.has_images else len(raw.studies)
    return {
        "source": {
            "kind": kind,
            "has_images": raw.has_images,
            "all_images": facts["opened"] == facts["looked"],
            "all_reports": all_reports,
            "boxes": len(look.source.boxes.rows),
        },
        "steps": count_steps(raw, chosen, usable | unread, refused),
        "lines": make_lines(found, of, total + len(raw.rejects)),
        "splits": {split: _count_split(look, split) for split in SPLITS},
        "encodings": dict(look.encodings),
        "images": facts,
        "duplicates": repeats,
        "text": {"reports": len(look.asked), **texts},
        "labels": _label_counts(look, labels),
        "verdict": judge(chosen, facts, found, allowed),
    }


def _count_split(look: Look, split: str) -> dict[str, int]:
    of = look.of
    return {
        "images": sum(of.split_of[image.image_id] == split for image in look.chosen.images),
        "reports": sum(of.split_of[study] == split for study in look.chosen.texts),
        "patients": len({of.subject_of[i] for i, name in of.split_of.items() if name == split}),
    }


def _label_counts(look: Look, said: Row) -> Row:
    """Count studies per finding: from the source's label table, else from what reports say."""
    table = look.source.raw.labels
    if table is None:
        return {"source": "reports", "studies": len(look.asked), "findings": said}
    answers = dict(zip((1, 0, -1), ANSWERS, strict=True))
    first: dict[str, Row] = {}
    for row in table.to_pylist():
        if row["study_id"] in look.chosen.texts:
            first.setdefault(row["study_id"], row)
    counts = {name: dict.fromkeys(ANSWERS, 0) for name in LABELS}
    for row in first.values():
        for name in LABELS:
            if row[name] in answers:
                counts[name][answers[row[name]]] += 1
    return {"source": "table", "studies": len(first), "findings": counts}


def count_steps(
    raw: RawStudies, chosen: Selection, usable: Collection[str], refused: Collection[str]
) -> list[Row]:
    """Count what is left after each step.

    Returns:
        Per step `name`, `images` (None where the source has none), `studies`, `patients`.
    """
    steps: dict[str, Iterable[tuple[str, str]]] = {}  # of images, or of studies where none are
    if not raw.has_images:
        steps["in the source"] = {s.study_id: s.subject_id for s in raw.studies}.items()
        steps["with text"] = chosen.subjects.items()
        steps["with usable sentences"] = [
            item for item in chosen.subjects.items() if item[0] in usable
        ]
    else:
        lost: dict[str, set[str]] = defaultdict(set)
        for item in chosen.rejects:
            lost[item.reason].add(item.id)
        views = set[str]().union(*(lost[reason] for reason in manifest.VIEW_REASONS))
        absent = lost["missing_image"] | lost["pointer_file"]
        listed = list({image.image_id: image for image in raw.images}.values())
        frontal = [image for image in listed if image.image_id not in views]
        kept = chosen.images
        steps["in the source"] = map(_owner, listed)
        steps["frontal"] = map(_owner, frontal)
        steps["with a file"] = [_owner(i) for i in frontal if i.image_id not in absent]
        if raw.has_reports:
            steps["with text"] = map(_owner, kept)
            kept = [image for image in kept if image.study_id in usable]
            steps["with usable sentences"] = map(_owner, kept)
        steps["that opens"] = [_owner(i) for i in kept if i.image_id not in refused]
    counted = {name: list(pairs) for name, pairs in steps.items()}
    return [
        {
            "name": name,
            "images": len(pairs) if raw.has_images else None,
            "studies": len({study for study, _ in pairs}),
            "patients": len({subject for _, subject in pairs}),
        }
        for name, pairs in counted.items()
    ]


def _owner(image: ImageRecord) -> tuple[str, str]:
    return image.study_id, image.subject_id


def make_lines(found: Sequence[Found], of: Mapping[str, int], total: int) -> list[Row]:
    """Sum up what was found, gravest kind first.

    Args:
        found: everything.
        of: code -> how many were looked at.
        total: how many were looked at for every other code.

    Returns:
        Per code `code`, `kind`, `count` of distinct ids, `of` and `meaning`.
    """
    ids: dict[str, set[str]] = defaultdict(set)
    for item in found:
        ids[item.code].add(item.id)
    meanings = images.REASONS | manifest.REASONS | {code: text for code, (_, text) in CODES.items()}
    rows = [
        {
            "code": code,
            "kind": kind_of(code),
            "count": len(named),
            "of": of.get(code, total),
            "meaning": meanings.get(code, ""),
        }
        for code, named in ids.items()
    ]
    order = [LEAK, UNUSABLE, DUPLICATE, NOTE]
    return sorted(rows, key=lambda row: (order.index(row["kind"]), -row["count"], row["code"]))


def judge(chosen: Selection, facts: Row, found: Iterable[Found], allowed: CheckConfig) -> Row:
    """Hold what was found against what is allowed.

    Args:
        chosen: what can be used of the source.
        facts: from `describe_images`.
        found: everything.
        allowed: thresholds.

    Returns:
        `unusable_share` (rows lost by the manifest, and opened images of the rest that are
        refused), `duplicate_share`, `leaks`, their limits, and `clean`.
    """
    lost = chosen.lost / chosen.candidates if chosen.candidates else 1.0
    opened = facts["opened"]
    refused = facts["refused"] / opened if opened else 0.0
    repeats = sum(item.code == "same_pixels" for item in found)
    verdict = {
        "unusable_share": round(lost + (1 - lost) * refused, 6),
        "duplicate_share": round(repeats / opened, 6) if opened else 0.0,
        "leaks": len({item for item in found if kind_of(item.code) == LEAK}),
    }
    limits = {f"max_{name}": getattr(allowed, f"max_{name}") for name in verdict}
    clean = all(value <= limits[f"max_{name}"] for name, value in verdict.items())
    return verdict | limits | {"clean": clean}


def kind_of(code: str) -> str:
    """Give the kind of a code: `leak`, `unusable`, `duplicate` or `note`."""
    if code in CODES:
        return CODES[code][0]
    return NOTE if code in manifest.VIEW_REASONS else UNUSABLE
