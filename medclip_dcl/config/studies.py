"""Settings of the generator, of sources of studies and of prepared images."""

from typing import Annotated, Literal

from pydantic import Field

from medclip_dcl.config.section import Section


class GenerateConfig(Section):
    """Generated studies with known truth (`generate_studies`)."""

    root: str = "${WORK}/studies"
    """Folder that receives the MIMIC-CXR-shaped tree."""
    patients: Annotated[int, Field(gt=0, le=1_000_000)] = 1500
    """Number of patients whose findings are drawn as they fall; each has one or more studies."""
    coverage_films: Annotated[int, Field(ge=0, le=1000)] = 6
    """Extra test patients per fine finding, each with one study that shows it and nothing else."""
    size_px: Annotated[int, Field(ge=64)] = 256
    """Longer side of a film, pixels."""
    validate_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the patients put into `validate`."""
    test_share: Annotated[float, Field(ge=0, lt=0.9)] = 0.12
    """Share of the patients put into `test`; the coverage patients come on top."""
    second_film_share: Annotated[float, Field(ge=0, le=1)] = 0.12
    """Share of studies with a second film, lateral or frontal."""
    compressed_share: Annotated[float, Field(ge=0, le=1)] = 0.04
    """Share of films stored as RLE, JPEG 2000, JPEG-LS or lossless JPEG."""
    faults: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Faults of each kind that are planted and listed in `truth/faults.csv`; 0: a sound tree."""
    unit_patients: Annotated[int, Field(gt=0)] = 50
    """Patients in one unit of work: what a kill can lose."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Drawing processes; 0: one per core."""


class ColumnsConfig(Section):
    """Names of the columns of a mapped table; empty where the table has none."""

    image_id: str = ""
    """Id of the film; made from the study id and row number where empty."""
    study_id: str = ""
    """Id of the study; the image id where empty."""
    subject_id: str = ""
    """Id of the patient; required, since splits are made by patient."""
    path: str = ""
    """Image path relative to `source.root`, or columns that make it up, such as
    `{ImageDir}/{ImageID}`; empty for a table of reports alone."""
    findings: str = ""
    """Text of the findings section."""
    impression: str = ""
    """Text of the impression section."""
    report: str = ""
    """Text of the whole report, used where findings and impression are empty."""
    view: str = ""
    """View position; rows with a value outside `source.frontal_views` are rejected. A table
    without this column holds frontal films alone."""
    split: str = ""
    """train, validate or test; assigned by hash of the patient where empty."""
    width: str = ""
    """Width of the film's file, pixels; read for boxes whose table does not state it."""
    height: str = ""
    """Height of the film's file, pixels; likewise."""


Column = Annotated[str, Field(min_length=1)]


class BoxColumnsConfig(Section):
    """Names of the columns of a box table in CSV; MS-CXR's as they stand."""

    image_id: Column = "dicom_id"
    """Id of the film, or the path of its file as `source.columns.path` gives it."""
    category: Column = "category_name"
    """Finding."""
    phrase: Column = "label_text"
    """Sentence that the box belongs to; it may be the column of the finding."""
    x: Column = "x"
    """Left edge in the original film, pixels."""
    y: Column = "y"
    """Top edge, pixels."""
    width: Column = "w"
    """Width, pixels."""
    height: Column = "h"
    """Height, pixels."""
    image_width: str = "image_width"
    """Width of the film that the box was drawn on, pixels; empty: `source.columns.width`."""
    image_height: str = "image_height"
    """Height of that film, pixels; empty: `source.columns.height`."""


class SourceConfig(Section):
    """Where raw studies come from (`build_manifest`)."""

    kind: Literal["mimic_cxr", "open_i", "table", "dicom"] = "mimic_cxr"
    """`mimic_cxr`: MIMIC-CXR or MIMIC-CXR-JPG with its tables; `open_i`: Open-i's XML and PNG,
    or its CSV form; `table`: any CSV, Parquet or JSONL table; `dicom`: a folder of DICOM files
    without tables or reports."""
    root: str = "${WORK}/studies"
    """Folder under which every image path of the source lies."""
    tables: str = ""
    """Folder of the release's tables (kind `mimic_cxr`), plain or `.gz`; empty: `root`. The DICOM
    release has no views in its own: name the folder of MIMIC-CXR-JPG's."""
    reports: str = ""
    """Folder whose `files/` holds the report texts (kind `mimic_cxr`); empty: `root`."""
    image_suffix: Literal["", ".dcm", ".jpg", ".jpeg", ".png"] = ""
    """Ending of the films' names (kinds `mimic_cxr`, `open_i`); empty: as the first film that is
    found."""
    table: str = ""
    """The mapped table, relative to `root` (kind `table`): .csv, .parquet or .jsonl; or .gz."""
    columns: ColumnsConfig = ColumnsConfig()
    """Column names of the mapped table (kind `table`)."""
    frontal_views: tuple[str, ...] = ("AP", "PA", "FRONTAL")
    """Views that count as frontal, in any case; every other is `lateral`."""
    keep_blank_views: bool = False
    """Whether a film whose view is blank counts as frontal. Left out and counted as `no_view`
    otherwise: no other field of these sources says reliably what such a film shows."""
    modalities: tuple[str, ...] = ("CR", "DX")
    """Modalities of the films wanted (kind `dicom`); other files are counted as `modality`."""
    patient_key: str = ""
    """File with a secret (kind `dicom`) that keys the hash by which a PatientID is replaced. Empty:
    no key, and who knows how ids are formed can find them by trying."""
    fallback_encoding: Literal["", "latin-1", "cp1252"] = ""
    """Encoding of report files and of CSV tables (kind `table`) that are no UTF-8; empty: such a
    report is rejected as `not_utf8`, such a table refused."""
    boxes: str = ""
    """MS-CXR's box table, CSV or JSON, or another CSV with `box_columns`, relative to `root`; its
    patients are put in `test`. Empty: none."""
    box_columns: BoxColumnsConfig = BoxColumnsConfig()
    """Column names of the box table in CSV."""
    validate_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of patients put into `validate` where the source assigns no split."""
    test_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of patients put into `test` where the source assigns no split."""
    max_reject_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rejected rows (lateral views apart) above which the job fails with exit code 3."""


class ImagesConfig(Section):
    """Decoding and preparing images (`prepare_images`, and the service)."""

    size_px: Annotated[int, Field(ge=32)] = 512
    """Height and width of a prepared image, pixels; paper: 512."""
    voi: Literal["none", "dicom"] = "none"
    """Whether a DICOM VOI LUT or window is applied before scaling by minimum and maximum."""
    equalize: bool = False
    """Histogram equalisation, as MIMIC-CXR-JPG applied to its films."""
    max_megapixels: Annotated[float, Field(gt=0)] = 40
    """Largest declared rows x columns, millions of pixels."""
    max_bytes: Annotated[int, Field(gt=0)] = 64 * 2**20
    """Largest file, bytes."""
    deadline_s: Annotated[float, Field(gt=0)] = 8
    """Seconds that one image may take to decode; its refusal then comes within 10."""
    memory_mb: Annotated[int, Field(gt=0)] = 1024
    """Memory that a decode worker may allocate, MiB."""
    reject_burned_in: bool = True
    """Whether a film whose BurnedInAnnotation says YES is rejected."""
    shard_rows: Annotated[int, Field(gt=0)] = 512
    """Images in one shard: the unit that is resumed."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Decode processes; 0: one per core."""
    dask_scheduler: str = ""
    """Address of a Dask scheduler, such as `tcp://head:8786`, whose workers decode; empty: here."""
    max_reject_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rejected images above which the job fails with exit code 3."""
