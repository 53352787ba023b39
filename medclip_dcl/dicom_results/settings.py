"""Settings of answers as DICOM objects."""

from typing import Annotated, Literal

from medclip_dcl.section import NO_EFFECT, Section

Kind = Literal["sr", "pr", "sc"]


class ResultsConfig(Section):
    """Answers as DICOM objects."""

    objects: tuple[Kind, ...] = ("sr", "pr", "sc")
    """Which are made: `sr`, structured report; `pr`, presentation state of an image with a box;
    `sc`, secondary capture."""
    report_class: Literal["3d", "comprehensive"] = "3d"
    """Class of the report: `3d`, Comprehensive 3D SR, as IHE AIR asks; `comprehensive` for an
    archive that does not know that."""


class AnswerConfig(Section):
    """Answers on every image of the manifest (`answer_images`)."""

    service: str = ""
    """URL of a service to ask; empty: the model of `train`, in this process."""
    service_key: Annotated[str, NO_EFFECT] = ""
    """File with the service's API key; empty: none."""
    objects: tuple[Kind, ...] = ()
    """DICOM objects that are made of an answer: `sr`, `pr`, `sc`, as `dicom_results` describes
    them; of images that are DICOM alone."""
    report_class: Literal["3d", "comprehensive"] = "3d"
    """Class of the structured report: `3d`, Comprehensive 3D SR, as IHE AIR asks; `comprehensive`
    for an archive that does not know that."""
    archive: Annotated[str, NO_EFFECT] = ""
    """URL of the DICOMweb of an archive that the objects are stored in; empty: none."""
    archive_key: Annotated[str, NO_EFFECT] = ""
    """File whose line is sent to the archive as `Authorization`; empty: none."""
