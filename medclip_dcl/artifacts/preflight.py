"""Preflight: what a source holds and what is wrong with it, before anything is prepared.

`preflight.json` holds

    source      kind of the source, whether it has films, whether all were opened
    steps       per step: films, studies and patients that are left, and what the step asks
    lines       per code: what was found (`count`, of how many, `kind`, `meaning`)
    splits      per split, as the manifest assigns it: films, reports, patients
    encodings   report files by their encoding
    films       films looked at and opened: formats, bits, sizes, how many are MONOCHROME1
    duplicates  same pixels, same text: groups, films or reports beyond the first of each
    text        sentences, how many hold a de-identification mask, what rules dropped
    labels      where label frequencies come from, and studies per finding and answer
    verdict     shares and leaks beside what is allowed, and whether all is `clean`

Kinds of lines: `unusable` and `duplicate` count towards a share, `leak` by number, `note`
towards nothing.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from medclip_dcl.artifacts.figures import read_object
from medclip_dcl.artifacts.frame import Artifact, Kind
from medclip_dcl.artifacts.tables import Column, TableFormat

KIND = Kind("preflight", 1, "check_data")

FIGURES = "preflight.json"

FILMS = TableFormat(
    "films.parquet",
    (
        Column("image_id", pa.string(), "id of the film"),
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
"""One row per film that the manifest would keep, in order of image_id."""

FOUND = TableFormat(
    "found.parquet",
    (
        Column("code", pa.string(), "what was found, a code of `preflight.json`"),
        Column("id", pa.string(), "id of the film, study or patient"),
        Column("other", pa.string(), "the film or study that it repeats; else empty"),
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
    return read_object(artifact, FIGURES, KIND)


def preflight_table(tree: Mapping[str, Any]) -> str:
    """Lay out what was found as text.

    Args:
        tree: content of `preflight.json`.

    Returns:
        One line per step and per code, and the verdict; counts alone, no ids.
    """
    lines = [f"{'step':26}{'films':>9}{'studies':>9}{'patients':>9}"]
    for step in tree["steps"]:
        films = "-" if step["films"] is None else step["films"]
        lines.append(f"{step['name']:26}{films:>9}{step['studies']:>9}{step['patients']:>9}")
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
