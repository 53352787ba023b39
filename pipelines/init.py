"""A config for a table of images and reports: its columns are guessed, shown and tried.

Columns are guessed by their names and by what they hold. Whether a path names a file is asked as a
run asks it: `relative_to_root`, then `path_under`.
"""

import math
import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import typer
import yaml

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.core.files import find_config, path_under, write_text
from medclip_dcl.core.tables import SPLITS, read_table
from medclip_dcl.data import manifest
from medclip_dcl.data.selection import select, write_manifest
from medclip_dcl.data.source_settings import (
    LABEL_CODES,
    Column,
    SourceConfig,
    label_word,
    relative_to_root,
)
from medclip_dcl.data.sources.labels import OTHER_NAMES
from medclip_dcl.data.sources.table import SPELLINGS
from medclip_dcl.data.table_files import is_list, read_any, strings, take_columns
from medclip_dcl.inference.prompts import read_prompts
from medclip_dcl.text.labeler.labels import read_claims
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.language import count_languages, language_warning

from .config import check_config
from .data import source_of

ROLES: tuple[Column, ...] = (
    "subject_id", "study_id", "path", "report", "findings", "impression", "view", "split",
)  # fmt: skip
"""Roles that are guessed besides labels."""

_ID = r"(_?(id|ids|nr|no|number|key|uid|hash|code))?"
_NAMES = {
    "subject_id": rf"((deid|anon|id)_)?(patient(en)?|paciente|subject|person|mrn|pid|pat){_ID}",
    "study_id": rf"(id_)?(study|exam|examination|accession|estudio)(_instance)?{_ID}",
    "report": r"(.*_)?(reports?|narrative|befund|bericht|informe)(_text|_en|_clean|_body)?|text",
    "findings": r"findings(_text|_section)?",
    "impression": r"(impressions?|conclusion|beurteilung)(_text|_section)?",
    "view": r"(.*_)?(views?|view_?position|projection|projektion|proyeccion)(_name)?",
    "split": r"(.*_)?(split|subset|partition|fold)",
    "path": r"(.*_)?(path|file|filename|file_name|filepath|image|img|images|dicom)(_path|_file)?",
}
TEMPLATE = "{finding} in the chest X-ray."
_SUFFIXES = (".dcm", ".dicom", ".jpg", ".jpeg", ".png")
_WINDOWS = re.compile(r"\\.*\.(dcm|dicom|jpe?g|png)$", re.IGNORECASE)
_SAMPLE = 200  # values of a column
_TRIED = 40  # paths of these that are looked for
_LEAST_WORDS = 4.0  # of a text in a column without a usual name, on average
_MOST_FOLDERS = 20  # next to the table in which images are looked for
_MOST = 0.8
_SHOWN, _SHOWN_LETTERS = 12, 32  # different values of a column that is left out
_SMALL = 100  # rows; fewer keep a larger share to validate


@dataclass
class TableGuess:
    """The table of a source, and what its columns seem to be."""

    table: Path
    root: Path
    encoding: str
    """`source.fallback_encoding`: empty for UTF-8 and UTF-16."""
    rows: int
    columns: dict[str, str]
    """Role -> column, as `source.columns` has it; without `subject_id` where none was found."""
    labels: dict[str, str] | str
    """Finding -> column, or the column that lists what is there; empty: none."""
    prefix_strip: str
    languages: Mapping[str, int]
    """Language -> sampled reports that read like it, as `count_languages` returns them."""
    views: dict[str, str]
    """Value of the column of views, in capitals -> `frontal`, `lateral` or empty: unknown."""
    template: str
    """`source.template` of a table with labels and without reports; empty: it has reports."""
    unused: dict[str, str]
    """Column that is left out -> its values in words."""

    def section(self) -> dict[str, Any]:
        """Section `source` of a config."""
        root, table = self.root.resolve(), self.table.resolve()
        frontal = [value for value, kind in self.views.items() if kind == "frontal"]
        are_ours = isinstance(self.labels, str) or set(self.labels) <= set(LABELS)
        shares = {"validate_share": 0.1 if self.rows >= _SMALL else 0.2, "test_share": 0.1}
        section = {
            "kind": "table",
            "root": str(root),
            "table": str(table.relative_to(root) if table.is_relative_to(root) else table),
            "fallback_encoding": self.encoding,
            "columns": self.columns | ({"labels": self.labels} if self.labels else {}),
            "findings": [] if are_ours else [*self.labels],
            "template": self.template,
            "prefix_strip": self.prefix_strip,
            "frontal_views": frontal if set(frontal) - {"AP", "PA", "FRONTAL"} else [],
            **({} if "split" in self.columns else shares),
        }
        return {name: value for name, value in section.items() if value}


def guess_table(
    path: Path,
    images: Path | None = None,
    given: Mapping[str, str] | None = None,
    *,
    needs_text: bool = True,
) -> TableGuess:
    """Read a table and guess its columns; `images` is the folder that its paths start at.

    `given`: role -> column, taken as it is; `needs_text`: whether it must hold reports.

    Raises:
        ConfigError: `given` names another role, or a column that is not there.
        StudyError: the table cannot be read, has no header, or no images or reports are found.
    """
    named = dict(given or {})
    table, encoding = _read(path)
    values = {
        item.name: strings(table.column(item.name), path.name, item.name)
        for item in table.schema
        if not pa.types.is_nested(item.type)
    }
    if unknown := sorted(set(named) - set(ROLES)):
        raise ConfigError(f"{unknown} are no roles of columns; use those of {list(ROLES)}")
    if absent := [name for name in named.values() if name not in values]:
        raise ConfigError(f"the table has no column {absent}; it has {list(values)}")
    samples = {name: _sample(column) for name, column in values.items()}
    lists = {
        item.name: _sample(pc.list_flatten(table.column(item.name)).to_pylist())
        for item in table.schema
        if is_list(item.type) and pa.types.is_string(item.type.value_type)
    }
    files = _find_images(path, samples | lists, images, named.get("path", ""))
    if files.column.lower().endswith(_SUFFIXES) or _words(list(samples)) >= _LEAST_WORDS:
        raise StudyError(
            f"the first row of table {path} seems to be data; write the names of its columns above"
        )
    columns = {"image" if files.column in lists else "path": files.pattern}
    for role in _CONTENTS:
        if column := named.get(role) or _named(role, samples, {files.column}):
            columns[role] = column
    if "image" in columns and "study_id" not in columns:  # a row is a study
        ids = [name for name, column in values.items() if len({*column} - {""}) == len(column)]
        columns |= {"study_id": ids[0]} if ids else {}
    if "view" not in columns and (view := _view_column(values, set(columns.values()))):
        columns["view"] = view
    texts = _texts(values, samples, named, {files.column, *columns.values()})
    columns |= texts
    labels = _labels(values, samples, set(columns.values()))
    if needs_text and not texts and not labels:
        raise StudyError(
            f"no column of table {path} holds reports; name it with --column report=NAME. Images "
            "without reports: configs/archive.yaml"
        )
    used = {files.column, *columns.values()}
    used |= {labels} if isinstance(labels, str) else {*labels.values()}
    views = {value.strip().upper() for value in values.get(columns.get("view", ""), ())} - {""}
    return TableGuess(
        table=path,
        root=files.root,
        encoding=encoding,
        rows=table.num_rows,
        columns={role: columns[role] for role in (*ROLES, "image") if role in columns},
        labels=labels,
        prefix_strip=files.strip,
        template=TEMPLATE if needs_text and not texts else "",
        languages=count_languages([text for name in texts.values() for text in samples[name]]),
        views={value: read_view(value) for value in sorted(views)},
        unused={
            name: _in_words(values[name]) if name in values else "lists"
            for name in table.column_names
            if name not in used
        },
    )


def read_view(value: str) -> str:
    """Tell what a view shows of the chest: `frontal`, `lateral`, or empty where it is not said.

    Read are words and their usual short forms, however they are joined: `CHEST PA`,
    `postero-anterior`, `AP_horizontal`, `p.a.`, `LL`, `LLAT`, `seitlich`. A value that names both,
    such as `PA and lateral`, is about a study and says nothing of an image. Obliques and decubitus
    views count as lateral: they are not frontal.
    """
    plain = unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode().lower()
    words = re.findall(r"[a-z]+", plain)
    joined = "".join(words)
    is_lateral = joined in {"l", "la"} or any(_LATERAL.fullmatch(word) for word in words)
    is_frontal = (
        any(_FRONTAL.fullmatch(word) for word in words)
        or re.search(r"(anterior|antero)posterior|(posterior|postero)anterior", joined) is not None
        or re.search(r"\b(a\W{1,3}p|p\W{1,3}a)\b", plain) is not None
    )
    if is_lateral == is_frontal:
        return ""
    return "lateral" if is_lateral else "frontal"


_FRONTAL = re.compile(r"ap|pa|aps|frontal\w*|front|face|dorsoventral|ventrodorsal|supine|supin[oa]")
_LATERAL = re.compile(
    r"ll|rl|lld|rld|llo|rlo|lao|rao|lpo|rpo|[lr]?lat|(?!bi)\w*lateral\w*|profile?|perfil|seitlich\w*"
    r"|obliqu\w*|decub\w*"
)


def _read(path: Path) -> tuple[pa.Table, str]:
    # The table, the fields of its objects as columns by dotted name, and its fallback encoding.
    if not path.is_file():
        raise StudyError(f"table {path} is missing; name a CSV, Parquet or JSONL file")
    encoding = ""
    try:
        table = read_any(path)
    except StudyError as error:
        if "source.fallback_encoding" not in str(error):
            raise
        encoding = "cp1252"
        table = read_any(path, encoding)
    if not table.num_rows:
        raise StudyError(f"table {path} has a header and no row; export its rows as well")
    flat = table.schema.empty_table()
    while any(map(pa.types.is_struct, flat.schema.types)):
        flat = flat.flatten()
    return take_columns(table, path.name, flat.column_names), encoding


def _sample(column: Sequence[str | None]) -> list[str]:
    filled = [value.strip() for value in column if value and value.strip()]
    return filled[:: max(1, len(filled) // _SAMPLE)][:_SAMPLE]


def _share(values: Sequence[str], is_such: Callable[[str], object]) -> float:
    return fmean(bool(is_such(value)) for value in values) if values else 0.0


def _words(values: Sequence[str]) -> float:
    return fmean(len(value.split()) for value in values) if values else 0.0


def _in_words(values: Sequence[str]) -> str:
    # What a column holds: its values where they are few and short, as categories are.
    counts = Counter(value.strip() for value in values)
    blank = counts.pop("", 0)
    few = len(counts) <= _SHOWN and all(len(value) <= _SHOWN_LETTERS for value in counts)
    words = ", ".join(sorted(counts)) if few else f"{len(counts)} different values"
    return (words + f", {blank} blank" * bool(blank)).removeprefix(", ")


def _is_split(value: str) -> bool:
    return SPELLINGS.get(value.lower(), value.lower()) in SPLITS


def _is_wording(value: str) -> bool:
    # Words, and no name of a file: `Normal.` is a report, `reports/s1.txt` and `N-4` are none.
    is_file = re.fullmatch(r"\S*(/\S+|\.[a-z]{2,4})", value) is not None
    return not is_file and re.search(r"[^\W\d_]{3}|[^\x00-\u024f]", value) is not None


def _are_texts(values: Sequence[str]) -> bool:
    is_list = _share(values, lambda value: "|" in value) > 0.1  # of labels
    return not is_list and _share(values, _is_wording) > 0.5


_CONTENTS: dict[str, Callable[[Sequence[str]], bool]] = {
    "subject_id": lambda values: _words(values) < _LEAST_WORDS,
    "study_id": lambda values: _words(values) < _LEAST_WORDS,
    "view": lambda values: _share(values, read_view) > _MOST,
    "split": lambda values: _share(values, _is_split) == 1,
}
"""Role, but those of texts -> whether the values of a column can be of it."""


def _plain(name: str) -> str:
    # PatientID, patient-id and "Patient ID" are one name.
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|\W+", "_", name)
    return re.sub(r"_+", "_", parted).strip("_").lower()


def _named(role: str, samples: Mapping[str, list[str]], taken: set[str]) -> str:
    # The first column with a usual name of the role, and contents that can be of it.
    rule, is_such = re.compile(_NAMES[role]), _CONTENTS.get(role, _are_texts)
    for name, values in samples.items():
        # Of a field of an object its own name may tell, as in `report.findings`.
        is_called_so = any(rule.fullmatch(_plain(part)) for part in (name, name.split(".")[-1]))
        if is_called_so and name not in taken and values and is_such(values):
            return name
    return ""


def _view_column(values: Mapping[str, list[str]], taken: set[str]) -> str:
    # Of columns that hold views whatever their names are, such as `AP/PA`, that with most of them.
    shares = {
        name: _share(column, read_view)
        for name, column in values.items()
        if name not in taken
        and any(read_view(value) == "frontal" for value in column)
        and _CONTENTS["view"](_sample(column))
        and _words(_sample(column)) < _LEAST_WORDS
    }
    return max(shares, key=lambda name: shares[name], default="")


def _texts(
    values: Mapping[str, list[str]],
    samples: Mapping[str, list[str]],
    given: Mapping[str, str],
    taken: set[str],
) -> dict[str, str]:
    # The report, or its sections; without a usual name the column with the longest texts.
    if chosen := {role: given[role] for role in given if role in {"report", *_SECTIONS}}:
        return chosen
    for role in (*_SECTIONS, "report"):
        if name := _named(role, samples, taken | set(chosen.values())):
            chosen[role] = name
    if not chosen:
        lengths = {
            name: _words(column)
            for name, column in samples.items()
            if name not in taken and 2 * len(set(column)) > len(column)
        }
        longest = max(lengths, key=lambda name: lengths[name], default="")
        return {"report": longest} if longest and lengths[longest] >= _LEAST_WORDS else {}
    sections = {role: name for role, name in chosen.items() if role != "report"}
    if len(sections) != 1 or "report" not in chosen:
        return sections or chosen
    report, (role, section) = chosen["report"], *sections.items()
    pairs = [pair for pair in zip(values[report], values[section], strict=True) if all(pair)]
    if sum(part in whole for whole, part in pairs) > len(pairs) / 2:
        return {"report": report}  # which has the section within it
    return sections if role == "findings" else {"findings": report, "impression": section}


_SECTIONS = ("findings", "impression")


class _Images(NamedTuple):
    """A column that names images, and the folder that its paths start at."""

    column: str
    pattern: str  # `source.columns.path`
    root: Path
    strip: str  # `source.prefix_strip`
    share: float  # of the paths tried whose file is there


def _find_images(
    path: Path, samples: Mapping[str, list[str]], images: Path | None, given: str
) -> _Images:
    roots = [images.absolute()] if images else _folders(path)
    tried = [
        candidate
        for name in ([given] if given else samples)
        for candidate in _candidates(name, samples[name], roots)
    ]
    if tried:
        return max(tried, key=_likeliness)
    windows = [name for name, values in samples.items() if _share(values, _WINDOWS.search) > _MOST]
    remedy = (
        f"the paths of column {windows[0]!r} have backslashes; write them with /"
        if windows
        else "name the folder that its paths start at with --images FOLDER"
    )
    raise StudyError(f"no column of table {path} names images that are there; {remedy}")


def _likeliness(images: _Images) -> tuple[bool, bool, float, bool]:
    is_named = re.fullmatch(_NAMES["path"], _plain(images.column)) is not None
    return images.share > 0.5, images.pattern == images.column, images.share, is_named


def _folders(path: Path) -> list[Path]:
    """List where the paths of a table may start: at it, here, or in a folder next to it."""
    home = path.absolute().parent
    inside = sorted(item for item in home.iterdir() if item.is_dir() and item.name[0] != ".")
    return [*dict.fromkeys((home, Path.cwd())), *inside[:_MOST_FOLDERS], home.parent]


def _candidates(column: str, values: Sequence[str], roots: Sequence[Path]) -> Iterator[_Images]:
    # Paths may begin with folders that are not here, and names may lack their ending.
    if not values or _words(values) >= _LEAST_WORDS:
        return
    tried = values[:: max(1, len(values) // _TRIED)][:_TRIED]
    are_paths = _share(tried, lambda value: value.lower().endswith(_SUFFIXES) or "/" in value)
    if are_paths <= _MOST and len(set(tried)) <= len(tried) / 2:
        return  # such as a patient, whose number is the name of an image by chance
    endings = ("",) if are_paths > _MOST else (*_SUFFIXES, *(end.upper() for end in _SUFFIXES))
    if absolute := [value for value in values if value.startswith("/")]:
        folder = os.path.commonpath([str(Path(value).parent) for value in absolute])
        roots = [*roots, Path(folder)] if len(folder) > 1 else roots
    starts = {value[: end.end()] for value in tried[:2] for end in re.finditer("/+", value)}
    for strip, root, ending in product(["", *sorted(starts)], roots, endings):
        relative = relative_to_root(root, SourceConfig(kind="table", prefix_strip=strip))
        there = partial(_is_there, root, relative, ending)
        if any(there(value) for value in (*tried[:3], tried[-1])):
            pattern = f"{{{column}}}{ending}" if ending else column
            yield _Images(column, pattern, root, strip, _share(tried, there))


def _is_there(root: Path, relative: Callable[[str], str], ending: str, value: str) -> bool:
    with suppress(StudyError):
        path_under(root, relative(value + ending))
        return True
    return False


def _labels(
    values: Mapping[str, list[str]], samples: Mapping[str, list[str]], taken: set[str]
) -> dict[str, str] | str:
    # Columns of codes by finding; else one that lists findings.
    free = {name: samples[name] for name in values if name not in taken and samples[name]}
    finding_of = {_plain(name): name for name in LABELS}
    finding_of |= {_plain(one): name for name, others in OTHER_NAMES.items() for one in others}
    by_finding: dict[str, str] = {}
    for column in free:
        finding = finding_of.get(_plain(column), "")
        if finding and all(label_word(value) in LABEL_CODES for value in values[column]):
            by_finding.setdefault(finding, column)
    if by_finding:
        return by_finding

    def lists_findings(cell: str) -> bool:
        return any(_plain(part) in finding_of for part in re.split(r"[|;,]", cell.strip("[]'\"")))

    return next((name for name, cells in free.items() if _share(cells, lists_findings) > _MOST), "")


# --- The config

_BATCH = 32
_EPOCHS = 30
_TOO_FEW = 300  # training studies; half as many of real ones showed nothing, six times as many did
_OF_FEW = (
    "from random weights 163 of Open-i gave a mean zero-shot AUC of .50 (.48 to .55, 500 other "
    "patients), 1,840 gave .74; start from a model: model.pretrained, or base= in Python"
)
_FEW = 1000  # training studies; from fewer a small network learns as much, in minutes
_LEAST_STEPS = {True: 500, False: 1500}  # of few and of many studies, from random weights
_LEAST_JUDGED = 20  # validation studies from which an AUC chooses the step
_MOST_JUDGED = 500


class _Trial(NamedTuple):
    """Outcome of reading the table as a run does."""

    reject_share: float
    splits: Mapping[str, int]  # studies of each
    can_judge: bool  # whether a finding has validation reports with and without it


def init(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV, Parquet or JSONL, a row per image.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The config; TABLE's name by default.")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder that its paths start at; else looked for."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=NAME",
            help=f"A column that is known; roles: {', '.join(ROLES)}. May be repeated.",
        ),
    ] = None,
) -> int:
    """Write a config for a table of images and reports: columns are guessed, shown and tried.

    Names and contents of columns tell which is which; no file is changed and nothing leaves this
    machine. What the guesses miss is named with `--column ROLE=NAME`. The config is tried on the
    whole table as `build_manifest` reads it, and what is left out is counted. Sizes and rates are
    such that a model learns from random weights on this machine; they stand in the file, to be
    changed.
    """
    given = {}
    for text in column or ():
        role, _, name = text.partition("=")
        if not name:
            raise ConfigError(f"--column {text} must read ROLE=NAME, such as report=Befund")
        given[role] = name
    out = out or Path(f"{table.name.split('.')[0]}.yaml")
    if out.exists():
        raise ConfigError(f"{out} exists; name another with --out, or remove it")
    text, studies = config_of_table(table, out, images, given)
    write_text(out, text)
    file = shlex.quote(str(out))
    print(f"wrote {out}; next:", f"  medclip check_data --config {file}",
          f"  medclip plan --config {file} --studies {studies}", f"  medclip run {file}",
          sep="\n")  # fmt: skip
    return 0


def config_of_table(
    table: Path,
    out: Path,
    images: Path | None,
    given: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
) -> tuple[str, int]:
    """Guess and try the columns of a table, print both, and give the text of its config.

    With it comes the number of training studies. With `labels`, finding -> column, or without any
    guessed ({}), it is for an evaluation: it needs no reports, and its rows are those of split
    `test`, all of them where no column names splits. StudyError where nothing is left.
    """
    guess = guess_table(table, images, given, needs_text=labels is None)
    if labels is not None:
        guess.labels = dict(labels) or guess.labels
        guess.unused = {
            name: words for name, words in guess.unused.items() if name not in labels.values()
        }
        guess.columns.setdefault("split", "=test")
    print(*_shown(guess), sep="\n")
    if warning := language_warning(guess.languages):
        print(f"warning: {warning}")
    if "subject_id" not in guess.columns:
        print("no column names patients: each study counts as one, and the same patient may be in "
              "training and in test; name it with --column subject_id=NAME")  # fmt: skip
        own = guess.columns.get("study_id") or guess.columns["path"]
        guess.columns = {"subject_id": own, **guess.columns}
    trial = _try(guess, out)
    studies = trial.splits.get("train", 0)
    if labels is None and studies < _TOO_FEW:
        print(f"warning: {studies} studies to train on are few: {_OF_FEW}")
    return _config_text(guess, trial), studies


def _shown(guess: TableGuess) -> Iterator[str]:
    yield f"{guess.table}: {guess.rows} rows, {guess.encoding or 'UTF-8'}"
    for role, name in guess.columns.items():
        yield f"  {role:12}{name}"
    kinds = {"frontal": "frontal", "lateral": "not frontal", "": "not known, so not frontal"}
    for kind, words in kinds.items():
        if values := [value for value, shown in guess.views.items() if shown == kind]:
            yield f"  {'':12}{words}: {', '.join(values)}"
    by_finding = guess.labels or "- (none: no AUC against labels)"
    yield f"  {'labels':12}{by_finding if isinstance(by_finding, str) else ', '.join(by_finding)}"
    if guess.template:
        yield f"  {'reports':12}- (none: made of labels, as {guess.template!r})"
    for name, words in guess.unused.items():
        yield f"  {'not used':12}{name} ({words})"


def _try(guess: TableGuess, out: Path) -> _Trial:
    # Read the table as a run does, and print what is left of it.
    config = check_config({"work": f"runs/{out.stem}", "source": guess.section()}, str(out))
    source = source_of(config)
    chosen = select(source.raw, config.source)
    with TemporaryDirectory() as folder:
        settings = config.source.model_copy(update={"max_reject_share": 1.0})
        counts = write_manifest(Path(folder), source, settings)
        reports = read_table(Path(folder), manifest.REPORTS).to_pylist()
    listed, reasons = len(source.raw.images), counts["reasons"]
    there = (listed - reasons.get("missing_image", 0)) / max(1, listed)
    splits = ", ".join(f"{name} {size}" for name, size in counts["splits"].items())
    print("tried on the table:",
          f"  images      below {guess.root}, {there:.0%} of those tried are there; "
          f"{counts['images']} of {listed} can be used",
          f"  reports     {counts['reports']} of {counts['patients']} patients; {splits}",
          sep="\n")  # fmt: skip
    if reasons:
        words = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
        print(f"  left out    {words}")
    share = chosen.lost / chosen.candidates
    if share > config.source.max_reject_share:
        print(f"  {chosen.lost} of {chosen.candidates} rows cannot be used, which would end a run: "
              "source.max_reject_share is set above that; correct the table, or be content with "
              "less")  # fmt: skip
    validated = [report for report in reports if report["split"] == "validate"]
    return _Trial(share, counts["splits"], _can_judge(validated, config.evaluate.prompts))


def _can_judge(reports: Sequence[Mapping[str, Any]], prompts: str) -> bool:
    if len(reports) < _LEAST_JUDGED:
        return False
    sections = ("findings", "impression", "last_paragraph")
    read = [
        read_claims("\n\n".join(report[name] for name in sections))
        for report in reports[:_MOST_JUDGED]
    ]
    prompted = {finding.label for finding in read_prompts(find_config(Path(prompts)))}
    present = Counter(finding for one in read for finding in one.asserted)
    unknown = Counter(finding for one in read for finding in one.uncertain)
    return any(0 < present[name] < len(read) - unknown[name] for name in prompted)


def _config_text(guess: TableGuess, trial: _Trial) -> str:
    import torch
    from jinja2 import StrictUndefined, Template

    source = guess.section()
    if trial.reject_share > SourceConfig().max_reject_share:
        source["max_reject_share"] = math.ceil(100 * trial.reject_share) / 100
    training, batch = trial.splits.get("train", 0), _BATCH
    while batch > 2 and 4 * batch > training:
        batch //= 2
    has_gpu = torch.cuda.is_available()
    is_few = training < _FEW and not has_gpu
    least = _LEAST_STEPS[is_few]
    is_long = _EPOCHS * (training // batch) >= least
    template = Template(
        Path(__file__).with_name("report").joinpath("init.jinja").read_text(encoding="utf-8"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text: str = template.render(
        table=guess.table.name,
        source=yaml.safe_dump({"source": source}, allow_unicode=True, sort_keys=False),
        trial=trial,
        has_gpu=has_gpu,
        is_few=is_few,
        is_foreign=bool(language_warning(guess.languages)),
        batch=batch,
        length=f"epochs: {_EPOCHS}" if is_long else f"steps: {least}",
        most_judged=_MOST_JUDGED,
    )
    return text
