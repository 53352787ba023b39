"""Inspection of a source's files: images opened through the gate, reports split and read."""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from medclip_dcl.core.artifact_writer import map_resumable
from medclip_dcl.core.distributed import available_cores
from medclip_dcl.core.errors import ImageError
from medclip_dcl.core.files import path_under
from medclip_dcl.core.progress import Progress
from medclip_dcl.data import manifest
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.records import ImageRecord, Text
from medclip_dcl.text.boundaries import find_sentences
from medclip_dcl.text.labeler.labels import (
    ReportLabels,
    read_sentence,
    report_labels_of,
)
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.language import prevailing
from medclip_dcl.text.mimic_sections import Part
from medclip_dcl.text.sections import ELSEWHERE, USUAL_NAMES
from medclip_dcl.text.sentences import (
    LONGEST_SECTION,
    SentencesConfig,
    broken_rule,
    used_sections,
)

from .report.preflight import ANSWERS, IMAGES

UNIT = 256  # images or reports in one unit of work: what a kill can lose, some seconds
_ANSWER_OF = {1: "present", 0: "absent", -1: "uncertain"}  # in a label table

Row = dict[str, Any]


def _draw(ids: Sequence[str], wanted: int, seed: int) -> list[str]:
    """Draw some of the ids without replacement, in their order; 0: all."""
    if not wanted or wanted >= len(ids):
        return list(ids)
    indices = np.random.default_rng(seed).choice(len(ids), wanted, replace=False)
    return [ids[index] for index in sorted(indices.tolist())]


class Piece(NamedTuple):
    """A stretch of a report and what is done with it."""

    text: str
    reason: str
    """Why it is left out; empty where it is a sentence that is kept, or a heading."""
    section: str
    labels: ReportLabels | None = None
    """What a kept sentence says."""


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
    kept = [" ".join(piece.text.split()) for piece in pieces if piece.labels is not None]
    readings = [_read(sentence) for sentence in kept]
    claims = report_labels_of(readings)
    said = dict.fromkeys(claims.negated, "absent")
    said |= dict.fromkeys(claims.uncertain, "uncertain") | dict.fromkeys(claims.asserted, "present")
    if claims.normal:
        said["No Finding"] = "present"
    dropped: Counter[str] = Counter()
    for piece in pieces:
        dropped[piece.reason] += len("".join(piece.text.split()))
    return {
        "kept": len(kept),
        "said": said,
        "language": prevailing(chain(*(reading.languages for reading in readings))),
        "characters": dropped.total(),
        "dropped": {reason: count for reason, count in dropped.items() if reason and count},
    }


def read_reports(
    folder: Path,
    texts: Mapping[str, Text],
    parts_of: Callable[[str], Sequence[Part]],
    settings: SentencesConfig,
    wanted: int,
    seed: int,
) -> dict[str, Row]:
    """Read as many reports as are wanted (0: all), drawn with the seed; resumable in `folder`.

    `parts_of` cuts the report of a study into its parts.
    """
    studies = _draw(sorted(texts), wanted, seed)

    def read(part: Sequence[str]) -> list[Row]:
        return [
            describe_report(parts_of(study), used_sections(texts[study]._asdict(), settings))
            for study in part
        ]

    with Progress("reports read", len(studies), "report") as progress:
        rows = map_resumable(folder, "reports", studies, UNIT, read, progress.advance)
    return dict(zip(studies, rows, strict=True))


def show_reports(
    studies: Sequence[str],
    texts: Mapping[str, Text],
    parts_of: Callable[[str], Sequence[Part]],
    settings: SentencesConfig,
    wanted: int,
    seed: int,
) -> list[list[Row]]:
    """Show some of the studies' reports, drawn with the seed, as pieces of the check's page."""
    shown = []
    for study in _draw(sorted(studies), wanted, seed):
        pieces = mark_report(parts_of(study), used_sections(texts[study]._asdict(), settings))
        shown.append([piece._asdict() | {"says": _in_words(piece.labels)} for piece in pieces])
    return shown


def _in_words(labels: ReportLabels | None) -> list[Row]:
    """List what a sentence says: finding with its sides, and polarity."""
    if labels is None:
        return []
    marks = [
        {"name": " ".join([*sorted(sides), name]), "polarity": "present"}
        for name, sides in sorted(labels.asserted.items())
    ]
    marks += [{"name": name, "polarity": "absent"} for name in sorted(labels.negated)]
    marks += [{"name": name, "polarity": "uncertain"} for name in sorted(labels.uncertain)]
    return marks + ([{"name": "normal", "polarity": "normal"}] if labels.normal else [])


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
    workers: int,
) -> list[Row]:
    """Open as many images as are wanted (0: all), drawn with the seed; resumable in `folder`."""
    image_of = {image.image_id: image for image in listed}
    chosen = [image_of[name] for name in _draw(sorted(image_of), wanted, seed)]
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
        "ignored": dict(Counter(name for row in known for name in row["ignored"].split())),
        "bits": {
            str(bits): n for bits, n in sorted(Counter(x["bits_stored"] for x in known).items())
        },
        "heights": [heights[0], heights[len(known) // 2], heights[-1]] if known else [],
        "widths": [widths[0], widths[len(known) // 2], widths[-1]] if known else [],
    }
