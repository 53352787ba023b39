"""Settings of answers as DICOM objects."""

from typing import Annotated, Literal

from medclip_dcl.schemas import ClassifyAnswer
from medclip_dcl.settings import NO_EFFECT, Section

Kind = Literal["sr", "pr", "sc"]
OutOfRange = Literal["refuse", "answer"]


class ResultsConfig(Section):
    """Answers as DICOM objects."""

    objects: tuple[Kind, ...] = ("sr", "pr", "sc")
    """Which are made: `sr`, structured report; `pr`, presentation state of an image with a box;
    `sc`, secondary capture."""
    report_class: Literal["3d", "comprehensive"] = "3d"
    """Class of the report: `3d`, Comprehensive 3D SR, as IHE AIR asks; `comprehensive` for an
    archive that does not know that."""
    out_of_range: OutOfRange = "refuse"
    """Objects of an image unlike those that the model was trained on: `refuse`, a report and a
    capture that say that it was not analysed; `answer`, the findings with a warning."""
    heads: bool = False
    """Whether report and capture also hold what the model's heads say."""

    def refuses(self, answer: ClassifyAnswer) -> bool:
        """Whether the findings of an answer are withheld: its image is out of range."""
        return self.out_of_range == "refuse" and answer.image.is_out_of_range


class AnswerConfig(ResultsConfig):
    """Answers on every image of the manifest (`answer_images`).

    SSL_CERT_FILE or SSL_CERT_DIR names the authorities that sign the certificates of service and
    archive; else certifi's hold.
    """

    service: str = ""
    """URL of a service to ask; empty: the model of `train`, in this process."""
    service_key: Annotated[str, NO_EFFECT] = ""
    """File with the service's API key; empty: none."""
    objects: tuple[Kind, ...] = ()
    """DICOM objects that are made of an answer: `sr`, `pr`, `sc`, as `medclip_hospital` describes
    them; of images that are DICOM alone."""
    archive: Annotated[str, NO_EFFECT] = ""
    """URL of the DICOMweb of an archive that the objects are stored in; empty: none."""
    archive_key: Annotated[str, NO_EFFECT] = ""
    """File whose line is sent to the archive as `Authorization`; empty: none."""
