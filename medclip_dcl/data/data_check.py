"""Settings of the check that is made before anything is prepared.

Preflight: what a source holds and what is wrong with it, before anything is prepared.

`preflight.json` holds

    source      kind of the source, whether it has images, whether all were opened
    steps       per step: images, studies and patients that are left, and what the step asks
    lines       per code: what was found (`count`, of how many, `kind`, `meaning`)
    splits      per split, as the manifest assigns it: images, reports, patients
    encodings   report files by their encoding
    images       images looked at and opened: formats, bits, sizes, how many are MONOCHROME1
    duplicates  same pixels, same text: groups, images or reports beyond the first of each
    text        sentences, how many hold a de-identification mask, what rules dropped
    labels      where label frequencies come from, and studies per finding and answer
    verdict     shares and leaks beside what is allowed, and whether all is `clean`

Kinds of lines: `unusable` and `duplicate` count towards a share, `leak` by number, `note`
towards nothing.

Sections of reports -> what can be used of them, and what they say of the findings.

What a source holds step by step, and what in it is wrong: counts and ids, no texts.

Codes of what is found are those of `selection.REASONS`, of `reasons.REASONS`, and `CODES`.

Report files by their encoding, and images as the one gate sees them.
"""

import contextlib
import hashlib
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from medclip_dcl.artifact import Artifact, ArtifactType, read_object
from medclip_dcl.data import images, manifest
from medclip_dcl.data.codestreams import read_jpeg
from medclip_dcl.data.dicom.metadata import read_picture_header
from medclip_dcl.data.formats import is_dicom, is_image, is_pointer
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.ipc import Limits
from medclip_dcl.data.manifest import Selection
from medclip_dcl.data.sources.records import LONGEST_REPORT, ImageRecord, RawStudies
from medclip_dcl.errors import ImageError, StudyError
from medclip_dcl.files import path_under
from medclip_dcl.section import Section
from medclip_dcl.tables import Column, TableFormat
from medclip_dcl.text.labeler.labels import ReportLabels, read_claims
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import MASK, SentencesConfig, split_section


class CheckConfig(Section):
    """What `check_data` looks at, and how much of it may be wrong."""

    images: Annotated[int, Field(ge=0)] = 0
    """Images that are opened, drawn with the seed; 0: all."""
    reports: Annotated[int, Field(ge=0)] = 0
    """Reports that are split into sentences and read for findings, drawn with the seed; 0: all."""
    unit: Annotated[int, Field(gt=0)] = 256
    """Images, or sections of reports, in one unit of work: what a kill can lose."""
    max_unusable_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rows that cannot be used (lateral views apart) above which the exit code is 3."""
    max_duplicate_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of opened images whose picture another image has, above which the exit code is 3."""
    max_leaks: Annotated[int, Field(ge=0)] = 0
    """Patients or pictures on both sides of a split, above which the exit code is 3."""


ARTIFACT = ArtifactType("preflight", 2, "check_data")

FIGURES = "preflight.json"

IMAGES = TableFormat(
    "images.parquet",
    (
        Column("image_id", pa.string(), "id of the image"),
        Column("opened", pa.bool_(), "whether it was opened, or its first bytes alone were read"),
        Column("code", pa.string(), "why it is refused, a reason code; empty: nothing was found"),
        Column("source", pa.string(), "dicom, jpeg or png; empty where it is refused or not told"),
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


def read_preflight(artifact: Artifact) -> dict[str, Any]:
    """Read `preflight.json`.

    Args:
        artifact: the preflight.

    Returns:
        The tree that the module's docstring describes.

    Raises:
        ArtifactCorrupt: it is no JSON object.
    """
    return read_object(artifact, FIGURES, ARTIFACT)


def preflight_table(tree: Mapping[str, Any]) -> str:
    """Lay out what was found as text.

    Args:
        tree: content of `preflight.json`.

    Returns:
        One line per step and per code, and the verdict; counts alone, no ids.
    """
    lines = [f"{'step':26}{'images':>9}{'studies':>9}{'patients':>9}"]
    for step in tree["steps"]:
        images = "-" if step["images"] is None else step["images"]
        lines.append(f"{step['name']:26}{images:>9}{step['studies']:>9}{step['patients']:>9}")
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


ANSWERS = ("present", "absent", "uncertain")
"""What a study may say of a finding; nothing said is none of them."""


@dataclass(frozen=True)
class Survey:
    """What the sections of some studies hold.

    Attributes:
        usable: studies with a usable sentence.
        sentences: usable sentences, repeats counted.
        masked: those of them that hold a de-identification mask.
        masked_studies: studies with such a sentence.
        dropped: rule -> sentences that it dropped.
        labels: finding -> answer -> studies.
    """

    usable: frozenset[str]
    sentences: int
    masked: int
    masked_studies: int
    dropped: Mapping[str, int]
    labels: Mapping[str, Mapping[str, int]]


def read_section(text: str, settings: SentencesConfig) -> dict[str, Any]:
    """Split a section and read its claims.

    Args:
        text: a section of a report.
        settings: settings of sentences.

    Returns:
        JSON-serialisable: `kept` and `masked` sentences, `dropped` by rule, `claims`.
    """
    split = split_section(text, settings)
    return {
        "kept": len(split.sentences),
        "masked": sum(bool(MASK.search(sentence)) for _, sentence in split.sentences),
        "dropped": dict(split.dropped),
        "claims": read_claims(text).to_row(),
    }


def survey(
    sections_of: Mapping[str, Sequence[str]], read: Mapping[str, Mapping[str, Any]]
) -> Survey:
    """Bring together what the sections of studies hold.

    Args:
        sections_of: study -> its sections that are used.
        read: section -> what `read_section` gave.

    Returns:
        The counts; a finding that one section asserts is present, whatever others say.
    """
    usable: set[str] = set()
    sentences = masked = masked_studies = 0
    dropped: Counter[str] = Counter()
    said: list[ReportLabels] = []
    for study, sections in sections_of.items():
        rows = [read[text] for text in sections]
        kept = sum(row["kept"] for row in rows)
        hidden = sum(row["masked"] for row in rows)
        if kept:
            usable.add(study)
        sentences, masked, masked_studies = (
            sentences + kept,
            masked + hidden,
            masked_studies + bool(hidden),
        )
        for row in rows:
            dropped.update(row["dropped"])
        said.append(_united(ReportLabels.from_row(row["claims"]) for row in rows))
    return Survey(frozenset(usable), sentences, masked, masked_studies, dropped, count_claims(said))


def count_claims(said: Collection[ReportLabels]) -> dict[str, dict[str, int]]:
    """Count studies per finding and answer.

    Args:
        said: claims of each study.

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


def _united(parts: Iterable[ReportLabels]) -> ReportLabels:
    claims = list(parts)
    asserted = {name: sides for item in claims for name, sides in item.asserted.items()}
    uncertain = frozenset(name for item in claims for name in item.uncertain) - asserted.keys()
    negated = frozenset(name for item in claims for name in item.negated)
    abnormal = bool(asserted or uncertain)
    normal = any(item.normal for item in claims) and not abnormal
    return ReportLabels(asserted, negated - asserted.keys() - uncertain, uncertain, normal)


Row = dict[str, Any]

UNUSABLE, DUPLICATE, LEAK, NOTE = "unusable", "duplicate", "leak", "note"

CODES: dict[str, tuple[str, str]] = {
    "two_splits": (LEAK, "the source puts one patient's images in several splits"),
    "boxed_training": (LEAK, "the source puts a patient with boxes, who is evaluated, in train"),
    "trained_patient": (LEAK, "the model beside it was trained on this evaluated patient"),
    "pixels_across_splits": (LEAK, "the same picture lies in another split"),
    "same_pixels": (DUPLICATE, "an earlier image is the same picture, pixel by pixel"),
    "constant": (UNUSABLE, "all pixels are equal"),
    "image_without_report": (NOTE, "the image is left out because its report is"),
    "no_sentence": (NOTE, "no sentence of the report is left once it is split"),
    "same_text": (NOTE, "an earlier report says the same, word by word"),
    "monochrome1": (NOTE, "the image is stored with low values bright, and is turned round"),
}
"""Code -> kind and meaning, beyond the reasons of manifest and gate."""


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


def count_steps(
    raw: RawStudies, chosen: Selection, usable: Collection[str], refused: Collection[str]
) -> list[Row]:
    """Count what is left after each step.

    Args:
        raw: all rows of the source.
        chosen: what can be used of them.
        usable: studies with a usable sentence.
        refused: images that do not open.

    Returns:
        Per step `name`, `images` (None where the source has none), `studies`, `patients`.
    """
    if not raw.has_images:
        subjects = {study.study_id: study.subject_id for study in raw.studies}
        steps = {"in the source": subjects, "with text": chosen.subjects}
        steps["with usable sentences"] = {s: p for s, p in chosen.subjects.items() if s in usable}
        return [
            {
                "name": name,
                "images": None,
                "studies": len(kept),
                "patients": len(set(kept.values())),
            }
            for name, kept in steps.items()
        ]
    lost: dict[str, set[str]] = defaultdict(set)
    for item in chosen.rejects:
        lost[item.reason].add(item.id)
    images = list({image.image_id: image for image in raw.images}.values())
    views = set[str]().union(*(lost[reason] for reason in manifest.VIEW_REASONS))
    frontal = [image for image in images if image.image_id not in views]
    absent = lost["missing_image"] | lost["pointer_file"]
    steps_of: dict[str, Sequence[ImageRecord]] = {
        "in the source": images,
        "frontal": frontal,
        "with a file": [image for image in frontal if image.image_id not in absent],
    }
    kept = chosen.images
    if raw.has_reports:
        steps_of["with text"] = kept
        kept = [image for image in kept if image.study_id in usable]
        steps_of["with usable sentences"] = kept
    steps_of["that opens"] = [image for image in kept if image.image_id not in refused]
    return [_step(name, part) for name, part in steps_of.items()]


def name_rejects(raw: RawStudies, chosen: Selection) -> list[Found]:
    """Name what the manifest leaves out; an image that goes with its report is named so.

    Args:
        raw: all rows of the source.
        chosen: what can be used of them.

    Returns:
        What was found.
    """
    study_of = {image.image_id: image.study_id for image in raw.images}
    blamed = {item.id for item in chosen.rejects if item.reason != "no_report"}
    return [
        Found("image_without_report", item.id)
        if item.reason == "no_report"
        and item.id in study_of
        and (study_of[item.id] != item.id or item.id in blamed)
        else Found(item.reason, item.id)
        for item in chosen.rejects
    ]


def find_repeats(keys: Mapping[str, str]) -> list[list[str]]:
    """Find what has the same key.

    Args:
        keys: id -> key; an empty key stands for nothing.

    Returns:
        Groups of two or more ids, each in order.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for item in sorted(keys):
        if keys[item]:
            groups[keys[item]].append(item)
    return [group for group in groups.values() if len(group) > 1]


def count_repeats(groups: Iterable[Sequence[str]], of: Belonging) -> dict[str, int]:
    """Count repeats.

    Args:
        groups: from `find_repeats`.
        of: to whom the ids belong.

    Returns:
        `groups`; `extra`, members beyond the first of each; and groups `across_patients`
        and `across_splits`.
    """
    found = list(groups)
    return {
        "groups": len(found),
        "extra": sum(len(group) - 1 for group in found),
        "across_patients": sum(len({of.subject_of[i] for i in group}) > 1 for group in found),
        "across_splits": sum(len({of.split_of[i] for i in group}) > 1 for group in found),
    }


def name_repeats(code: str, groups: Iterable[Sequence[str]]) -> list[Found]:
    """Name every member of a group but the first.

    Args:
        code: what they repeat.
        groups: from `find_repeats`.

    Returns:
        What was found.
    """
    return [Found(code, item, group[0]) for group in groups for item in group[1:]]


def across_splits(groups: Iterable[Sequence[str]], of: Belonging) -> list[Found]:
    """Name images whose picture lies in a split further from training, too.

    Args:
        groups: from `find_repeats`.
        of: to whom the ids belong.

    Returns:
        One for every image of such a group but the first, with an image of another split.
    """
    found = []
    for group in groups:
        for item in group[1:]:
            others = [other for other in group if of.split_of[other] != of.split_of[item]]
            if others:
                found.append(Found("pixels_across_splits", item, others[0]))
    return found


def find_leaks(splits: Mapping[str, Collection[str]], evaluated: Collection[str]) -> list[Found]:
    """Find patients whom the source puts on both sides of a split.

    Args:
        splits: patient -> every split that the source names for an image.
        evaluated: patients of the box table.

    Returns:
        What was found; `build_manifest` mends both kinds.
    """
    both = [Found("two_splits", who) for who, named in sorted(splits.items()) if len(named) > 1]
    boxed = [who for who in sorted(evaluated) if "train" in splits.get(who, ())]
    return both + [Found("boxed_training", who) for who in boxed]


def describe_images(rows: Sequence[Mapping[str, Any]]) -> Row:
    """Count what images are.

    Args:
        rows: rows of `artifacts.preflight.IMAGES`.

    Returns:
        Images `looked` at, `opened`, `known` (their header or the gate told what they are),
        `inverted`; counts per format and per bit depth; least, middle and greatest height
        and width, pixels.
    """
    known = [row for row in rows if row["source"]]
    heights, widths = (sorted(row[name] for row in known) for name in ("height_px", "width_px"))
    return {
        "looked": len(rows),
        "opened": sum(row["opened"] for row in rows),
        "refused": sum(row["opened"] and row["code"] != "" for row in rows),
        "known": len(known),
        "inverted": sum(row["inverted"] for row in known),
        "formats": _counted(row["source"] for row in known),
        "bits": _counted(str(row["bits_stored"]) for row in known),
        "heights": [heights[0], heights[len(heights) // 2], heights[-1]] if known else [],
        "widths": [widths[0], widths[len(widths) // 2], widths[-1]] if known else [],
    }


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
    rows = [
        {
            "code": code,
            "kind": kind_of(code),
            "count": len(named),
            "of": of.get(code, total),
            "meaning": _meaning(code),
        }
        for code, named in ids.items()
    ]
    order = [LEAK, UNUSABLE, DUPLICATE, NOTE]
    return sorted(rows, key=lambda row: (order.index(row["kind"]), -row["count"], row["code"]))


def judge(chosen: Selection, images: Row, found: Sequence[Found], allowed: CheckConfig) -> Row:
    """Hold what was found against what is allowed.

    Args:
        chosen: what can be used of the source.
        images: from `describe_images`.
        found: everything.
        allowed: thresholds.

    Returns:
        `unusable_share` (rows lost by the manifest, and opened images of the rest that are
        refused), `duplicate_share`, `leaks`, their limits, and `clean`.
    """
    lost = chosen.lost / chosen.candidates if chosen.candidates else 1.0
    opened = images["opened"]
    refused = images["refused"] / opened if opened else 0.0
    repeats = sum(item.code == "same_pixels" for item in found)
    unusable = round(lost + (1 - lost) * refused, 6)
    duplicate = round(repeats / opened, 6) if opened else 0.0
    leaks = len({item for item in found if kind_of(item.code) == LEAK})
    return {
        "unusable_share": unusable,
        "max_unusable_share": allowed.max_unusable_share,
        "duplicate_share": duplicate,
        "max_duplicate_share": allowed.max_duplicate_share,
        "leaks": leaks,
        "max_leaks": allowed.max_leaks,
        "clean": unusable <= allowed.max_unusable_share
        and duplicate <= allowed.max_duplicate_share
        and leaks <= allowed.max_leaks,
    }


def kind_of(code: str) -> str:
    """Give the kind of a code.

    Args:
        code: a reason of manifest or gate, or a key of `CODES`.

    Returns:
        `leak`, `unusable`, `duplicate` or `note`.
    """
    if code in CODES:
        return CODES[code][0]
    return NOTE if code in manifest.VIEW_REASONS else UNUSABLE


def _meaning(code: str) -> str:
    if code in CODES:
        return CODES[code][1]
    return manifest.REASONS.get(code) or images.REASONS.get(code, "")


def _step(name: str, images: Sequence[ImageRecord]) -> Row:
    return {
        "name": name,
        "images": len(images),
        "studies": len({image.study_id for image in images}),
        "patients": len({image.subject_id for image in images}),
    }


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


_KEY_DIGITS = 32
_NEAR = 1 << 16
_PNG = b"\x89PNG\r\n\x1a\n"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def encoding_of(data: bytes) -> str:
    """Name the encoding of a report file.

    Args:
        data: all its bytes.

    Returns:
        `ASCII`, `UTF-8`, `UTF-8 with BOM`, `UTF-16`, `pointer file`, `empty`, `with NUL`
        or `not UTF-8`.
    """
    if not data:
        return "empty"
    if is_pointer(data):
        return "pointer file"
    if data.startswith(_UTF16):
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
    """Count report files by their encoding.

    Args:
        root: folder that the paths are relative to.
        paths: paths of report files; those that are missing are left out.
        finished: told how many files have been read.

    Returns:
        Encoding, as `encoding_of` names it, or `too long`, -> files, most frequent first.
    """
    counts: Counter[str] = Counter()
    for path in paths:
        with contextlib.suppress(StudyError), path_under(root, path).open("rb") as stream:
            data = stream.read(LONGEST_REPORT + 1)
            counts["too long" if len(data) > LONGEST_REPORT else encoding_of(data)] += 1
        finished(1)
    return dict(counts.most_common())


def look_at_image(record: ImageRecord, root: Path, decoder: Decoder) -> Row:
    """Open an image and say what it is.

    Args:
        record: the image.
        root: folder that its path is relative to.
        decoder: the gate's workers.

    Returns:
        A row with the columns of `artifacts.preflight.IMAGES`.
    """
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
    """Say of an image what its first bytes tell, without opening it.

    Args:
        image: the image.
        root: folder that its path is relative to.
        limits: what the gate would hold it to.

    Returns:
        A row with the columns of `artifacts.preflight.IMAGES`; a header that tells nothing
        leaves them empty, for the gate alone refuses such an image.
    """
    row = _row(image, opened=False)
    path = path_under(root, image.path)
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(_NEAR)
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
    return {
        "image_id": image.image_id,
        "opened": opened,
        "code": "",
        "source": "",
        "bits_stored": None,
        "inverted": False,
        "height_px": None,
        "width_px": None,
        "pixels_key": "",
    }


def _picture(path: Path, head: bytes) -> Row | None:
    if is_dicom(head):
        picture = read_picture_header(path)
        return None if picture is None else {"source": "dicom", **asdict(picture)}
    if head.startswith(_PNG):
        width, height, bits = struct.unpack_from(">IIB", head.ljust(25, b"\0"), 16)
        return {"source": "png", "bits_stored": bits, "height_px": height, "width_px": width}
    try:
        frame = read_jpeg(head)
    except ImageError:
        return None
    size = {"height_px": frame.rows, "width_px": frame.columns}
    return {"source": "jpeg", "bits_stored": frame.precision, **size}


def pixels_key(pixels: npt.NDArray[np.uint16]) -> str:
    """Name a picture by what is seen on it, however the file stores it.

    Args:
        pixels: uint16 (height, width), as the gate gives them.

    Returns:
        32 hexadecimal digits: half of the SHA-256 of size and grey values.
    """
    digest = hashlib.sha256(f"{pixels.shape[0]} {pixels.shape[1]} ".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()[:_KEY_DIGITS]
