"""What a generated source knows exactly: which findings each image shows, and how they read."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.files import path_under

IMAGES, FINE = "truth/images.csv", "truth/fine.csv"
"""Tables of a generated tree, relative to its root."""

CLASS_PROBABILITIES = "truth/eta.csv"
"""Table of what every sentence's eta should be, relative to the tree's root."""


@dataclass(frozen=True)
class Truth:
    """The truth of a generated source."""

    findings_of: dict[str, frozenset[str]]  # image -> fine findings that it shows
    types_of: dict[str, frozenset[str]]  # image -> their types
    types: frozenset[str]  # every type there is
    gallery: dict[str, str]  # fine finding -> its plainest sentence, in the order of the table


def truth_files(root: Path) -> list[Path]:
    """Find both tables of the truth; none where the source is not a generated one."""
    try:
        return [path_under(root, name) for name in (IMAGES, FINE)]
    except StudyError:
        return []


def read_truth(root: Path) -> Truth | None:
    """Read the truth of a source; None where it is not a generated one.

    Raises:
        StudyError: a table lacks a column or holds something else than the generator wrote.
    """
    files = truth_files(root)
    if not files:
        return None
    try:
        images, fine = (_rows(path) for path in files)
        type_of = {row["finding"]: row["type"] for row in fine}
        findings_of = {row["dicom_id"]: frozenset(json.loads(row["findings"])) for row in images}
        types_of = {
            image: frozenset(type_of[name] for name in names)
            for image, names in findings_of.items()
        }
        gallery = {row["finding"]: json.loads(row["sentences"])[0] for row in fine}
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise StudyError("a truth table is damaged; rerun generate_studies") from error
    return Truth(findings_of, types_of, frozenset(type_of.values()), gallery)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
