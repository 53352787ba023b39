"""Open-i (Indiana University): reports in XML, CSV or JSON lines, and images -> images and studies.

Views do not stand in the XML reports: they come from the list of projections that goes with
the CSV form, which fits both forms, since images are matched by their numbers alone. Rows of
JSON name the images of a study with their projections.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.files import path_under
from medclip_dcl.data.records import LONGEST_REPORT, ImageRecord, RawStudies, Reject, Study, Text
from medclip_dcl.data.sources.labels import Labels, label_table
from medclip_dcl.data.table_files import read_any, read_rows, take_columns, take_rows
from medclip_dcl.text.labeler.lexicon import LABELS

_REPORTS, _PROJECTIONS = "indiana_reports.csv", "indiana_projections.csv"
_JSON_REPORTS = "reports.jsonl"
_XML_FOLDERS = ("NLMCXR_reports/ecgen-radiology", "ecgen-radiology", "reports", ".")
_IMAGE_FOLDERS = ("NLMCXR_png", "images/images_normalized", "images_normalized", "images", ".")
_SUFFIXES = {".png", ".jpg", ".jpeg"}
_IMAGE = re.compile(r"(?:CXR(?P<study>\d+)_)?(?:(?P<uid>\d+)_)?(?P<rest>IM-\d{1,6}(?:-\d{1,12})*)")
_UID = re.compile(r"(?:CXR)?(\d{1,9})")

# Heading with its qualifiers, in any order -> finding of CheXpert, as the phrases of CheXpert's
# labeler sort them; a heading that leaves the finding open is uncertain.
_PRESENT = {
    "Airspace Disease": "Lung Opacity",
    "Cardiac Shadow/enlarged": "Cardiomegaly",
    "Cardiomegaly": "Cardiomegaly",
    "Catheters, Indwelling": "Support Devices",
    "Consolidation": "Consolidation",
    "Fractures, Bone": "Fracture",
    "Hydropneumothorax": "Pneumothorax",
    "Implanted Medical Device": "Support Devices",
    "Infiltrate": "Lung Opacity",
    "Mass": "Lung Lesion",
    "Mediastinum/enlarged": "Enlarged Cardiomediastinum",
    "Medical Device": "Support Devices",
    "Nodule": "Lung Lesion",
    "Opacity": "Lung Opacity",
    "Pleural Effusion": "Pleural Effusion",
    "Pneumonia": "Pneumonia",
    "Pneumothorax": "Pneumothorax",
    "Pulmonary Atelectasis": "Atelectasis",
    "Pulmonary Edema": "Edema",
    "Thickening/pleura": "Pleural Other",
    "Tube, Inserted": "Support Devices",
    "normal": "No Finding",
}
_UNCERTAIN = {
    "Cicatrix/lung": "Lung Opacity",
    "Costophrenic Angle/blunted": "Pleural Effusion",
    "Density/lung": "Lung Opacity",
    "Heart Failure": "Edema",
    "Hydropneumothorax": "Pleural Effusion",
    "Markings/lung": "Lung Opacity",
    "Mediastinum/prominent": "Enlarged Cardiomediastinum",
    "Pulmonary Congestion": "Edema",
    "Surgical Instruments": "Support Devices",
}
_NOT_INDEXED = "No Indexing"
_NO_FINDING = "No Finding"
_UNCERTAIN_WORDS = {"borderline"}
# The finding that holds each of some others: whether it is called so too is left open.
_WIDER = {
    **dict.fromkeys(
        ("Atelectasis", "Consolidation", "Edema", "Lung Lesion", "Pneumonia"), "Lung Opacity"
    ),
    "Cardiomegaly": "Enlarged Cardiomediastinum",
}


class _Report(NamedTuple):
    study_id: str
    text: Text
    images: dict[str, str]  # that it names -> view
    headings: list[str]  # of MeSH and RadLex, by which it was indexed by hand


def read_open_i(root: Path, *_others: object) -> RawStudies:
    """Read the XML reports, else a table of reports, and find their images and views.

    One report is one patient's. Studies stand alone where the folder holds no PNG or JPEG file.

    Raises:
        StudyError: there is neither an XML file nor a table of reports, or a table lacks a
            column.

    Source: Demner-Fushman et al. 2016; layout of NLMCXR_reports.tgz and NLMCXR_png.tgz, of
        the two CSV files of its public copy, and of rows of JSON with `uid`, `findings`,
        `impression`, `mesh` and `images` (`filename`, `projection`).
    """
    named = {"reports": root / _REPORTS, "projections": root / _PROJECTIONS}
    tables = {name: path for name, path in named.items() if path.is_file()}
    views = _views(tables.get("projections"))
    files = _xml_files(root)
    rejects: list[Reject] = []
    if not files and "reports" not in tables and (root / _JSON_REPORTS).is_file():
        tables["reports"] = root / _JSON_REPORTS
    if files:
        reports = _xml_reports(root, files, views, rejects)
    elif "reports" in tables:
        reports = _table_reports(tables["reports"], views)
    else:
        raise StudyError(
            f"source.root holds neither ecgen-radiology/*.xml nor {_REPORTS} nor {_JSON_REPORTS}"
        )
    image_paths = _images(root)
    images = [
        ImageRecord(
            name,
            report.study_id,
            report.study_id,
            view,
            image_paths.get(name, f"{name}.png"),  # of no file: selection counts it as missing
        )
        for report in reports
        for name, view in report.images.items()
    ]
    studies = [report.study_id for report in reports]
    labels = label_table(studies, (read_headings(report.headings) for report in reports))
    return RawStudies(
        root,
        images if image_paths else [],
        [Study(report.study_id, report.study_id, report.text) for report in reports],
        has_images=bool(image_paths),
        labels=labels if labels.num_rows else None,
        rejects=rejects,
        files=files,
        tables=tables,
    )


def image_name(text: str) -> str:
    """Bring the name of an image to the form in which all lists agree, or to nothing.

    `CXR3_IM-1384-1001.png` and `3_IM-1384-1001.dcm.png` become `3_IM-1384-1001`.
    """
    match = _IMAGE.match(text)
    if match is None or not (match["uid"] or match["study"]):
        return ""
    return f"{match['uid'] or match['study']}_{match['rest']}"


def read_headings(headings: Iterable[str]) -> Labels:
    """Turn a report's headings into labels; none where nobody indexed it.

    `Opacity/lung/base/left` is a heading with its qualifiers. What has no heading is absent, but
    for a finding that is wider than one that is there, and for No Finding where what is there is
    no finding of CheXpert: both stay unlabelled.

    Source: Demner-Fushman et al. 2016, whose reports were indexed by hand.
    """
    parts = [heading.strip().split("/") for heading in headings if heading.strip()]
    if not parts or [_NOT_INDEXED] in parts:
        return {}
    labels: Labels = {}
    for code, findings in ((-1, _UNCERTAIN), (1, _PRESENT)):  # what is sure is said last
        for name, finding in findings.items():
            head, *qualifiers = name.split("/")
            for first, *rest in parts:
                if first == head and {*qualifiers} <= {*rest}:
                    is_sure = code == 1 and not _UNCERTAIN_WORDS & {*rest}
                    labels[finding] = 1 if is_sure else labels.get(finding, -1)
    # "Pneumonia" leaves open whether its indexer would call the opacity so too.
    open_ones = {_WIDER[finding] for finding in labels if finding in _WIDER}
    if not {name for name, code in labels.items() if code == 1} - {"Support Devices"}:
        open_ones.add(_NO_FINDING)
    absent = dict.fromkeys((name for name in LABELS if name not in open_ones), 0)
    return absent | labels


def _study(uid: str) -> str:
    # XML names studies CXR12, tables name them 12.
    match = _UID.fullmatch(uid.strip())
    return f"CXR{match.group(1)}" if match else ""


def _views(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    rows = read_rows(path, ["filename", "projection"])
    names = (image_name(name) for name in rows["filename"])
    return {
        name: view.strip().upper()
        for name, view in zip(names, rows["projection"], strict=True)
        if name
    }


def _xml_files(root: Path) -> list[str]:
    for folder in _XML_FOLDERS:
        files = sorted(path.relative_to(root).as_posix() for path in (root / folder).glob("*.xml"))
        if files:
            return files
    return []


def _xml_reports(
    root: Path, files: Iterable[str], views: Mapping[str, str], rejects: list[Reject]
) -> list[_Report]:
    reports = []
    for number, file in enumerate(files):
        report = _xml_report(root, file, views)
        if report is None:
            name = _study(Path(file).stem) or f"report-{number:06d}"
            rejects.append(Reject(name, "bad_report"))
        else:
            reports.append(report)
    # By number: names of files sort CXR10 before CXR2.
    return sorted(reports, key=lambda report: int(report.study_id[3:]))


def _xml_report(root: Path, file: str, views: Mapping[str, str]) -> _Report | None:
    """Read one report; None where it is elsewhere, malformed, too large, or declares anything."""
    try:
        path = path_under(root, file)
    except StudyError:
        return None
    if path.stat().st_size > LONGEST_REPORT:
        return None
    data = path.read_bytes()
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:  # entities that expand to gigabytes
        return None
    try:
        tree = ET.fromstring(data)  # noqa: S314 (no entities, and at most a megabyte)
    except (ET.ParseError, ValueError, LookupError):
        return None
    uid = tree.find(".//uId")
    study = _study("" if uid is None else uid.get("id", "")) or _study(Path(file).stem)
    if tree.tag != "eCitation" or not study:
        return None
    # A label may stand twice: its parts are joined.
    texts: dict[str, list[str]] = {}
    for part in tree.iter("AbstractText"):
        words = "".join(part.itertext()).strip()
        texts.setdefault(part.get("Label", "").upper(), []).append(words)
    findings, impression = (" ".join(texts.get(name, [])) for name in ("FINDINGS", "IMPRESSION"))
    named = (image_name(image.get("id", "")) for image in tree.iter("parentImage"))
    images = {name: views.get(name, "") for name in named if name}
    headings = [item.text or "" for item in tree.iterfind(".//MeSH/major")]
    return _Report(study, Text(findings.strip(), impression.strip(), ""), images, headings)


def _table_reports(path: Path, views: Mapping[str, str]) -> list[_Report]:
    """Read a table of reports; `views` of all images, but of JSON, whose rows have their own."""
    table = read_any(path)
    texts = take_rows(table, path.name, ["uid", "findings", "impression"])
    images: list[dict[str, str]]
    if path.name == _JSON_REPORTS:
        nested = take_columns(table, path.name, ["mesh", "images"])
        headings = nested["mesh"].to_pylist()
        images = [_json_images(row) for row in nested["images"].to_pylist()]
    else:
        of_study: dict[str, dict[str, str]] = {}
        for name, view in views.items():
            of_study.setdefault(_study(name.partition("_")[0]), {})[name] = view
        images = [of_study.get(_study(uid), {}) for uid in texts["uid"]]
        blank = [""] * len(table)
        indexed = take_rows(table, path.name, ["MeSH"]) if "MeSH" in table.column_names else {}
        headings = [text.split(";") for text in indexed.get("MeSH", blank)]
    return [
        _Report(study, Text(findings.strip(), impression.strip(), ""), named, row or [])
        for uid, findings, impression, named, row in zip(
            *texts.values(), images, headings, strict=True
        )
        if (study := _study(uid))
    ]


def _json_images(row: Any) -> dict[str, str]:
    try:
        named = {image_name(item["filename"]): item["projection"] or "" for item in row or ()}
        named.pop("", None)  # nothing joins a name of another form
        return {name: view.strip().upper() for name, view in named.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise StudyError(
            f"{_JSON_REPORTS} has a row whose images are not a list of objects with filename and "
            "projection, or whose mesh is not a list of words"
        ) from error


def _images(root: Path) -> dict[str, str]:
    """Find the PNG or JPEG files: image -> path relative to the root."""
    for folder in _IMAGE_FOLDERS:
        if not (root / folder).is_dir():
            continue
        files = sorted(
            file for file in (root / folder).iterdir() if file.suffix.lower() in _SUFFIXES
        )
        images = {image_name(path.name): path.relative_to(root).as_posix() for path in files}
        images.pop("", None)  # files of other names
        if images:
            return images
    return {}
