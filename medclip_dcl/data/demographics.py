"""A table of patients -> sex and age band of every image."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from medclip_dcl.data.sources.records import read_any, read_rows
from medclip_dcl.errors import ConfigError
from medclip_dcl.section import Section


class DemographicsConfig(Section):
    """Groups of images (`evaluate`): by view, and by sex and age where a table states them."""

    table: str = ""
    """CSV, Parquet or JSON lines with sex or age, such as MIMIC-IV's `patients.csv.gz`. A row is
    about an image, a study or a patient, by its column `image_id`, `study_id` or `subject_id`,
    the first that there is. Empty: groups by view alone."""
    sex: str = ""
    """Column with the sex, `F`, `M` or words that begin so (MIMIC-IV: `gender`); empty: none."""
    age: str = ""
    """Column with the age in years, or as DICOM writes it, `045Y` (MIMIC-IV: `anchor_age`);
    empty: none."""


_KEYS = ("image_id", "study_id", "subject_id")
AGE_BANDS = (18, 40, 60, 80)
"""First year of each age band but the youngest: adults in twenties, as MIMIC-CXR spreads."""

_SEX = re.compile(r"\s*([fm])", re.IGNORECASE)
_AGE = re.compile(r"\s*(\d{1,3})(?:\.\d*)?\s*([DWMY]?)\s*", re.IGNORECASE)
_NAMES = {"F": "female", "M": "male"}


def read_demographics(
    path: Path, settings: DemographicsConfig, images: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """Look up every image in a table.

    Returns:
        `sex` and `age`, where the settings name their column: one value per image, empty
        where the table does not say. Of several rows about one thing the first counts.

    Raises:
        ConfigError: neither sex nor age has a column.
        StudyError: the table cannot be read or lacks a column.
    """
    columns = {"sex": settings.sex, "age": settings.age}
    named = {trait: column for trait, column in columns.items() if column}
    if not named:
        raise ConfigError(
            "evaluate.demographics.table is set, and neither evaluate.demographics.sex "
            "nor .age names a column"
        )
    names = read_any(path).column_names
    key = next((name for name in _KEYS if name in names), _KEYS[-1])
    rows = read_rows(path, [key, *named.values()])
    row_of: dict[str, int] = {}
    for number, value in enumerate(rows[key]):
        row_of.setdefault(value.strip(), number)
    found = {}
    for trait, column in named.items():
        reported = [
            rows[column][row_of[image[key]]] if image[key] in row_of else "" for image in images
        ]
        found[trait] = [
            sex_of(text) if trait == "sex" else age_band(text, AGE_BANDS) for text in reported
        ]
    return found


def sex_of(text: str) -> str:
    """Read a sex.

    Args:
        text: `F`, `M`, or words that begin so.

    Returns:
        `female`, `male`, or nothing.
    """
    match = _SEX.match(text)
    return _NAMES[match[1].upper()] if match else ""


def age_band(text: str, bands: Sequence[int]) -> str:
    """Read an age and name its band.

    Args:
        text: years, or DICOM's age string: digits, and D, W, M or Y.
        bands: first year of each band but the youngest.

    Returns:
        Such as `under 18`, `18 to 39` or `80 and over`; nothing where there is no age.

    Source: DICOM PS3.5, 6.2, value representation AS.
    """
    match = _AGE.fullmatch(text)
    if match is None:
        return ""
    years = int(match[1]) if match[2].upper() in {"", "Y"} else 0
    starts = sorted(bands)
    below = [start for start in starts if start <= years]
    above = [start for start in starts if start > years]
    if not below:
        return f"under {above[0]}" if above else "any"
    return f"{below[-1]} to {above[0] - 1}" if above else f"{below[-1]} and over"
