"""A table of patients -> sex and age band of every image."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.data.table_columns import clean_id, read_rows, would_join
from medclip_dcl.data.table_files import read_any

# Trait -> names of its column: the first that the table has.
_TRAITS = {"sex": ("sex", "gender"), "age": ("age", "anchor_age")}
_KEYS = ("image_id", "study_id", "subject_id")
# First year of each age band but the youngest: adults in twenties, as MIMIC-CXR spreads.
_AGE_BANDS = (18, 40, 60, 80)
_SEX = re.compile(r"\s*([fm])", re.IGNORECASE)
_AGE = re.compile(r"\s*(\d{1,3})(?:\.\d*)?\s*([DWMY]?)\s*", re.IGNORECASE)
_A_YEAR = {"": 1, "Y": 1, "M": 12, "W": 52, "D": 365}
_NAMES = {"F": "female", "M": "male"}


def read_demographics(path: Path, images: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Look up `sex` and `age` of every image, where the table has their column.

    A value is empty where the table does not say. Of several rows about one thing the first counts.

    Raises:
        ConfigError: there is neither a column of sex nor one of age.
        StudyError: the table cannot be read, or says of nothing what it describes.
    """
    names = read_any(path).column_names
    named = {
        trait: column
        for trait, columns in _TRAITS.items()
        if (column := next((name for name in columns if name in names), None)) is not None
    }
    if not named:
        raise ConfigError(
            "the table of evaluate.demographics has neither a column sex or gender nor one age or "
            "anchor_age; rename the one that it has"
        )
    key = next((name for name in _KEYS if name in names), _KEYS[-1])
    rows = read_rows(path, [key, *named.values()])
    row_of: dict[str, int] = {}
    for number, value in enumerate(rows[key]):
        row_of.setdefault(clean_id(value), number)
    wanted = {image[key] for image in images}
    if wanted and wanted.isdisjoint(row_of) and (alike := would_join(wanted, row_of)):
        raise StudyError(
            f"the table of evaluate.demographics names none of the images by {key}{alike}; write "
            "ids in both tables alike"
        )
    of_trait = {}
    for trait, column in named.items():
        reported = [
            rows[column][row_of[image[key]]] if image[key] in row_of else "" for image in images
        ]
        of_trait[trait] = [sex_of(text) if trait == "sex" else age_band(text) for text in reported]
    return of_trait


def sex_of(text: str) -> str:
    """Read `F`, `M` or words that begin so: `female`, `male`, or nothing."""
    match = _SEX.match(text)
    return _NAMES[match[1].upper()] if match else ""


def age_band(text: str) -> str:
    """Name the band of years, or of DICOM's age string: digits, and D, W, M or Y.

    Returns:
        `under 18`, `18 to 39`, `40 to 59`, `60 to 79` or `80 and over`; nothing without an age.

    Source: DICOM PS3.5, 6.2, value representation AS.
    """
    match = _AGE.fullmatch(text)
    if match is None:
        return ""
    years = int(match[1]) // _A_YEAR[match[2].upper()]
    above = next((start for start in _AGE_BANDS if start > years), None)
    if above is None:
        return f"{_AGE_BANDS[-1]} and over"
    below = max((start for start in _AGE_BANDS if start <= years), default=None)
    return f"under {above}" if below is None else f"{below} to {above - 1}"
