"""A config for a table of images and reports: its columns are guessed, shown and tried.

Columns are guessed by their names and by what they hold, as `_RULES` has it. Whether a path names a
file is asked as a run asks it: `relative_to_root`, then `path_under`.
"""

import re
import shlex
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import typer
import yaml

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.core.files import find_config, path_under, write_text
from medclip_dcl.core.tables import SPLITS
from medclip_dcl.data.selection import by_reason, require_few_rejects, select, split_patients
from medclip_dcl.data.source_settings import (
    LABEL_CODES,
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

TEMPLATE = "{finding} in the chest X-ray."
_SAMPLE = 200  # values of a column
_LEAST_WORDS = 4.0  # of a text in a column without a usual name, on average
_MOST = 0.8


@dataclass
class TableGuess:
    """The table of a source, and what its columns seem to be."""

    table: Path
    root: Path
    encoding: str
    """`source.fallback_encoding`: empty for UTF-8 and UTF-16."""
    rows: int
    columns: dict[str, str]
    """Role -> column, as `source.columns` has it; without `subject_id` where none has patients."""
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
        """Section `source` of a config; without patients each study counts as one."""
        root, table = self.root.resolve(), self.table.resolve()
        own = {"subject_id": self.columns.get("study_id", self.columns.get("path", ""))}
        frontal = [value for value, kind in self.views.items() if kind == "frontal"]
        are_ours = isinstance(self.labels, str) or set(self.labels) <= set(LABELS)
        # A small table keeps a larger share to validate.
        shares = {"validate_share": 0.1 if self.rows >= 100 else 0.2, "test_share": 0.1}
        section = {
            "kind": "table",
            "root": str(root),
            "table": str(table.relative_to(root) if table.is_relative_to(root) else table),
            "fallback_encoding": self.encoding,
            "columns": own | self.columns | ({"labels": self.labels} if self.labels else {}),
            "findings": [] if are_ours else [*self.labels],
            "template": self.template,
            "prefix_strip": self.prefix_strip,
            "frontal_views": frontal if set(frontal) - {*SourceConfig().frontal_views} else [],
            **({} if "split" in self.columns else shares),
        }
        return {name: value for name, value in section.items() if value}


def guess_table(
    path: Path,
    images: Path | None = None,
    given: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> TableGuess:
    """Read a table and guess its columns; `images` is the folder that its paths start at.

    `given`: role -> column, taken as it is. With `labels`, finding -> column, or {} for those that
    are guessed, it is for an evaluation: it needs no reports, and its rows are those of split
    `test`, all of them where no column names splits.

    Raises:
        ConfigError: `given` names another role, or a column that is not there.
        StudyError: the table cannot be read, has no header, or no images, reports or ids are found.
    """
    columns = dict(given or {})
    table, encoding = _read(path)
    values = {
        item.name: strings(table.column(item.name), path.name, item.name)
        for item in table.schema
        if not pa.types.is_nested(item.type)
    }
    if unknown := sorted(set(columns) - set(ROLES)):
        raise ConfigError(f"{unknown} are no roles of columns; use those of {list(ROLES)}")
    if absent := [name for name in columns.values() if name not in values]:
        raise ConfigError(f"the table has no column {absent}; it has {list(values)}")
    samples = {name: _sample(column) for name, column in values.items()}
    lists = {
        item.name: _sample(pc.list_flatten(table.column(item.name)).to_pylist())
        for item in table.schema
        if is_list(item.type) and pa.types.is_string(item.type.value_type)
    }
    image = _find_images(path, samples | lists, images, columns.get("path", ""))
    if image.column.lower().endswith(_SUFFIXES) or not _are_short([*samples]):
        raise StudyError(
            f"the first row of table {path} seems to be data; write the names of its columns above"
        )
    columns["path"] = image.pattern
    used = {image.column, *columns.values()}
    free = {name: sample for name, sample in samples.items() if sample and name not in used}
    columns |= _guess_columns(values, free, columns)
    if image.column in lists:  # a row is a study
        columns["image"] = columns.pop("path")
        short = [name for name, sample in free.items() if _are_short(sample)]
        ids = [name for name in short if len({*values[name]} - {""}) == table.num_rows]
        if ids:
            columns.setdefault("study_id", ids[0])
        if columns.keys().isdisjoint(("subject_id", "study_id")):
            raise StudyError(
                f"no column of table {path} names patients or studies; add a column of ids"
            )
    texts = [columns[role] for role in _TEXTS if role in columns]
    listing = columns.pop("labels", "")
    label_columns = dict(labels or {}) or _label_columns(values, free) or listing
    if labels is None and not texts and not label_columns:
        raise StudyError(
            f"no column of table {path} holds reports; name it with --column report=NAME. Images "
            "without reports: configs/archive.yaml"
        )
    if labels is not None:
        columns.setdefault("split", "=test")
    used |= {*columns.values()}
    used |= {label_columns} if isinstance(label_columns, str) else {*label_columns.values()}
    views = {value.strip().upper() for value in values.get(columns.get("view", ""), ())} - {""}
    return TableGuess(
        table=path,
        root=image.root,
        encoding=encoding,
        rows=table.num_rows,
        columns=columns,
        labels=label_columns,
        prefix_strip=image.strip,
        template=TEMPLATE if labels is None and not texts else "",
        languages=count_languages([text for name in texts for text in samples[name]]),
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
    # The table as a run reads it, fields of objects by dotted name, and its fallback encoding.
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


def _sample(column: Sequence[str | None], most: int = _SAMPLE) -> list[str]:
    filled = [value.strip() for value in column if value and value.strip()]
    return filled[:: max(1, len(filled) // most)][:most]


def _share(values: Sequence[Any], is_such: Callable[[Any], object]) -> float:
    return fmean(bool(is_such(value)) for value in values) if values else 0.0


def _words(values: Sequence[str]) -> float:
    return fmean(len(value.split()) for value in values) if values else 0.0


def _in_words(values: Sequence[str]) -> str:
    # What a column holds: its values where they are few and short, as categories are.
    counts = Counter(value.strip() for value in values)
    blank = counts.pop("", 0)
    are_few = len(counts) <= 12 and all(len(value) <= 32 for value in counts)
    words = sorted(counts) if are_few else [f"{len(counts)} different values"]
    return ", ".join(words + [f"{blank} blank"] * bool(blank))


def _are_short(values: Sequence[str]) -> bool:
    return _words(values) < _LEAST_WORDS


def _are_various(values: Sequence[str]) -> bool:
    return 2 * len(set(values)) > len(values)


def _are_paths(values: Sequence[str]) -> bool:
    return _share(values, lambda path: path.lower().endswith(_SUFFIXES) or "/" in path) > _MOST


def _are_splits(values: Sequence[str]) -> bool:
    return all(SPELLINGS.get(value.lower(), value.lower()) in SPLITS for value in values)


def _are_texts(values: Sequence[str]) -> bool:
    is_list = _share(values, lambda value: "|" in value) > 0.1  # of labels
    return not is_list and _share(values, _is_wording) > 0.5


def _is_wording(value: str) -> bool:
    # Words, and no name of a file: `Normal.` is a report, `reports/s1.txt` and `N-4` are none.
    is_file = re.fullmatch(r"\S*(/\S+|\.[a-z]{2,4})", value) is not None
    return not is_file and re.search(r"[^\W\d_]{3}|[^\x00-\u024f]", value) is not None


def _names_finding(cell: str) -> bool:
    return any(_plain(part) in _FINDING_OF for part in re.split(r"[|;,]", cell.strip("[]'\"")))


def _plain(name: str) -> str:
    # PatientID, patient-id and "Patient ID" are one name.
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|\W+", "_", name)
    return re.sub(r"_+", "_", parted).strip("_").lower()


class _Rule(NamedTuple):
    """What tells the column of a role from others."""

    names: str  # usual ones, as `_plain` writes them
    fits: Callable[[Sequence[str]], bool]  # whether values can be of it
    likeness: Callable[[Sequence[str]], float] = lambda _: 0  # of values under any other name

    def is_called(self, column: str) -> bool:
        # Of a field of an object its own name may tell, as in `report.findings`.
        names = (column, column.split(".")[-1])
        return any(re.fullmatch(self.names, _plain(name)) for name in names)


_ID = r"(_?(id|ids|nr|no|number|key|uid|hash|code))?"
_RULES = {
    "path": _Rule(
        r"(.*_)?(path|file|filename|file_name|filepath|image|img|images|dicom)(_path|_file)?",
        # A patient, whose number is repeated, is the name of an image by chance.
        lambda values: _are_short(values) and (_are_paths(values) or _are_various(values)),
    ),
    "subject_id": _Rule(
        rf"((deid|anon|id)_)?(patient(en)?|paciente|subject|person|mrn|pid|pat){_ID}", _are_short
    ),
    "study_id": _Rule(
        rf"(id_)?(study|exam|examination|accession|estudio)(_instance)?{_ID}", _are_short
    ),
    "view": _Rule(
        r"(.*_)?(views?|view_?position|projection|projektion|proyeccion)(_name)?",
        lambda values: _share(values, read_view) > _MOST,
        lambda values: _are_short(values) and "frontal" in map(read_view, values),
    ),
    "split": _Rule(r"(.*_)?(split|subset|partition|fold)", _are_splits),
    "findings": _Rule(r"findings(_text|_section)?", _are_texts),
    "impression": _Rule(r"(impressions?|conclusion|beurteilung)(_text|_section)?", _are_texts),
    "report": _Rule(
        r"(.*_)?(reports?|narrative|befund|bericht|informe)(_text|_en|_clean|_body)?|text",
        _are_texts,
        lambda values: 0 if _are_short(values) or not _are_various(values) else _words(values),
    ),
    "labels": _Rule(r".*", lambda values: _share(values, _names_finding) > _MOST),  # a list of them
}
ROLES = tuple(role for role in _RULES if role != "labels")
"""Roles that are guessed besides labels."""
_TEXTS = ("report", "findings", "impression")
_FINDING_OF = {
    _plain(name): finding for finding in LABELS for name in (finding, *OTHER_NAMES.get(finding, ()))
}


def _guess_columns(
    values: Mapping[str, list[str]], free: dict[str, list[str]], given: Mapping[str, str]
) -> dict[str, str]:
    # Role -> the first column that is free and has a usual name, else the one most like it; it is
    # taken from `free`.
    columns: dict[str, str] = {}
    for role, rule in _RULES.items():
        rivals = _TEXTS if role in _TEXTS else (role,)
        if not given.keys().isdisjoint(rivals):
            continue
        fitting = {name: sample for name, sample in free.items() if rule.fits(sample)}
        choices = [name for name in fitting if rule.is_called(name)]
        if not choices and columns.keys().isdisjoint(rivals):
            # Of two that are alike, such as views, the one that more rows fill.
            likeness = {
                name: rule.likeness(sample) * _share(values[name], str.strip)
                for name, sample in fitting.items()
            }
            choices = sorted(filter(likeness.get, fitting), key=lambda name: -likeness[name])
        if choices:
            columns[role] = choices[0]
            del free[choices[0]]
    sections = [columns[role] for role in ("findings", "impression") if role in columns]
    if sections and (report := columns.pop("report", "")):
        pairs = zip(values[report], values[sections[0]], strict=True)
        within = _share([*filter(all, pairs)], lambda pair: pair[1] in pair[0])
        if len(sections) == 1 and within > 0.5:
            columns = {role: name for role, name in columns.items() if name not in sections}
            return columns | {"report": report}
        columns.setdefault("findings", report)
    return columns


def _label_columns(
    values: Mapping[str, list[str]], free: Mapping[str, list[str]]
) -> dict[str, str]:
    # Finding -> the first column of codes with its name.
    columns: dict[str, str] = {}
    for name in free:
        finding = _FINDING_OF.get(_plain(name), "")
        if finding and all(label_word(value) in LABEL_CODES for value in values[name]):
            columns.setdefault(finding, name)
    return columns


# --- Which column names images

_SUFFIXES = (".dcm", ".dicom", ".jpg", ".jpeg", ".png")
_WINDOWS = re.compile(r"\\.*\.(dcm|dicom|jpe?g|png)$", re.IGNORECASE)


class _Images(NamedTuple):
    """A column that names images, and where they are; of several that with most by `rank`."""

    rank: tuple[float, ...]
    column: str
    pattern: str  # `source.columns.path`
    root: Path
    strip: str  # `source.prefix_strip`


def _find_images(
    path: Path, samples: Mapping[str, list[str]], images: Path | None, given: str
) -> _Images:
    # Paths may start at the table, here, or in a folder next to it.
    home = path.absolute().parent
    inside = sorted(item for item in home.iterdir() if item.is_dir() and item.name[0] != ".")
    nearby = [*dict.fromkeys((home, Path.cwd())), *inside[:20], home.parent]
    roots = [images.absolute()] if images else nearby
    columns = [given] if given else [name for name in samples if _RULES["path"].fits(samples[name])]
    candidates = [one for name in columns for one in _candidates(name, samples[name], roots)]
    if candidates:
        return max(candidates, key=lambda candidate: candidate.rank)
    windows = [name for name, values in samples.items() if _share(values, _WINDOWS.search) > _MOST]
    remedy = (
        f"the paths of column {windows[0]!r} have backslashes; write them with /"
        if windows
        else "name the folder that its paths start at with --images FOLDER"
    )
    raise StudyError(f"no column of table {path} names images that are there; {remedy}")


def _candidates(column: str, values: Sequence[str], roots: Sequence[Path]) -> Iterator[_Images]:
    # Paths may begin with folders that are not here, and names may lack their ending.
    tried = _sample(values, 40)
    endings = ("",) if _are_paths(tried) else (*_SUFFIXES, *map(str.upper, _SUFFIXES))
    starts = sorted({value[: end.end()] for value in tried[:2] for end in re.finditer("/+", value)})
    absolute = [Path(start) for start in reversed(starts) if start.startswith("/") and start != "/"]
    for strip, root, ending in product(["", *starts], [*roots, *absolute], endings):
        relative = relative_to_root(root, SourceConfig(kind="table", prefix_strip=strip))
        is_there = partial(_is_there, root, relative, ending)
        if any(map(is_there, (*tried[:3], *tried[-1:]))):
            share = _share(tried, is_there)
            rank = (share > 0.5, not ending, share, _RULES["path"].is_called(column))
            pattern = f"{{{column}}}{ending}" if ending else column
            yield _Images(rank, column, pattern, root, strip)


def _is_there(root: Path, relative: Callable[[str], str], ending: str, value: str) -> bool:
    with suppress(StudyError):
        path_under(root, relative(value + ending))
        return True
    return False


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
    given = {role: name for role, _, name in (text.partition("=") for text in column or ())}
    if nameless := [role for role, name in given.items() if not name]:
        raise ConfigError(f"--column {nameless[0]} must read ROLE=NAME, such as report=Befund")
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

    With it comes the number of training studies; `labels` is for an evaluation, as of
    `guess_table`. StudyError where nothing is left.
    """
    guess = guess_table(table, images, given, labels)
    print(*_guess_lines(guess), sep="\n")
    section = guess.section()
    config = check_config({"work": f"runs/{out.stem}", "source": section}, str(out))
    source = source_of(config)
    chosen = select(source.raw, config.source)
    require_few_rejects(chosen, 1.0)
    split_of = split_patients(source, chosen, config.source)
    reports = defaultdict[str, list[str]](list)  # of each split
    for study, text in sorted(chosen.texts.items()):
        reports[split_of[chosen.subjects[study]]].append("\n\n".join(text))
    listed, reasons = len(source.raw.images), by_reason(chosen.rejects)
    there = 1 - reasons["missing_image"] / max(1, listed)
    splits = ", ".join(f"{name} {len(texts)}" for name, texts in sorted(reports.items()))
    print("tried on the table:",
          f"  images      below {guess.root}, {there:.0%} of those tried are there; "
          f"{len(chosen.images)} of {listed} can be used",
          f"  reports     {len(chosen.texts)} of {len(split_of)} patients; {splits}",
          sep="\n")  # fmt: skip
    if reasons:
        words = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        print(f"  left out    {words}")
    if chosen.least_share > config.source.max_reject_share:
        section["max_reject_share"] = chosen.least_share
        print(f"  {chosen.lost} of {chosen.candidates} rows cannot be used, which would end a run: "
              "source.max_reject_share is set above that; correct the table, or be content with "
              "less")  # fmt: skip
    studies = len(reports["train"])
    if labels is None and studies < _TOO_FEW:
        print(f"warning: {studies} studies to train on are few: {_OF_FEW}")
    return _config_text(guess, section, reports, config.evaluate.prompts), studies


def _guess_lines(guess: TableGuess) -> Iterator[str]:
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
    if warning := language_warning(guess.languages):
        yield f"warning: {warning}"
    if "subject_id" not in guess.columns:
        yield (
            "no column names patients: each study counts as one, and the same patient may be in "
            "training and in test; name it with --column subject_id=NAME"
        )


def _can_judge(reports: Sequence[str], prompts: str) -> bool:
    labels = [read_claims(report) for report in reports]
    return len(reports) >= _LEAST_JUDGED and any(
        len({name in one.asserted for one in labels if name not in one.uncertain}) > 1
        for name in {finding.label for finding in read_prompts(find_config(Path(prompts)))}
    )


def _config_text(
    guess: TableGuess,
    section: Mapping[str, Any],
    reports: defaultdict[str, list[str]],
    prompts: str,
) -> str:
    import torch
    from jinja2 import StrictUndefined, Template

    training, validated = len(reports["train"]), reports["validate"]
    batch = next((size for size in (_BATCH, 16, 8, 4) if 4 * size <= training), 2)
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
    return str(
        template.render(
            table=guess.table.name,
            source=yaml.safe_dump({"source": section}, allow_unicode=True, sort_keys=False),
            has_gpu=has_gpu,
            is_few=is_few,
            is_foreign=bool(language_warning(guess.languages)),
            batch=batch,
            length=f"epochs: {_EPOCHS}" if is_long else f"steps: {least}",
            validated=len(validated),
            can_judge=_can_judge(validated[:_MOST_JUDGED], prompts),
            most_judged=_MOST_JUDGED,
        )
    )
