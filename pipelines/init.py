"""Write a config for a table of images and reports: columns are guessed, and shown.

Names and contents of columns tell which is which; no file is changed and nothing leaves this
machine. What the guesses miss is named with `--column ROLE=NAME`. Sizes and rates are such that a
model learns from random weights on this machine; they stand in the file, to be changed.
"""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from medclip_dcl.errors import ConfigError, ImageError, StudyError
from medclip_dcl.files import write_text
from medclip_dcl.text.language import language_warning

from .cli import tool_main
from .column_guesses import ROLES, TableGuess, guess_table

if TYPE_CHECKING:
    from medclip_dcl.data.row_images import Bucket

    from .config import Config

_BATCH = 32
_EPOCHS = 30
_LEAST_STEPS = 1500  # in which the demo's encoders learn from random weights
_LEAST_JUDGED = 20  # validation studies from which an AUC chooses the step
_PREVIEWED, _PREVIEW_PX = 5, 288
_SMALL = 100  # studies; fewer keep a larger share to validate


def command(
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
    """Guess the columns of a table, show them, and write a config that can be run."""
    given = dict(_role_and_name(text) for text in column or ())
    out = out or Path(f"{table.name.split('.')[0]}.yaml")
    if out.exists():
        raise ConfigError(f"{out} exists; name another with --out, or remove it")
    guess = guess_table(table, images, given)
    asks = sys.stdin.isatty() and not yes
    print(*summary_of_guess(guess), sep="\n")
    if warning := language_warning(guess.languages):
        print(f"warning: {warning}")
    if "subject_id" not in guess.columns:
        guess = _with_patients(guess, images, given, asks=asks)
    text = config_text(guess, has_gpu=_has_gpu())
    config = _check(text, out)
    page = out.with_suffix(".html")
    _write_preview(page, config)
    print(f"  five images with their reports, to look at: {page}")
    if asks and not typer.confirm(f"Write {out}?", default=True):
        return 0
    write_text(out, text)
    file = shlex.quote(str(out))
    print(f"wrote {out}; next:", f"  medclip check_data --config {file}",
          f"  medclip plan --config {file} --studies {split_sizes(guess)[0]}",
          f"  medclip run {file}", sep="\n")  # fmt: skip
    return 0


def _role_and_name(text: str) -> tuple[str, str]:
    role, equals, name = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--column {text} must read ROLE=NAME, such as report=Befund")
    return role, name


def _with_patients(
    guess: TableGuess, images: Path | None, given: dict[str, str], *, asks: bool
) -> TableGuess:
    """Ask which column names the patients; else each study is one of its own."""
    if asks:
        name = typer.prompt("Which column names the patient? Empty: none", default="")
        if name:
            return guess_table(guess.table, images, {**given, "subject_id": name})
    print("no column names patients: each study counts as one, and the same patient may be in "
          "training and in test; name it with --column subject_id=NAME")  # fmt: skip
    own = guess.columns.get("study_id", guess.columns["path"])
    return replace(guess, columns={"subject_id": own, **guess.columns})


def summary_of_guess(guess: TableGuess) -> Iterator[str]:
    """List what a table seems to be: names of columns and counts, no values of rows."""
    read = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}.get(guess.separator, "")
    form = f", separated by {read}" if read else ""
    yield f"{guess.table}: {guess.rows} rows{form}, {guess.encoding or 'UTF-8'}"
    for role in ROLES:
        if role in guess.columns:
            yield f"  {role:12}{guess.columns[role]}{_about(role, guess)}"
    if isinstance(guess.labels, str):
        yield f"  {'labels':12}{guess.labels or '- (none: no AUC against labels)'}"
    else:
        yield f"  {'labels':12}{', '.join(guess.labels.values())}"


def _about(role: str, guess: TableGuess) -> str:
    words = {
        "subject_id": f"{guess.patients} patients",
        "study_id": f"{guess.studies} studies",
        "path": f"below {guess.root}, {guess.images_there:.0%} of those tried are there",
        "split": ", ".join(f"{name} {size}" for name, size in sorted(guess.split_sizes.items())),
        "view": ", ".join(guess.frontal_views),
    }
    text = words.get(role, "not English" if language_warning(guess.languages) else "")
    return f"  ({text})" if text else ""


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _check(text: str, out: Path) -> "Config":
    from .config import check_config

    return check_config({"work": f"runs/{out.stem}", **yaml.safe_load(text)}, str(out))


def _write_preview(page: Path, config: "Config") -> None:
    """Write a page of five studies, which their owner alone may read."""
    from medclip_dcl.data.selection import select
    from medclip_dcl.tables import spread_rows
    from medclip_reporting.page import render

    from .build_manifest import source_of

    source = source_of(config).raw
    chosen = select(source, config.source)
    images = [image for image in chosen.images if image.study_id in chosen.texts]
    images = [images[row] for row in spread_rows(len(images), _PREVIEWED)] if images else []
    pairs = [
        {**_picture(source.root, image.path), "report": " ".join(chosen.texts[image.study_id])}
        for image in images
    ]
    page.touch(mode=0o600)
    page.write_text(render({"name": config.source.table, "pairs": pairs}, "preview.html"))


def _picture(root: "Path | Bucket", path: str) -> dict[str, str]:
    from medclip_dcl.data.grayscale import square
    from medclip_dcl.data.images import open_image
    from medclip_dcl.data.row_images import image_source
    from medclip_reporting.charts import image_uri

    try:
        source = image_source(root, path)
        image = open_image(source if isinstance(source, Path) else bytes(source))
    except (ImageError, StudyError) as error:
        return {"image": "", "fault": getattr(error, "code", "no file")}
    return {"image": image_uri(square(image, _PREVIEW_PX, equalize=False)), "fault": ""}


def config_text(guess: TableGuess, *, has_gpu: bool) -> str:
    """Write a config for a guessed table as commented YAML."""
    parts = (_source(guess), _sizes(has_gpu=has_gpu), _objective(guess), _train(guess))
    head = f"# Written by `medclip init` for {guess.table.name}; every setting: configs/README.md."
    return "\n".join([head, *(line for part in parts for line in part)]) + "\n"


def split_sizes(guess: TableGuess) -> tuple[int, int]:
    """Estimate the studies that train and those that validate."""
    if guess.split_sizes:
        return guess.split_sizes.get("train", 0), guess.split_sizes.get("validate", 0)
    validate = round(_validate_share(guess) * guess.studies)
    return guess.studies - validate - round(0.1 * guess.studies), validate


def _validate_share(guess: TableGuess) -> float:
    return 0.1 if guess.studies >= _SMALL else 0.2


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
    if guess.prefix_strip:
        yield f"  prefix_strip: {_quoted(guess.prefix_strip)}"
    if guess.frontal_views:
        yield f"  frontal_views: {_quoted(guess.frontal_views)}"
    if not guess.split_sizes:
        yield f"  validate_share: {_validate_share(guess)}             # of the patients"
        yield "  test_share: 0.1"


def _sizes(*, has_gpu: bool) -> Sequence[str]:
    if has_gpu:
        return ("images:", "  size_px: 256", "language_model:", "  batch: 64",
                "model:", "  image:", "    input_px: 224  # a ResNet-18")  # fmt: skip
    return (
        "images:                           # sizes for a machine without a GPU",
        "  size_px: 176",
        "language_model:                   # a small BERT, fitted to these reports",
        "  steps: 800",
        "  batch: 64",
        "model:",
        "  image:                          # a thin ResNet-18",
        "    widths: [32, 64, 128, 256]",
        "    input_px: 160",
    )


def _objective(guess: TableGuess) -> Sequence[str]:
    if language_warning(guess.languages):
        return (
            "objective:                        # findings are read from English reports alone",
            "  kind: infonce",
            "  directions: both",
            "  image_anchor: same",
        )
    return (
        "eta:",
        "  fit: claims                     # for objectives that use eta",
        "objective:                        # relations; see docs/how_it_works.md",
        "  kind: multipositive",
        "  relation: claims",
        "  directions: both",
        "  image_anchor: same",
    )


def _train(guess: TableGuess) -> Iterator[str]:
    training, validating = split_sizes(guess)
    batch = _BATCH
    while batch > 2 and 4 * batch > training:
        batch //= 2
    is_long = _EPOCHS * (training // batch) >= _LEAST_STEPS
    yield "train:"
    yield f"  global_batch: {batch}"
    yield f"  epochs: {_EPOCHS}" if is_long else f"  steps: {_LEAST_STEPS}"
    yield "  learning_rate: 1.0e-3           # of random weights; pretrained ones want 1e-5 to 5e-5"
    yield "  text_learning_rate: 3.0e-4"
    yield "  warmup_steps: 100"
    yield "  save_every_steps: 100           # what a kill can lose; the same command resumes"
    if validating < 2:
        return
    judged = not language_warning(guess.languages) and validating >= _LEAST_JUDGED
    yield "  validate_every_steps: 200"
    if judged:
        yield "  validate_images: 500"
    yield f"  best_metric: {'validation_report_auc' if judged else 'validation_uncorrected_loss'}"


main = tool_main("init", command)

if __name__ == "__main__":
    sys.exit(main())
