"""Preflight: what a source holds and what is wrong with it, before anything is prepared.

`preflight.json` holds counts alone, no ids and no texts:

    source      kind of the source, whether it has images and patients
    steps       per step: images, studies and patients that are left, and what the step asks
    lines       per code: what was found (`count`, of how many, `kind`, `meaning`)
    splits      per split, as the manifest assigns it: images, reports, patients
    images      images listed and opened: formats, bits, sizes, how many are MONOCHROME1
    text        reports listed and read, the sentences that are left of them, the reports of each
                language, and their characters: all, and those left out by reason
    labels      where label frequencies come from, and studies per finding and answer
    verdict     shares and leaks with what is allowed, and whether all is `clean`

Codes of lines are those of `selection.REJECT_REASONS`, and `CODES`. Of their kinds,
`unusable` and `duplicate` count towards a share, `leak` by number, `note` towards nothing.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from medclip_dcl.core.artifact import Artifact, ArtifactType, read_object
from medclip_dcl.core.settings import Section
from medclip_dcl.core.tables import Column, TableFormat
from medclip_dcl.text.language import language_warning

ARTIFACT = ArtifactType("preflight", 6, "check_data")

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
        Column("ignored", pa.string(), "attributes that cannot be used, and are as good as absent"),
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
FIGURES = "preflight.json"


def read_preflight(artifact: Artifact) -> dict[str, Any]:
    """Read `preflight.json`; `ArtifactCorrupt` where it is not a JSON object."""
    return read_object(artifact, FIGURES, ARTIFACT)


_MOST_DROPPED = 0.05
"""Share of the reports' characters that may go for a reason that no report should have."""
_EXPECTED = frozenset(
    (*("history", "indication", "technique", "comparison", "examination", "recommendation"),
     *("recommendations", "signature", "preamble", "punctuation", "enumerator"),
     *("findings", "impression", "withdrawn", "other part of the body"))
)  # fmt: skip
"""Reasons that no one need look at: sections not of the image, or not asked for; corrections."""


def reading_warnings(tree: Mapping[str, Any]) -> list[str]:
    """Warn of reports that are hardly read: of another language, or with much text left out."""
    text = tree["text"]
    doubtful = {name: count for name, count in text["dropped"].items() if name not in _EXPECTED}
    share = sum(doubtful.values()) / max(1, text["characters"])
    warnings = [language_warning(text["languages"])]
    if share > _MOST_DROPPED:
        reasons = ", ".join(f"{name} {count}" for name, count in doubtful.items())
        warnings.append(
            f"{share:.1%} of the reports' text is left out though it stands under no heading of "
            f"history or technique (characters: {reasons}); see preflight.html, and name findings "
            "and impression by their usual headings, or by columns of their own"
        )
    elif doubtful.get("other heading"):
        warnings.append(
            "text under headings that are not usual is left out "
            f"({doubtful['other heading']} characters); see preflight.html for their names"
        )
    return [warning for warning in warnings if warning]


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
        f"\n\nunusable {verdict['unusable_share']:.4f} (at most {verdict['max_share']}), "
        f"duplicates {verdict['duplicate_share']:.4f} (at most {verdict['max_share']}), "
        f"leaks {verdict['leaks']}: " + ("clean" if verdict["clean"] else "FAULTS")
    )


class CardConfig(Section):
    """Words of the model card and the data card (`write_cards`)."""

    intended_use: str = ""
    """Who may use the model for what. Without it, limits and licence, nothing is published."""
    limits: tuple[str, ...] = ()
    """What the model cannot do and was not tried on, one sentence each; those that hold of every
    model are added."""
    licence: str = ""
    """Terms of the model: an SPDX identifier such as `mit`, or words. Derived from reports and
    images, it stays bound by theirs."""
    data: str = ""
    """Where images and reports come from, and under which terms."""

    def missing(self) -> list[str]:
        """Name the empty settings without which a model is not published."""
        named = {
            "intended_use": self.intended_use,
            "limits": "".join(self.limits),
            "licence": self.licence,
        }
        return [f"card.{name}" for name, text in named.items() if not text.strip()]


class ReportConfig(Section):
    """The HTML report (`write_report`)."""

    private: bool = False
    """Leave out every text and picture."""
