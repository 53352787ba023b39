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
    """Image path relative to `source.root`; empty for a table of reports alone."""
    findings: str = ""
    """Text of the findings section."""
    impression: str = ""
    """Text of the impression section."""
    report: str = ""
    """Text of the whole report, used where findings and impression are empty."""
    view: str = ""
    """View position; rows with a value outside `source.frontal_views` are rejected."""
    split: str = ""
    """train, validate or test; assigned by hash of the patient where empty."""


class SourceConfig(Section):
    """Where raw studies come from (`build_manifest`)."""

    kind: Literal["mimic_cxr", "table"] = "mimic_cxr"
    """`mimic_cxr`: the release's tree and tables; `table`: any CSV, Parquet or JSONL table."""
    root: str = "${WORK}/studies"
    """Folder under which every image path of the source lies."""
    reports: str = ""
    """Folder whose `files/` holds the report texts (kind `mimic_cxr`); empty: `root`."""
    image_suffix: Literal[".dcm", ".jpg", ".jpeg", ".png"] = ".dcm"
    """Ending of the films' names (kind `mimic_cxr`): `.jpg` for MIMIC-CXR-JPG."""
    table: str = ""
    """The mapped table, relative to `root` (kind `table`): .csv, .parquet or .jsonl; or .gz."""
    columns: ColumnsConfig = ColumnsConfig()
    """Column names of the mapped table (kind `table`)."""
    frontal_views: tuple[str, ...] = ("AP", "PA")
    """View positions that count as frontal."""
    keep_blank_views: bool = False
    """Whether a film without a view position is kept."""
    boxes: str = ""
    """MS-CXR-shaped box table, relative to `root`; its patients are put in `test`. Empty: none."""
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
    deadline_s: Annotated[float, Field(gt=0)] = 10
    """Seconds that one image may take to decode."""
    memory_mb: Annotated[int, Field(gt=0)] = 1024
    """Memory that a decode worker may allocate, MiB."""
    reject_burned_in: bool = True
    """Whether a film whose BurnedInAnnotation says YES is rejected."""
    shard_rows: Annotated[int, Field(gt=0)] = 512
    """Images in one shard: the unit that is resumed."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Decode processes; 0: one per core."""
    max_reject_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rejected images above which the job fails with exit code 3."""
