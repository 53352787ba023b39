"""Settings of the groups of patients that an evaluation tells apart."""

from typing import Annotated, Literal

from pydantic import Field

from medclip_dcl.config.section import Section


class PeopleConfig(Section):
    """Groups of films (`evaluate`): by view, and by sex and age where a table states them."""

    table: str = ""
    """CSV, Parquet or JSON lines with sex or age, such as MIMIC-IV's `patients.csv.gz`; empty:
    groups by view alone."""
    of: Literal["subject_id", "study_id", "image_id"] = "subject_id"
    """What a row of the table is about."""
    key: str = "subject_id"
    """Column that names it, as the manifest does."""
    sex: str = ""
    """Column with the sex, `F`, `M` or words that begin so (MIMIC-IV: `gender`); empty: none."""
    age: str = ""
    """Column with the age in years, or as DICOM writes it, `045Y` (MIMIC-IV: `anchor_age`);
    empty: none."""
    age_bands: tuple[Annotated[int, Field(gt=0)], ...] = (18, 40, 60, 80)
    """First year of each age band but the youngest."""
    least_patients: Annotated[int, Field(ge=1)] = 10
    """Patients below which a group's figures are withheld."""
