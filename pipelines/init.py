"""Write a config for a table of images and reports: columns are guessed, shown and tried.

Names and contents of columns tell which is which; no file is changed and nothing leaves this
machine. What the guesses miss is named with `--column ROLE=NAME`. The config is tried on the whole
table as `build_manifest` reads it, and what is left out is counted. Sizes and rates are such that a
model learns from random weights on this machine; they stand in the file, to be changed.
"""

import json
import math
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
import yaml

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.files import write_text
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.language import language_warning

from .column_guesses import ROLES, TableGuess, guess_table

_BATCH = 32
_EPOCHS = 30
_FEW = 1000  # training studies; from fewer a small network learns as much, in minutes
_LEAST_STEPS = {True: 500, False: 1500}  # of few and of many studies, from random weights
_LEAST_JUDGED = 20  # validation studies from which an AUC chooses the step
_MOST_JUDGED = 500
_SMALL = 100  # studies; fewer keep a larger share to validate


_FOR_GPU = """\
images:
  size_px: 256
language_model:
  batch: 64
model:
  image:
    input_px: 224                 # a ResNet-18"""
_FOR_CPU = """\
images:                           # sizes for a machine without a GPU
  size_px: 176
language_model:                   # a small BERT, fitted to these reports
  steps: 800
  batch: 64
model:
  image:                          # a thin ResNet-18
    widths: [32, 64, 128, 256]
    input_px: 160"""
_FOR_FEW_ON_CPU = """\
images:                           # sizes for few studies, and a machine without a GPU
  size_px: 144
language_model:                   # a small BERT, fitted to these reports
  steps: 400
  batch: 64
model:
  image:                          # the demo's
    depths: [2, 2, 2]
    widths: [16, 32, 64]
    input_px: 128"""
_RELATIONS = """\
objective:                        # cross; see docs/how_it_works.md
  kind: multipositive
  relation: claims
  directions: both
  image_anchor: own"""
_WITHOUT_CLAIMS = """\
objective:                        # findings are read from English reports alone
  kind: infonce
  directions: both
  image_anchor: same"""


@dataclass(frozen=True)
class Trial:
    """Outcome of reading the table as a run does."""

    lines: Sequence[str]
    reject_share: float
    splits: Mapping[str, int]
    """Studies of each split."""
    can_judge: bool
    """Whether a finding has validation reports with and without it."""


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
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
) -> int:
    """Write a config for a table of images and reports: columns are guessed, shown and tried.

    Names and contents of columns tell which is which; no file is changed and nothing leaves this
    machine. What the guesses miss is named with `--column ROLE=NAME`. The config is tried on the
    whole table as `build_manifest` reads it, and what is left out is counted. Sizes and rates are
    such that a model learns from random weights on this machine; they stand in the file, to be
    changed.
    """
    given = dict(_role_and_name(text) for text in column or ())
    out = out or Path(f"{table.name.split('.')[0]}.yaml")
    if out.exists():
        raise ConfigError(f"{out} exists; name another with --out, or remove it")
    text, trial = config_of_table(table, out, images, given)
    asks = sys.stdin.isatty() and not yes
    if asks and not typer.confirm(f"Write {out}?", default=True):
        return 0
    write_text(out, text)
    file = shlex.quote(str(out))
    print(f"wrote {out}; next:", f"  medclip check_data --config {file}",
          f"  medclip plan --config {file} --studies {trial.splits.get('train', 0)}",
          f"  medclip run {file}", sep="\n")  # fmt: skip
    return 0


def config_of_table(
    table: Path,
    out: Path,
    images: Path | None,
    given: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
) -> tuple[str, Trial]:
    """Guess and try the columns of a table, print both, and give the text of its config.

    With `labels`, finding -> column, or without any guessed ({}), it is for an evaluation: it needs
    no reports, and its rows are those of split `test`, all of them where no column names splits.
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
        own = guess.columns.get("study_id", guess.columns["path"])
        guess.columns = {"subject_id": own, **guess.columns}
    trial = _try(guess, out)
    print("tried on the table:", *trial.lines, sep="\n  ")
    return config_text(guess, trial), trial


def _role_and_name(text: str) -> tuple[str, str]:
    role, equals, name = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--column {text} must read ROLE=NAME, such as report=Befund")
    return role, name


def _shown(guess: TableGuess) -> Iterator[str]:
    yield f"{guess.table}: {guess.rows} rows, {guess.encoding or 'UTF-8'}"
    for role in ROLES:
        if role in guess.columns:
            yield f"  {role:12}{guess.columns[role]}"
    if guess.views:
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


def _try(guess: TableGuess, out: Path) -> Trial:
    """Read the table as a run does; `StudyError` where nothing is left."""
    from medclip_dcl.core.tables import read_table
    from medclip_dcl.data import manifest
    from medclip_dcl.data.selection import select

    from .build_manifest import source_of
    from .config import check_config

    tree = {
        "work": f"runs/{out.stem}",
        "source": yaml.safe_load("\n".join(_source(guess)))["source"],
    }
    config = check_config(tree, str(out))
    source = source_of(config)
    chosen = select(source.raw, config.source)
    with TemporaryDirectory() as folder:
        settings = config.source.model_copy(update={"max_reject_share": 1.0})
        found = manifest.write_manifest(Path(folder), source, settings)
        reports = read_table(Path(folder), manifest.REPORTS).to_pylist()
    listed = len(source.raw.images)
    there = listed - found["reasons"].get("missing_image", 0)
    splits = ", ".join(f"{name} {size}" for name, size in found["splits"].items())
    lines = [
        f"images      below {guess.root}, {there / max(1, listed):.0%} of those tried are there; "
        f"{found['images']} of {listed} can be used",
        f"reports     {found['reports']} of {found['patients']} patients; {splits}",
    ]
    if found["reasons"]:
        reasons = (f"{reason} {count}" for reason, count in found["reasons"].items())
        lines.append(f"left out    {', '.join(reasons)}")
    if source.raw.labels is not None:
        labels = manifest.labels_of(source.raw.labels, chosen.subjects)
        lines += _label_lines(labels.drop_columns(["study_id"]).to_pydict(), len(chosen.subjects))
    share = chosen.lost / chosen.candidates
    if share > config.source.max_reject_share:
        lines.append(
            f"{chosen.lost} of {chosen.candidates} rows cannot be used, which would end a run: "
            "source.max_reject_share is set above that; correct the table, or be content with less"
        )
    validated = [report for report in reports if report["split"] == "validate"]
    return Trial(lines, share, found["splits"], _can_judge(validated, config.evaluate.prompts))


def _label_lines(labels: Mapping[str, Sequence[int | None]], studies: int) -> Iterator[str]:
    for finding, codes in labels.items():
        counts = Counter(code for code in codes if code is not None)
        if counts:
            words = f"{counts[1]} present, {counts[0]} absent, {counts[-1]} uncertain"
            lack = "" if counts[1] and counts[0] else ": no AUC, which needs present and absent"
            yield f"{'labels':12}{finding}: {words}, {studies - counts.total()} blank{lack}"


def _can_judge(reports: Sequence[Mapping[str, Any]], prompts: str) -> bool:
    from medclip_dcl.core.files import find_config
    from medclip_dcl.inference.prompts import read_prompts
    from medclip_dcl.text.labeler.labels import read_claims

    if len(reports) < _LEAST_JUDGED:
        return False
    sections = ("findings", "impression", "last_paragraph")
    read = [
        read_claims("\n\n".join(report[name] for name in sections))
        for report in reports[:_MOST_JUDGED]
    ]
    asked = {finding.label for finding in read_prompts(find_config(Path(prompts)))}
    present = Counter(finding for one in read for finding in one.asserted)
    unknown = Counter(finding for one in read for finding in one.uncertain)
    return any(0 < present[name] < len(read) - unknown[name] for name in asked)


def config_text(guess: TableGuess, trial: Trial) -> str:
    """Write a config for a guessed table as commented YAML."""
    import torch

    source = "\n".join(_source(guess))
    if trial.reject_share > 0.01:
        share = math.ceil(100 * trial.reject_share) / 100
        source += f"\n  max_reject_share: {share}          # of rows that cannot be used"
    training, batch = trial.splits.get("train", 0), _BATCH
    while batch > 2 and 4 * batch > training:
        batch //= 2
    is_few = training < _FEW and not torch.cuda.is_available()
    least = _LEAST_STEPS[is_few]
    is_long = _EPOCHS * (training // batch) >= least
    for_cpu = _FOR_FEW_ON_CPU if is_few else _FOR_CPU
    validation = ""
    if trial.splits.get("validate", 0) >= 2:
        validation = "\n  validate_every_steps: 200\n  best_metric: validation_uncorrected_loss"
        if not language_warning(guess.languages) and trial.can_judge:
            validation = f"""
  validate_every_steps: 200
  validate_images: {_MOST_JUDGED}
  best_metric: validation_report_auc"""
    return f"""\
# Written by `medclip init` for {guess.table.name}; every setting: configs/README.md.
{source}
{_FOR_GPU if torch.cuda.is_available() else for_cpu}
{_WITHOUT_CLAIMS if language_warning(guess.languages) else _RELATIONS}
train:
  global_batch: {batch}
  {f"epochs: {_EPOCHS}" if is_long else f"steps: {least}"}
  learning_rate: 1.0e-3           # of random weights; pretrained ones want 1e-5 to 5e-5
  text_learning_rate: 3.0e-4
  warmup_steps: 100
  save_every_steps: 100           # what a kill can lose; the same command resumes{validation}
"""


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)  # JSON is YAML


def _source(guess: TableGuess) -> Iterator[str]:
    root = guess.root.resolve()
    table = guess.table.resolve()
    below = table.relative_to(root) if table.is_relative_to(root) else table
    yield "source:"
    yield "  kind: table"
    yield f"  root: {_quoted(str(root))}"
    yield f"  table: {_quoted(str(below))}"
    if guess.encoding:
        yield f"  fallback_encoding: {guess.encoding}"
    yield "  columns:                        # the table's own names stand on the right"
    for role, name in guess.columns.items():
        yield f"    {role}: {_quoted(name)}"
    if guess.labels:
        yield f"    labels: {_quoted(guess.labels)}"
        if not set(guess.labels) <= set(LABELS) and not isinstance(guess.labels, str):
            yield f"  findings: {_quoted([*guess.labels])}"
    if guess.template:
        yield f"  template: {_quoted(guess.template)}   # reports are made of labels"
    if guess.prefix_strip:
        yield f"  prefix_strip: {_quoted(guess.prefix_strip)}"
    frontal = [value for value, kind in guess.views.items() if kind == "frontal"]
    if set(frontal) - {"AP", "PA", "FRONTAL"}:
        yield f"  frontal_views: {_quoted(frontal)}"
    if "split" not in guess.columns:
        share = 0.1 if guess.rows >= _SMALL else 0.2
        yield f"  validate_share: {share}             # of the patients"
        yield "  test_share: 0.1"
