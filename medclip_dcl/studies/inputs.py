"""What sources must hold: files, columns, tags and elements, each with unit and meaning.

Readers take their names from here, and the contract's page is made of it.
"""

from dataclasses import dataclass

from medclip_dcl.artifacts.manifest import LABELS
from medclip_dcl.config.studies import BoxColumnsConfig


@dataclass(frozen=True)
class Field:
    """One column, key, element or tag: its name, the form of its value, what it means."""

    name: str
    form: str
    meaning: str


@dataclass(frozen=True)
class Input:
    """One file, or one kind of file, of a source.

    Attributes:
        source: `source.kind`, or the setting that names the file.
        file: where it lies, relative to `source.root`; `[.gz]` where gzip is read too.
        needed: whether it must be there.
        fields: what is read of it; anything else in it is ignored.
        optional: what is read where it is there.
    """

    source: str
    file: str
    needed: str
    fields: tuple[Field, ...]
    optional: tuple[Field, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the fields that must be there, in order."""
        return [field.name for field in self.fields]


_FILM_ID = Field("dicom_id", "id", "id of the film; the name of its file without ending")
_SUBJECT = Field("subject_id", "id", "id of the patient")
_STUDY = Field("study_id", "id", "id of the study")

METADATA = Input(
    "mimic_cxr",
    "*-metadata.csv[.gz]",
    "yes, or the record list",
    (
        _FILM_ID,
        _SUBJECT,
        _STUDY,
        Field("ViewPosition", "code", "view; may be blank. The code-meaning columns are not used"),
    ),
)
RECORDS = Input(
    "mimic_cxr",
    "cxr-record-list.csv[.gz]",
    "where there is no metadata table; views then come from the films' headers",
    (_FILM_ID, _SUBJECT, _STUDY),
)
SPLIT = Input(
    "mimic_cxr",
    "*-split.csv[.gz]",
    "no; patients are split by hash without",
    (_SUBJECT, Field("split", "word", "train, validate or test; test beats validate beats train")),
)
CHEXPERT = Input(
    "mimic_cxr",
    "*-chexpert.csv[.gz]",
    "no",
    (
        _STUDY,
        *(Field(name, "number", "1 present, 0 absent, -1 uncertain, blank") for name in LABELS),
    ),
)
MIMIC_FILES = Input(
    "mimic_cxr",
    "files/pNN/pSUBJECT/sSTUDY",
    "yes",
    (
        Field("sSTUDY.txt", "UTF-8 text, at most a million bytes", "report, lines as in the file"),
        Field("sSTUDY/DICOM_ID.dcm", "DICOM, or .jpg, .jpeg, .png", "film, 8 or 16 bits, grey"),
    ),
)
_BOX = BoxColumnsConfig()
BOX_TABLE = Input(
    "source.boxes",
    "MS-CXR's CSV[.gz]",
    "no",
    (
        Field(_BOX.image_id, _FILM_ID.form, _FILM_ID.meaning),
        Field(_BOX.category, "text", "finding"),
        Field(_BOX.phrase, "text", "sentence that the box belongs to"),
        Field(_BOX.x, "pixels", "left edge in the original film"),
        Field(_BOX.y, "pixels", "top edge"),
        Field(_BOX.width, "pixels", "width"),
        Field(_BOX.height, "pixels", "height"),
        Field(_BOX.image_width, "pixels", "width of the original film"),
        Field(_BOX.image_height, "pixels", "height of the original film"),
    ),
    (Field("path", "text", "names the patient, also where the film is not at hand"),),
)
BOX_JSON = Input(
    "source.boxes",
    "MS-CXR's JSON[.gz]",
    "no",
    (
        Field("images[].id", "number", "key of a film in this file"),
        Field("images[].file_name", "text", "name of the film's file: its id, and an ending"),
        Field("images[].path", "text", "names the patient, also where the film is not at hand"),
        Field("images[].width, .height", "pixels", "size of the original film"),
        Field("categories[].id, .name", "number, text", "finding"),
        Field("annotations[].image_id, .category_id", "numbers", "film and finding of a box"),
        Field("annotations[].bbox", "pixels", "[x, y, width, height], from the top left"),
        Field("annotations[].label_text", "text or list of texts", "its sentences"),
    ),
)
OPEN_I_XML = Input(
    "open_i",
    "NLMCXR_reports/ecgen-radiology/*.xml",
    "yes, or the table of reports",
    (
        Field("eCitation//uId@id", "CXR1", "study, and patient: one report is one patient's"),
        Field("eCitation//AbstractText[@Label]", "text", "FINDINGS and IMPRESSION"),
        Field("eCitation//parentImage@id", "CXR1_1_IM-0001-3001", "film"),
    ),
)
OPEN_I_REPORTS = Input(
    "open_i",
    "indiana_reports.csv",
    "where there are no XML files",
    (
        Field("uid", "number", "study, and patient"),
        Field("findings", "text", "findings section"),
        Field("impression", "text", "impression"),
    ),
)
OPEN_I_PROJECTIONS = Input(
    "open_i",
    "indiana_projections.csv",
    "for the views; all are blank without",
    (
        Field("filename", "1_IM-0001-4001.dcm.png", "film; matched by its numbers in both forms"),
        Field("projection", "word", "Frontal or Lateral"),
    ),
)
OPEN_I_FILES = Input(
    "open_i",
    "NLMCXR_png or images/images_normalized",
    "no; reports alone without",
    (Field("*.png", "PNG", "film"),),
)
DICOM_FILES = Input(
    "dicom",
    "any file below the root that starts as DICOM does",
    "yes",
    (
        Field("SOPInstanceUID", "UID", "id of the film"),
        Field("StudyInstanceUID", "UID", "id of the study"),
        Field("PatientID", "text", "patient; kept as a keyed hash alone"),
        Field("ViewPosition", "code", "view; may be blank"),
        Field("Modality", "code", "one of `source.modalities`"),
        Field("SOPClassUID", "UID", "tells a DICOMDIR, which is passed over"),
    ),
)

INPUTS = (
    METADATA,
    RECORDS,
    SPLIT,
    CHEXPERT,
    MIMIC_FILES,
    BOX_TABLE,
    BOX_JSON,
    OPEN_I_XML,
    OPEN_I_REPORTS,
    OPEN_I_PROJECTIONS,
    OPEN_I_FILES,
    DICOM_FILES,
)
"""Every input but the mapped table, whose columns the settings name."""
