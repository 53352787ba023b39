"""Open-i (Indiana University): XML or CSV reports and PNG images -> images and studies.

Views do not stand in the reports: they come from the list of projections that goes with
the CSV form, which fits both forms, since images are matched by their numbers alone.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from medclip_dcl.data.sources.records import (
    LONGEST_REPORT,
    ImageRecord,
    RawStudies,
    Reject,
    Study,
    Text,
    read_rows,
)
from medclip_dcl.errors import StudyError

_REPORTS, _PROJECTIONS = "indiana_reports.csv", "indiana_projections.csv"
_XML_FOLDERS = ("NLMCXR_reports/ecgen-radiology", "ecgen-radiology", "reports", ".")
_IMAGE_FOLDERS = ("NLMCXR_png", "images/images_normalized", "images_normalized", "images", ".")
_IMAGE = re.compile(r"(?:CXR(?P<study>\d+)_)?(?:(?P<uid>\d+)_)?(?P<rest>IM-\d{1,6}(?:-\d{1,12})*)")
_UID = re.compile(r"(?:CXR)?(\d{1,9})")


class _Report(NamedTuple):
    study_id: str
    text: Text
    images: list[str]  # that it names


def read_open_i(root: Path) -> RawStudies:
    """Read the XML reports, else the table of reports, and find their images and views.

    One report is one patient's. Studies stand alone where the folder holds no PNG file.

    Raises:
        StudyError: there is neither an XML file nor a table of reports, or a table lacks a
            column.

    Source: Demner-Fushman et al. 2016; layout of NLMCXR_reports.tgz and NLMCXR_png.tgz, and of
        the two CSV files of its public copy.
    """
    named = {"reports": root / _REPORTS, "projections": root / _PROJECTIONS}
    tables = {name: path for name, path in named.items() if path.is_file()}
    views = _views(tables.get("projections"))
    files = _xml_files(root)
    rejects: list[Reject] = []
    if files:
        reports = _xml_reports(root, files, rejects)
    elif "reports" in tables:
        reports = _table_reports(tables["reports"], views)
    else:
        raise StudyError(f"source.root holds neither ecgen-radiology/*.xml nor {_REPORTS}")
    image_paths = _images(root)
    images = [
        ImageRecord(
            name,
            report.study_id,
            report.study_id,
            views.get(name, ""),
            image_paths.get(name, f"{name}.png"),
        )
        for report in reports
        for name in report.images
    ]
    return RawStudies(
        root,
        images if image_paths else [],
        [Study(report.study_id, report.study_id, report.text) for report in reports],
        has_images=bool(image_paths),
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


def _study(uid: str) -> str:
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
        found = sorted(path.relative_to(root).as_posix() for path in (root / folder).glob("*.xml"))
        if found:
            return found
    return []


def _xml_reports(root: Path, files: Iterable[str], rejects: list[Reject]) -> list[_Report]:
    reports = []
    for number, file in enumerate(files):
        report = _xml_report(root / file)
        if report is None:
            name = _study(Path(file).stem) or f"report-{number:06d}"
            rejects.append(Reject(name, "bad_report"))
        else:
            reports.append(report)
    return sorted(reports, key=lambda report: int(report.study_id[3:]))


def _xml_report(path: Path) -> _Report | None:
    """Read one report; None where it is malformed, too large, or declares anything."""
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
    study = _study("" if uid is None else uid.get("id", "")) or _study(path.stem)
    if tree.tag != "eCitation" or not study:
        return None
    texts: dict[str, list[str]] = {}
    for part in tree.iter("AbstractText"):
        words = "".join(part.itertext()).strip()
        texts.setdefault(part.get("Label", "").upper(), []).append(words)
    findings, impression = (" ".join(texts.get(name, [])) for name in ("FINDINGS", "IMPRESSION"))
    named = (image_name(image.get("id", "")) for image in tree.iter("parentImage"))
    images = list(dict.fromkeys(name for name in named if name))
    return _Report(study, Text(findings.strip(), impression.strip(), ""), images)


def _table_reports(path: Path, views: dict[str, str]) -> list[_Report]:
    images: dict[str, list[str]] = {}
    for name in views:
        images.setdefault(_study(name.partition("_")[0]), []).append(name)
    rows = read_rows(path, ["uid", "findings", "impression"])
    return [
        _Report(study, Text(findings.strip(), impression.strip(), ""), images.get(study, []))
        for uid, findings, impression in zip(
            rows["uid"], rows["findings"], rows["impression"], strict=True
        )
        if (study := _study(uid))
    ]


def _images(root: Path) -> dict[str, str]:
    """Find the PNG files: image -> path relative to the root."""
    for folder in _IMAGE_FOLDERS:
        if not (root / folder).is_dir():
            continue
        files = sorted((root / folder).glob("*.[pP][nN][gG]"))
        found = {image_name(path.name): path.relative_to(root).as_posix() for path in files}
        found.pop("", None)
        if found:
            return found
    return {}
