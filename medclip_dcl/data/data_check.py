"""Preflight: what a source holds and what is wrong with it, before anything is prepared.

`preflight.json` holds counts alone, no ids and no texts:

    source      kind of the source, whether it has images and patients, whether all were opened
    steps       per step: images, studies and patients that are left, and what the step asks
    lines       per code: what was found (`count`, of how many, `kind`, `meaning`)
    splits      per split, as the manifest assigns it: images, reports, patients
    images      images listed and opened: formats, bits, sizes, how many are MONOCHROME1
    duplicates  same pixels, same text: groups, images or reports beyond the first of each
    text        reports listed and read, and the sentences that are left of them
    labels      where label frequencies come from, and studies per finding and answer
    verdict     shares and leaks with what is allowed, and whether all is `clean`

Codes of lines are those of `selection.REJECT_REASONS`, and `CODES`. Of their kinds,
`unusable` and `duplicate` count towards a share, `leak` by number, `note` towards nothing.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from medclip_dcl.artifact import (
    Artifact,
    ArtifactType,
    map_resumable,
    read_object,
    remove_resumable,
)
from medclip_dcl.data import manifest
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.row_images import image_source
from medclip_dcl.data.selection import REJECT_REASONS, VIEW_REASONS, Selection
from medclip_dcl.data.sources.readers import Source
from medclip_dcl.data.sources.records import ImageRecord, RawStudies, Study, Text
from medclip_dcl.distributed import available_cores
from medclip_dcl.errors import ImageError
from medclip_dcl.files import write_text
from medclip_dcl.progress import Progress
from medclip_dcl.settings import Section
from medclip_dcl.tables import SPLITS, Column, TableFormat, write_table
from medclip_dcl.text.labeler.labels import read_claims
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import SentencesConfig, split_section, text_key, used_sections


class CheckConfig(Section):
    """Scope of `check_data`, and the shares of faults that it lets pass."""

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


ARTIFACT = ArtifactType("preflight", 4, "check_data")

IMAGES = TableFormat(
    "images.parquet",
    (
        Column("image_id", pa.string(), "id of the image"),
        Column("code", pa.string(), "why it is refused, a reason code; empty: nothing was found"),
        Column("source", pa.string(), "dicom, jpeg or png; empty where it is refused"),
        Column("bits_stored", pa.int32(), "bits of a stored value; null where it is refused"),
        Column("inverted", pa.bool_(), "whether it is MONOCHROME1"),
        Column("height_px", pa.int32(), "height, pixels; null where it is refused"),
        Column("width_px", pa.int32(), "width, pixels; null where it is refused"),
        Column("pixels_key", pa.string(), "half of the SHA-256 of size and grey values, or empty"),
    ),
)
"""One row per opened image of those that the manifest would keep, in order of image_id."""

FOUND = TableFormat(
    "found.parquet",
    (
        Column("code", pa.string(), "what was found, a code of `preflight.json`"),
        Column("id", pa.string(), "id of the image, study or patient"),
        Column("other", pa.string(), "the image or study that it repeats; else empty"),
        Column("table", pa.string(), "file of the mapped table that has the id; else empty"),
        Column("row", pa.int64(), "row of that file, counted from 0 below its header; else null"),
    ),
)
"""One row per code and id."""

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

NOT_BY_PATIENT = (
    "Splits are not by patient: the source names no patients, and leakage between splits cannot be "
    "excluded."
)

ANSWERS = ("present", "absent", "uncertain")
"""What a study may say about a finding; nothing said is none of them."""

UNIT = 256  # images or reports in one unit of work: what a kill can lose, some seconds
_FIGURES = "preflight.json"
_ANSWER_OF = {1: "present", 0: "absent", -1: "uncertain"}  # in a label table

Row = dict[str, Any]


class Found(NamedTuple):
    """One thing that was found: its code, on which id, and what it repeats."""

    code: str
    id: str
    other: str = ""


@dataclass(frozen=True)
class Inspection:
    """Inspected files of a source, and the manifest's view of them.

    `split_of`: patient -> split; `reports`: study -> what `describe_report` gave; `trained`:
    patients of the evaluated split that the model at hand was trained on.
    """

    source: Source
    chosen: Selection
    split_of: Mapping[str, str]
    images: Sequence[Row]
    reports: Mapping[str, Row]
    trained: Sequence[str]

    @cached_property
    def subject_of(self) -> dict[str, str]:
        """Image or study -> patient."""
        owners = {image.image_id: image.subject_id for image in self.chosen.images}
        return owners | self.chosen.subjects


def read_preflight(artifact: Artifact) -> dict[str, Any]:
    """Read `preflight.json`; `ArtifactCorrupt` where it is not a JSON object."""
    return read_object(artifact, _FIGURES, ARTIFACT)


def write_preflight(folder: Path, inspected: Inspection, kind: str, allowed: CheckConfig) -> Row:
    """Name every fault, write the preflight's files and give its summary; `kind`: `source.kind`."""
    found, repeats = find_faults(inspected)
    tree = _describe(inspected, found, repeats, kind, allowed)
    remove_resumable(folder)
    write_table(folder, IMAGES, inspected.images)
    write_table(folder, FOUND, name_rows(sorted(set(found)), inspected.source.raw))
    write_text(folder / _FIGURES, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    return {
        "images": len(inspected.images),
        "opened": tree["images"]["opened"],
        "reports": len(inspected.chosen.texts),
        **{f"found_{line['code']}": line["count"] for line in tree["lines"]},
        "clean": tree["verdict"]["clean"],
    }


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
    if not tree["source"].get("by_patient", True):
        lines += ["", NOT_BY_PATIENT]
    verdict = tree["verdict"]
    return "\n".join(lines) + (
        f"\n\nunusable {verdict['unusable_share']:.4f} (at most {verdict['max_unusable_share']}), "
        f"duplicates {verdict['duplicate_share']:.4f} (at most {verdict['max_duplicate_share']}), "
        f"leaks {verdict['leaks']} (at most {verdict['max_leaks']}): "
        + ("clean" if verdict["clean"] else "FAULTS")
    )


def _draw(ids: Sequence[str], wanted: int, seed: int) -> list[str]:
    """Draw some of the ids without replacement, in their order; 0: all."""
    if not wanted or wanted >= len(ids):
        return list(ids)
    indices = np.random.default_rng(seed).choice(len(ids), wanted, replace=False)
    return [ids[index] for index in sorted(indices.tolist())]


_split = lru_cache(1 << 16)(split_section)  # many reports share their impression


def describe_report(sections: Sequence[str], settings: SentencesConfig) -> Row:
    """Count the sentences `kept` of a report, and give what is `said`: finding -> answer."""
    claims = read_claims("\n\n".join(sections))
    said = dict.fromkeys(claims.negated, "absent")
    said |= dict.fromkeys(claims.uncertain, "uncertain") | dict.fromkeys(claims.asserted, "present")
    if claims.normal:
        said["No Finding"] = "present"
    return {"kept": sum(len(_split(text, settings).sentences) for text in sections), "said": said}


def read_reports(
    folder: Path, texts: Mapping[str, Text], settings: SentencesConfig, wanted: int, seed: int
) -> dict[str, Row]:
    """Read as many reports as are wanted (0: all), drawn with the seed; resumable in `folder`."""
    studies = _draw(sorted(texts), wanted, seed)

    def read(part: Sequence[str]) -> list[Row]:
        reports = [texts[study]._asdict() for study in part]
        return [
            describe_report([report[name] for name in used_sections(report, settings)], settings)
            for report in reports
        ]

    with Progress("reports read", len(studies), "report") as progress:
        rows = map_resumable(folder, "reports", studies, UNIT, read, progress.advance)
    return dict(zip(studies, rows, strict=True))


def count_labels(labels: pa.Table | None, studies: Collection[str], rows: Iterable[Row]) -> Row:
    """Count studies per finding and answer: in the source's label table, else in the reports.

    No Finding is present where a report calls the image normal.
    """
    names = LABELS if labels is None else manifest.label_names(labels)
    if labels is None:
        said = [row["said"] for row in rows]
    else:
        said = [
            {name: _ANSWER_OF[row[name]] for name in names if row[name] in _ANSWER_OF}
            for row in manifest.labels_of(labels, studies).to_pylist()
        ]
    counts = Counter(item for answers in said for item in answers.items())
    return {
        "source": "reports" if labels is None else "table",
        "studies": len(said),
        "findings": {name: {word: counts[name, word] for word in ANSWERS} for name in names},
    }


def inspect_images(
    folder: Path,
    listed: Sequence[ImageRecord],
    root: Path,
    settings: ImagesConfig,
    wanted: int,
    seed: int,
) -> list[Row]:
    """Open as many images as are wanted (0: all), drawn with the seed; resumable in `folder`."""
    image_of = {image.image_id: image for image in listed}
    chosen = [image_of[name] for name in _draw(sorted(image_of), wanted, seed)]
    workers = settings.workers or available_cores()
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
        image = decoder.open(image_source(root, record.path))
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
        "pixels_key": "" if image.constant else pixels_key(image.pixels),
    }


def pixels_key(pixels: npt.NDArray[np.uint16]) -> str:
    """Name a picture by its size and grey values, however the file stores it: 32 hex digits."""
    digest = hashlib.sha256(f"{pixels.shape[0]} {pixels.shape[1]} ".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()[:32]


def describe_images(rows: Sequence[Row], listed: int) -> Row:
    """Count what images are; heights and widths: the least, the middle and the greatest, pixels."""
    known = [row for row in rows if row["source"]]
    heights, widths = (sorted(row[side] for row in known) for side in ("height_px", "width_px"))
    return {
        "listed": listed,
        "opened": len(rows),
        "refused": sum(row["code"] != "" for row in rows),
        "inverted": sum(row["inverted"] for row in known),
        "formats": dict(Counter(row["source"] for row in known).most_common()),
        "bits": {
            str(bits): n for bits, n in sorted(Counter(x["bits_stored"] for x in known).items())
        },
        "heights": [heights[0], heights[len(known) // 2], heights[-1]] if known else [],
        "widths": [widths[0], widths[len(known) // 2], widths[-1]] if known else [],
    }


def find_faults(inspected: Inspection) -> tuple[list[Found], Row]:
    """Name everything that was found, and count repeated `pixels` and repeated `text`."""
    source, chosen = inspected.source, inspected.chosen
    found = name_rejects(source.raw, chosen)
    found += [Found(row["code"], row["image_id"]) for row in inspected.images if row["code"]]
    found += [Found("monochrome1", row["image_id"]) for row in inspected.images if row["inverted"]]
    found += find_leaks(source.raw.splits, source.boxes.subjects)
    found += [Found("trained_patient", who) for who in inspected.trained]
    found += [
        Found("no_sentence", study) for study, row in inspected.reports.items() if not row["kept"]
    ]
    pixels = _groups({row["image_id"]: row["pixels_key"] for row in inspected.images})
    texts = _groups({s: text_key(" ".join(text)) for s, text in chosen.texts.items()})
    for code, groups in (("same_pixels", pixels), ("same_text", texts)):
        found += [Found(code, item, group[0]) for group in groups for item in group[1:]]
    split_of = {item: inspected.split_of[who] for item, who in inspected.subject_of.items()}
    for group in pixels:
        for item in group[1:]:
            elsewhere = [other for other in group if split_of[other] != split_of[item]]
            found += [Found("pixels_across_splits", item, other) for other in elsewhere[:1]]
    repeats = {
        name: {
            "groups": len(groups),
            "extra": sum(len(group) - 1 for group in groups),
            "across_patients": _spread(groups, inspected.subject_of),
            "across_splits": _spread(groups, split_of),
        }
        for name, groups in (("pixels", pixels), ("text", texts))
    }
    return found, repeats


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


def name_rows(found: Iterable[Found], raw: RawStudies) -> list[Row]:
    """Add the row of a table to each thing that was found: rows of `FOUND`."""
    rows = []
    for item in found:
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


def _spread(groups: Iterable[Sequence[str]], owner_of: Mapping[str, str]) -> int:
    return sum(len({owner_of[item] for item in group}) > 1 for group in groups)


def _describe(
    inspected: Inspection, found: Sequence[Found], repeats: Row, kind: str, allowed: CheckConfig
) -> Row:
    chosen, raw, read = inspected.chosen, inspected.source.raw, inspected.reports
    facts = describe_images(inspected.images, len(chosen.images))
    of_images = {"monochrome1", "same_pixels", "pixels_across_splits"}
    of = dict.fromkeys(
        of_images | {row["code"] for row in inspected.images}, len(inspected.images)
    ) | {
        "same_text": len(chosen.texts),
        "no_sentence": len(read),
        "two_splits": len(raw.splits),
        "boxed_training": len(inspected.source.boxes.subjects),
        "trained_patient": len({*raw.splits, *(image.subject_id for image in raw.images)}),
    }
    refused = {row["image_id"] for row in inspected.images if row["code"]}
    # a report that was not drawn stays: nothing is known of it
    usable = {study for study in chosen.texts if study not in read or read[study]["kept"]}
    total = len(raw.images) if raw.has_images else len(raw.studies)
    splits = {split: {"images": 0, "reports": 0, "patients": 0} for split in SPLITS}
    for what, patients in (
        ("images", (image.subject_id for image in chosen.images)),
        ("reports", (chosen.subjects[study] for study in chosen.texts)),
        ("patients", inspected.split_of),
    ):
        for who in patients:
            splits[inspected.split_of[who]][what] += 1
    return {
        "source": {
            "kind": kind,
            "has_images": raw.has_images,
            "by_patient": raw.by_patient,
            "all_images": facts["opened"] == facts["listed"],
            "all_reports": len(read) == len(chosen.texts),
        },
        "steps": count_steps(raw, chosen, usable, refused),
        "lines": make_lines(found, of, total + len(raw.rejects)),
        "splits": splits,
        "images": facts,
        "duplicates": repeats,
        "text": {
            "listed": len(chosen.texts),
            "reports": len(read),
            "sentences": sum(row["kept"] for row in read.values()),
        },
        "labels": count_labels(raw.labels, chosen.subjects, read.values()),
        "verdict": judge(chosen, facts, found, allowed),
    }


def count_steps(
    raw: RawStudies, chosen: Selection, usable: Collection[str], refused: Collection[str]
) -> list[Row]:
    """Count what is left after each step; `images` is None where the source has none.

    `usable`: studies with a usable sentence; `refused`: images that do not open.
    """
    left: dict[str, ImageRecord | Study]
    dropped: dict[str, Collection[str]] = {"in the source": ()}  # step -> ids that it drops
    if raw.has_images:
        left = {image.image_id: image for image in raw.images}
        lost: dict[str, set[str]] = defaultdict(set)
        for item in chosen.rejects:
            lost[item.reason].add(item.id)
        dropped["frontal"] = set[str]().union(*(lost[reason] for reason in VIEW_REASONS))
        dropped["with a file"] = (
            lost["missing_image"] | lost["backslash_path"] | lost["pointer_file"]
        )
        if raw.has_reports:
            dropped["with text"] = left.keys() - {image.image_id for image in chosen.images}
            dropped["with usable sentences"] = {
                image.image_id for image in chosen.images if image.study_id not in usable
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


def make_lines(found: Iterable[Found], of: Mapping[str, int], total: int) -> list[Row]:
    """Count distinct ids per code, gravest kind first.

    `of`: code -> how many were looked at; `total`: how many for every other code.
    """
    counts = Counter(code for code, _ in {(item.code, item.id) for item in found})
    meanings = REJECT_REASONS | {code: text for code, (_, text) in CODES.items()}
    rows = [
        {"code": code, "kind": _kind_of(code), "count": count, "of": of.get(code, total)}
        | {"meaning": meanings[code]}
        for code, count in counts.items()
    ]
    order = [LEAK, UNUSABLE, DUPLICATE, NOTE]
    return sorted(rows, key=lambda row: (order.index(row["kind"]), -row["count"], row["code"]))


def judge(chosen: Selection, facts: Row, found: Iterable[Found], allowed: CheckConfig) -> Row:
    """Hold what was found against what is allowed; `facts`: from `describe_images`.

    Unusable are rows lost by the manifest, and opened images of the rest that are refused.
    """
    lost = chosen.lost / chosen.candidates if chosen.candidates else 1.0
    opened = facts["opened"]
    refused = facts["refused"] / opened if opened else 0.0
    repeats = sum(item.code == "same_pixels" for item in found)
    verdict = {
        "unusable_share": round(lost + (1 - lost) * refused, 6),
        "duplicate_share": round(repeats / opened, 6) if opened else 0.0,
        "leaks": len({item for item in found if _kind_of(item.code) == LEAK}),
    }
    limits = {f"max_{name}": getattr(allowed, f"max_{name}") for name in verdict}
    clean = all(value <= limits[f"max_{name}"] for name, value in verdict.items())
    return verdict | limits | {"clean": clean}


def _kind_of(code: str) -> str:
    if code in CODES:
        return CODES[code][0]
    return NOTE if code in VIEW_REASONS else UNUSABLE
