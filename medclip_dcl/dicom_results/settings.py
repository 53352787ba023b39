"""Settings of answers as DICOM objects."""

from typing import Literal

from medclip_dcl.section import Section

Kind = Literal["sr", "pr", "sc"]


class ResultsConfig(Section):
    """Answers as DICOM objects."""

    objects: tuple[Kind, ...] = ("sr", "pr", "sc")
    """Which are made: `sr`, structured report; `pr`, presentation state of an image with a box;
    `sc`, secondary capture."""
    report_class: Literal["3d", "comprehensive"] = "3d"
    """Class of the report: `3d`, Comprehensive 3D SR, as IHE AIR asks; `comprehensive` for an
    archive that does not know that."""
