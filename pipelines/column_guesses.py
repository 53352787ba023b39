"""Columns of a table that nobody has mapped yet, guessed by their names and by what they hold."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeVar

import pyarrow as pa

from medclip_dcl.data.row_images import is_list
from medclip_dcl.data.source_settings import LABEL_CODES, Column
from medclip_dcl.data.table_files import UTF16, open_plain, read_any, sniff_separator, strings
from medclip_dcl.errors import ConfigError, StudyError
from medclip_dcl.tables import SPLITS
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.language import count_languages
from medclip_sources.labels import OTHER_NAMES
from medclip_sources.table import SPELLINGS

ROLES: tuple[Column, ...] = (
    "subject_id", "study_id", "path", "report", "findings", "impression", "view", "split",
)  # fmt: skip
"""Roles that are guessed besides labels."""

_T = TypeVar("_T")
_ID = r"(_?(id|ids|nr|no|number|key|uid|hash|code))?"
_NAMES = {
    "subject_id": rf"((deid|anon|id)_)?(patient(en)?|paciente|subject|person|mrn|pid|pat){_ID}",
    "study_id": rf"(id_)?(study|exam|examination|accession|estudio)(_instance)?{_ID}",
    "report": r"(.*_)?(reports?|narrative|befund|bericht|informe)(_text|_en|_clean|_body)?|text",
    "findings": r"findings(_text|_section)?",
    "impression": r"(impression|conclusion|beurteilung)(_text|_section)?",
    "view": r"(.*_)?(view|view_?position|projection|projektion|proyeccion)",
    "split": r"(.*_)?(split|subset|partition|fold)",
    "path": r"(.*_)?(path|file|filename|file_name|filepath|image|img|images|dicom)(_path|_file)?",
}
_SUFFIXES = (".dcm", ".dicom", ".jpg", ".jpeg", ".png")
_FRONTAL = re.compile(r"(AP|PA|FRONTAL)\b")
_LATERAL = re.compile(r"(L|LL|RL|LAT|LATERAL)\b")
_SAMPLE = 200  # values of a column
_PATHS = 40  # of these that are looked for
_DEEPEST = 6  # folders that may be cut off from the beginning of a path
_LEAST_WORDS = 4.0  # of a text, on average
_MOST_FOLDERS = 20  # next to the table in which images are looked for
_MOST = 0.8


class Images(NamedTuple):
    """Images of a table: the column that names them, and the folder that its paths start at."""

    column: str
    pattern: str  # `source.columns.path`
    root: Path
    strip: str  # `source.prefix_strip`
    share: float  # of the paths tried whose file is there


@dataclass
class TableGuess:
    """The table of a source, and what its columns seem to be."""

    table: Path
    root: Path
    separator: str
    """Of CSV; empty for other forms."""
    encoding: str
    """`source.fallback_encoding`: empty for UTF-8 and UTF-16."""
    columns: dict[str, str]
    """Role -> column, as `source.columns` has it."""
    labels: dict[str, str] | str
    """Finding -> column, or the column that lists what is there; empty: none."""
    prefix_strip: str
    frontal_views: tuple[str, ...]
    """Values of the column of views that are frontal; empty: the usual ones, or no such column."""
    images_there: float
    """Share of the images tried whose file is there."""
    languages: Mapping[str, int]
    """Language -> sampled reports that read like it, as `count_languages` gives them."""
    rows: int
    patients: int
    """Distinct ones; 0 where no column names them."""
    studies: int
    split_sizes: dict[str, int]
    """Studies of each split; empty where the table has none."""


def guess_table(
    path: Path, images: Path | None = None, given: Mapping[str, str] | None = None
) -> TableGuess:
    """Read a table and guess its columns; `images` is the folder that its paths start at.

    `given`: role -> column, taken as it is. A table without a column of patients has none in
    `columns`.

    Raises:
        ConfigError: `given` names another role, or a column that is not there.
        StudyError: the table cannot be read, has no header, or no images or reports are found.
    """
    named = dict(given or {})
    table, encoding = _read(path)
    values = {
        item.name: strings(table.column(item.name), path.name, item.name)
        for item in table.schema
        if not is_list(item.type) and not pa.types.is_nested(item.type)
    }
    _check_given(named, values)
    samples = {name: _sample(column) for name, column in values.items()}
    found = _find_images(path, values, samples, images, named.get("path", ""))
    _refuse_data_as_names(path, samples, found)
    columns = {"path": found.pattern}
    for role, is_such in _CONTENTS.items():
        chosen = named.get(role) or _named(role, samples, is_such, {found.column})
        columns |= {role: chosen} if chosen else {}
    columns |= _texts(path, samples, named, {found.column, *columns.values()})
    of = {role: values.get(columns.get(role, ""), []) for role in ROLES}
    text = next(columns[role] for role in ("report", "findings", "impression") if role in columns)
    return TableGuess(
        table=path,
        root=found.root,
        separator=_separator(path, encoding) if _is_csv(path) else "",
        encoding=encoding,
        columns={role: columns[role] for role in ROLES if role in columns},
        labels=_labels(values, samples, set(columns.values())),
        prefix_strip=found.strip,
        frontal_views=_frontal_views(of["view"]),
        images_there=found.share,
        languages=count_languages(samples[text]),
        rows=table.num_rows,
        patients=len({subject for subject in of["subject_id"] if subject.strip()}),
        studies=len(set(of["study_id"])) or table.num_rows,
        split_sizes=_split_sizes(of["split"], of["study_id"]),
    )


def _read(path: Path) -> tuple[pa.Table, str]:
    if not path.is_file():
        raise StudyError(f"table {path} is missing; name a CSV, Parquet or JSONL file")
    try:
        return read_any(path), ""
    except StudyError as error:
        if "source.fallback_encoding" not in str(error):
            raise
    return read_any(path, "cp1252"), "cp1252"


def _separator(path: Path, encoding: str) -> str:
    with open_plain(path) as stream:
        is_utf16 = stream.read(2) in UTF16
    return sniff_separator(path, "utf-16" if is_utf16 else encoding or "utf8")


def _is_csv(path: Path) -> bool:
    kind = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    return kind.lower() not in {".parquet", ".jsonl", ".json", ".arrow"}


def _check_given(given: Mapping[str, str], columns: Iterable[str]) -> None:
    there = list(columns)
    if unknown := sorted(set(given) - set(ROLES)):
        raise ConfigError(f"{unknown} are no roles of columns; use those of {list(ROLES)}")
    if absent := [name for name in given.values() if name not in there]:
        raise ConfigError(f"the table has no column {absent}; correct the name")


def _sample(column: Sequence[str]) -> list[str]:
    filled = [value.strip() for value in column if value.strip()]
    return filled[:: max(1, len(filled) // _SAMPLE)][:_SAMPLE]


def _share(values: Sequence[_T], is_such: Callable[[_T], object]) -> float:
    return fmean(bool(is_such(value)) for value in values) if values else 0.0


def _words(values: Sequence[str]) -> float:
    return fmean(len(value.split()) for value in values) if values else 0.0


def _refuse_data_as_names(path: Path, samples: Mapping[str, list[str]], found: Images) -> None:
    if found.column.lower().endswith(_SUFFIXES) or _words(list(samples)) >= _LEAST_WORDS:
        raise StudyError(
            f"the first row of table {path} seems to be data; write the names of its columns above"
        )


def _is_view(value: str) -> object:
    return _FRONTAL.match(value.upper()) or _LATERAL.match(value.upper())


def _is_split(value: str) -> bool:
    return SPELLINGS.get(value.lower(), value.lower()) in SPLITS


_CONTENTS: dict[str, Callable[[Sequence[str]], bool]] = {
    "subject_id": lambda values: _words(values) < _LEAST_WORDS,
    "study_id": lambda values: _words(values) < _LEAST_WORDS,
    "view": lambda values: _share(values, _is_view) > _MOST,
    "split": lambda values: _share(values, _is_split) == 1,
}
"""Role -> whether the values of a column can be of it."""


def _plain(name: str) -> str:
    # PatientID, patient-id and "Patient ID" are one name.
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|\W+", "_", name)
    return re.sub(r"_+", "_", parted).strip("_").lower()


def _named(
    role: str,
    samples: Mapping[str, list[str]],
    is_such: Callable[[Sequence[str]], bool],
    taken: set[str],
) -> str:
    rule = re.compile(_NAMES[role])
    fitting = (
        name
        for name, values in samples.items()
        if name not in taken and values and rule.fullmatch(_plain(name)) and is_such(values)
    )
    return next(fitting, "")


def _texts(
    path: Path, samples: Mapping[str, list[str]], given: Mapping[str, str], taken: set[str]
) -> dict[str, str]:
    # The report, or its sections; without a telling name the column with the longest texts.
    chosen = {role: given[role] for role in ("report", "findings", "impression") if role in given}
    if chosen:
        return chosen
    texts = {
        name: values
        for name, values in samples.items()
        if name not in taken and _words(values) >= _LEAST_WORDS
    }
    for role in ("findings", "impression", "report"):
        if name := _named(role, texts, bool, set(chosen.values())):
            chosen[role] = name
    if {"findings", "impression"} & set(chosen):
        chosen.pop("report", None)
    distinct = {name: _words(v) for name, v in texts.items() if 2 * len(set(v)) > len(v)}
    if not chosen and distinct:
        chosen["report"] = max(distinct, key=lambda name: distinct[name])
    if not chosen:
        raise StudyError(
            f"no column of table {path} holds reports; name it with --column report=NAME. Images "
            "without reports: configs/archive.yaml"
        )
    return chosen


def _frontal_views(views: Sequence[str]) -> tuple[str, ...]:
    found = sorted({view for value in views if _FRONTAL.match(view := value.strip().upper())})
    return tuple(found) if set(found) - {"AP", "PA", "FRONTAL"} else ()


def _find_images(
    path: Path,
    values: Mapping[str, list[str]],
    samples: Mapping[str, list[str]],
    images: Path | None,
    given: str,
) -> Images:
    roots = [images.absolute()] if images else list(_folders(path))
    tried: list[Images] = []
    for name in [given] if given else samples:
        if samples[name] and all(value.startswith("/") for value in samples[name]):
            tried += _absolute(name, [value for value in values[name] if value.startswith("/")])
        tried += _relative(name, samples[name], roots)
    best = max(tried, key=_likeliness, default=None)
    if best is None or not best.share:
        windows = [name for name, values in samples.items() if _share(values, _is_windows) > _MOST]
        remedy = (
            f"the paths of column {windows[0]!r} have backslashes; write them with /"
            if windows
            else "name the folder that its paths start at with --images FOLDER"
        )
        raise StudyError(f"no column of table {path} names images that are there; {remedy}")
    return best


def _likeliness(images: Images) -> tuple[bool, bool, float, bool]:
    is_named = re.fullmatch(_NAMES["path"], _plain(images.column)) is not None
    return images.share > 0.5, images.pattern == images.column, images.share, is_named


def _folders(path: Path) -> Iterator[Path]:
    """List where the paths of a table may start: at it, here, or in a folder next to it."""
    home = path.absolute().parent
    yield from dict.fromkeys((home, Path.cwd()))
    inside = sorted(item for item in home.iterdir() if item.is_dir() and item.name[0] != ".")
    yield from inside[:_MOST_FOLDERS]
    yield home.parent


def _is_windows(value: str) -> bool:
    return "\\" in value and value.lower().endswith(_SUFFIXES)


def _absolute(column: str, values: Sequence[str]) -> Iterator[Images]:
    tried = values[:: max(1, len(values) // _PATHS)][:_PATHS]
    share = _share(tried, lambda value: Path(value).is_file())
    root = os.path.commonpath([str(Path(value).parent) for value in values])
    yield Images(column, column, Path(root), "", share)


def _relative(column: str, values: Sequence[str], roots: Sequence[Path]) -> Iterator[Images]:
    # Paths may begin with folders that are not here, and names may lack their ending.
    if not values or _words(values) >= _LEAST_WORDS:
        return
    tried = values[:: max(1, len(values) // _PATHS)][:_PATHS]
    are_paths = _share(tried, lambda value: value.lower().endswith(_SUFFIXES) or "/" in value)
    if are_paths <= _MOST and len(set(tried)) <= len(tried) / 2:
        return  # such as a patient, whose number is the name of an image by chance
    endings = ("",) if are_paths > _MOST else _SUFFIXES
    for cut in range(1 + min(_DEEPEST, *(value.count("/") for value in tried))):
        starts = {"".join(f"{part}/" for part in value.split("/")[:cut]) for value in tried}
        if len(starts) > 1:
            return
        (strip,) = starts
        for root, ending in product(roots, endings):
            pattern = f"{{{column}}}{ending}" if ending else column
            rest = [root / (value.removeprefix(strip).lstrip("/") + ending) for value in tried]
            yield Images(column, pattern, root, strip, _share(rest, Path.is_file))


def _labels(
    values: Mapping[str, list[str]], samples: Mapping[str, list[str]], taken: set[str]
) -> dict[str, str] | str:
    # Columns of codes by finding; else one that lists findings.
    free = {name: samples[name] for name in values if name not in taken and samples[name]}
    known = {_plain(name): name for name in LABELS}
    known |= {_plain(other): name for name, others in OTHER_NAMES.items() for other in others}
    by_finding: dict[str, str] = {}
    for column in free:
        finding = known.get(_plain(column), "")
        if finding and all(value.strip().lower() in LABEL_CODES for value in values[column]):
            by_finding.setdefault(finding, column)
    if by_finding:
        return by_finding
    is_list_of_names = (
        name
        for name, cells in free.items()
        if _share(
            cells, lambda cell: any(_plain(part) in known for part in re.split(r"[|;,]", cell))
        )
        > _MOST
    )
    return next(is_list_of_names, "")


def _split_sizes(splits: Sequence[str], studies: Sequence[str]) -> dict[str, int]:
    ids = studies or map(str, range(len(splits)))
    of_split: dict[str, set[str]] = {}
    for split, study in zip(splits, ids, strict=bool(splits)):
        name = split.strip().lower()
        of_split.setdefault(SPELLINGS.get(name, name), set()).add(study)
    return {name: len(members) for name, members in of_split.items()}
