"""Raw studies -> usable films and reports, and a reason for everything that is left out."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from medclip_dcl.artifacts.files import path_under
from medclip_dcl.config.studies import SourceConfig
from medclip_dcl.errors import StudyError
from medclip_dcl.studies.pointers import POINTER_BYTES, is_pointer
from medclip_dcl.studies.records import Film, RawStudies, ReadSections, Reject, Study, Text

REASONS: dict[str, str] = {
    "bad_id": "an id is empty or holds characters that no path may; the reject names the row",
    "no_subject": "the row or the header names no patient",
    "bad_report": "the report's XML is malformed, too large, or declares entities",
    "bad_header": "the DICOM header cannot be read, or lacks an id",
    "not_dicom": "the file in the folder of DICOM is something else",
    "modality": "the DICOM modality is not one of source.modalities",
    "duplicate_id": "an earlier row has the same id",
    "patient_conflict": "the film and its study name different patients",
    "lateral": "the view position is not one of source.frontal_views",
    "no_view": "the view position is blank and source.keep_blank_views is off",
    "missing_image": "the film's file is missing or lies outside the root",
    "pointer_file": "the file is a pointer of git-LFS or git-annex, not content",
    "no_report": "the study has no report file, or its report is refused",
    "not_utf8": "the report is no UTF-8 text, nor one of source.fallback_encoding",
    "report_too_long": "the report has more than a million bytes",
    "empty_report": "the report has neither findings nor impression nor a text to stand in",
}
"""Reason code of a manifest's reject -> what it means."""

VIEW_REASONS = {"lateral", "no_view", "modality", "not_dicom"}
"""Reasons that are no fault of the source and count towards no threshold."""

LONGEST_REPORT = 1_000_000
"""Bytes of the longest report file that is read."""


@dataclass(frozen=True)
class Selection:
    """What can be used.

    Attributes:
        films: usable films, by image id.
        texts: study -> its sections; studies with a usable film, or all where there
            are no films; none where the source has no reports.
        subjects: study -> patient.
        rejects: everything else.
        candidates: films of the right view, or studies where there are no films.
        lost: those of the candidates that are left out.
    """

    films: list[Film]
    texts: dict[str, Text]
    subjects: dict[str, str]
    rejects: list[Reject]
    candidates: int
    lost: int


def select(raw: RawStudies, settings: SourceConfig, read_sections: ReadSections) -> Selection:
    """Keep what can be used and name a reason for the rest.

    Args:
        raw: the source's rows.
        settings: settings of the source.
        read_sections: finds sections in the text of a whole report.

    Returns:
        The usable films and reports.
    """
    rejects = list(raw.rejects)
    frontal = [
        film for film in _first_of_each(raw.films, rejects) if _is_frontal(film, settings, rejects)
    ]
    present = [film for film in frontal if _is_present(film, raw.root, rejects)]
    wanted = {film.study_id for film in present} if raw.has_films else None
    texts: dict[str, Text] = {}
    subjects = {} if raw.has_reports else {film.study_id: film.subject_id for film in present}
    for study in raw.studies:
        if wanted is not None and study.study_id not in wanted:
            continue
        answer = _text(study, raw.reports_root, read_sections, settings.fallback_encoding)
        if isinstance(answer, str):
            rejects.append(Reject(study.study_id, answer))
            continue
        texts[study.study_id], subjects[study.study_id] = answer, study.subject_id
    films = [film for film in present if subjects.get(film.study_id) == film.subject_id]
    rejects += [
        Reject(film.image_id, "patient_conflict" if film.study_id in subjects else "no_report")
        for film in present
        if subjects.get(film.study_id) != film.subject_id
    ]
    views = sum(item.reason in VIEW_REASONS for item in rejects)
    rows = len(raw.films) - views if raw.has_films else len(raw.studies)
    candidates = rows + len(raw.rejects)
    lost = candidates - len(films if raw.has_films else texts)
    return Selection(sorted(films), texts, subjects, rejects, candidates, lost)


def stamp(raw: RawStudies) -> str:
    """Name the state of a source's files without reading them.

    Args:
        raw: the source's rows.

    Returns:
        64 hexadecimal digits that change when a report or a film comes, goes or is written.
    """
    reports = (study.report for study in raw.studies if isinstance(study.report, str))
    texts = stamp_files(raw.reports_root, (*raw.files, *reports))
    films = stamp_files(raw.root, (film.path for film in raw.films))
    return hashlib.sha256(f"{texts}{films}".encode()).hexdigest()


def stamp_files(root: Path, paths: Iterable[str]) -> str:
    """Name the state of files without reading them.

    Args:
        root: folder that the paths are relative to.
        paths: paths of files.

    Returns:
        64 hexadecimal digits over names, sizes and times of last change.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            facts = (root / path).stat()
            line = f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\n"
        except (OSError, ValueError):
            line = f"{path}\0missing\n"
        digest.update(line.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _first_of_each(films: Iterable[Film], rejects: list[Reject]) -> Iterator[Film]:
    seen: set[str] = set()
    for film in films:
        if film.image_id in seen:
            rejects.append(Reject(film.image_id, "duplicate_id"))
            continue
        seen.add(film.image_id)
        yield film


def _is_frontal(film: Film, settings: SourceConfig, rejects: list[Reject]) -> bool:
    if not film.view:
        has_views = bool(settings.columns.view) or settings.kind != "table"
        if settings.keep_blank_views or not has_views:
            return True
        rejects.append(Reject(film.image_id, "no_view"))
        return False
    if film.view.upper() in {view.upper() for view in settings.frontal_views}:
        return True
    rejects.append(Reject(film.image_id, "lateral"))
    return False


def _is_present(film: Film, root: Path, rejects: list[Reject]) -> bool:
    try:
        path = path_under(root, film.path)
    except StudyError:
        rejects.append(Reject(film.image_id, "missing_image"))
        return False
    if path.stat().st_size <= POINTER_BYTES and is_pointer(path.read_bytes()):
        rejects.append(Reject(film.image_id, "pointer_file"))
        return False
    return True


def _text(study: Study, root: Path, read_sections: ReadSections, fallback: str) -> Text | str:
    """Give the sections, or the code of the reason why there are none."""
    report = study.report
    if isinstance(report, str):
        try:
            path = path_under(root, report)
        except StudyError:
            return "no_report"
        if path.stat().st_size > LONGEST_REPORT:
            return "report_too_long"
        text = _decoded(path.read_bytes(), fallback)
        if text is None:
            return "not_utf8"
        if is_pointer(text.encode()):
            return "pointer_file"
        report = Text(*read_sections(text, study.study_id))
    if any(is_pointer(section.encode("utf-8", "surrogatepass")) for section in report):
        return "pointer_file"
    return report if any(section.strip() for section in report) else "empty_report"


def _decoded(data: bytes, fallback: str) -> str | None:
    for encoding in ("utf-8-sig", fallback):
        try:
            text = data.decode(encoding or "utf-8")
            break
        except UnicodeDecodeError:
            continue
    else:
        return None
    return None if "\0" in text else text.replace("\r\n", "\n").replace("\r", "\n")
