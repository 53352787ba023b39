"""Ask a running service about an image: its findings, where a phrase is seen, what is similar."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from medclip_dcl.client import Client, answer_question, client_parser
from medclip_dcl.core.errors import ConfigError, ServiceError
from medclip_dcl.core.progress import Progress
from medclip_dcl.schemas import ClassifyAnswer, RefusedImage

from .job import run_resumable

_KINDS = ("score", "probability", "decision")
"""What the columns of a table hold of a finding or head."""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_MOST_BYTES = 16 << 20
"""Of the images that are sent at once: below what a service takes in a body."""


def ask(context: typer.Context) -> int:
    """Ask with the words of the light client, which has no tables.

    With `--csv` any number of images has a row each; a killed run goes on where it was.
    """
    words = client_parser("medclip ask", with_tables=True).parse_args(context.args)
    table = getattr(words, "csv", None)
    if not table:
        images = getattr(words, "image", None) or []
        for image in images if isinstance(images, list) else [images]:
            if image.is_dir():
                raise ConfigError(
                    f"{image} is a folder; name an image, or write a row for each of its images "
                    "with `medclip ask classify FOLDER --csv FILE`"
                )
        return answer_question(words)
    if words.explain:
        raise ConfigError("--explain draws heatmaps, which no row of --csv holds; give one")
    with Client(words.url, words.key_file or "", ca=words.ca) as client:
        return run_resumable("ask", lambda: write_findings(client, words.image, table))


def write_findings(client: Client, images: Sequence[Path], table: Path) -> None:
    """Write a row for each image, and each file of a folder, that the table does not have yet.

    Columns: `image`; `model`, the digest of what answered; score, probability and decision of each
    finding and head; `refused`: why an image has none of them. ConfigError where the table has
    other columns, or rows of another model.
    """
    if table.is_dir() or not table.parent.is_dir():
        raise ConfigError(f"--csv {table}: name a file in a folder that exists")
    names = [image.as_posix() for image in images if not image.is_dir()]
    for folder in (image for image in images if image.is_dir()):
        names += _files_below(folder, table.resolve())
    model = client.model()
    labels = [each["name"] for each in model.card["prompts"]] + [each.name for each in model.heads]
    titles = [_cell(f"{label} {kind}") for label in labels for kind in _KINDS]
    columns = ["image", "model", *titles, "refused"]
    written = _read_images(table, columns, model.digest)
    waiting = [name for name in dict.fromkeys(names) if _name_cell(name) not in written]
    at_once = int(model.limits["max_images"])
    with (
        table.open("a", encoding="utf-8", newline="") as stream,
        Progress("images asked", len(names), "image", len(names) - len(waiting)) as progress,
    ):
        rows = csv.writer(stream, lineterminator="\n")
        if not stream.tell():
            rows.writerow(columns)
        for batch in _batches(waiting, at_once):
            answers = _answers(client, batch)
            of = {each.model for each in answers if isinstance(each, ClassifyAnswer)}
            if of - {model.digest}:
                raise ConfigError(
                    f"--csv {table}: the service answers with another model since this run began; "
                    "name another file, which holds the rows of that one"
                )
            for name, answer in zip(batch, answers, strict=True):
                rows.writerow([_name_cell(name), model.digest, *_cells(answer, len(titles))])
            stream.flush()
            progress.advance(len(batch))


def _files_below(folder: Path, table: Path) -> list[str]:
    """List the files below a folder, without hidden ones and the table itself."""
    return sorted(
        path.as_posix()
        for path in folder.rglob("*")
        if path.is_file()
        and path.resolve() != table
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _batches(names: Sequence[str], at_once: int) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in names:
        more = Path(name).stat().st_size if Path(name).is_file() else 0
        if batch and (len(batch) == at_once or size + more > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += more
    if batch:
        yield batch


def _answers(client: Client, batch: Sequence[str]) -> list[ClassifyAnswer | RefusedImage]:
    try:
        return client.classify_all([Path(name) for name in batch])
    except ServiceError as error:
        if error.code != "body_too_large" or len(batch) > 1:
            raise
        return [RefusedImage(code=error.code, message=str(error))]


def _cell(text: str) -> str:
    """Keep a spreadsheet from taking a text for a formula."""
    return f"'{text}" if text.startswith(_FORMULAS) else text


def _name_cell(name: str) -> str:
    """Write a path as one line that is no formula: `=1.png` as `./=1.png`, which is the same."""
    plain = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in name)
    return f"./{plain}" if name.startswith(_FORMULAS) else plain


def _read_images(table: Path, columns: Sequence[str], digest: str) -> set[str]:
    """Return the images of a table's rows; the end of one that a kill cut off is taken away."""
    if not table.exists():
        return set()
    whole = table.read_bytes()
    whole = whole[: whole.rfind(b"\n") + 1]
    head, *rows = csv.reader(io.StringIO(whole.decode("utf-8", "replace"))) if whole else [columns]
    if head != list(columns):
        raise ConfigError(f"--csv {table}: its columns are not this model's; name another file")
    if others := {row[1] for row in rows} - {digest}:
        raise ConfigError(
            f"--csv {table}: it has rows of model {min(others)[:12]}, {digest[:12]} answers now; "
            "name another file"
        )
    with table.open("r+b") as stream:
        stream.truncate(len(whole))
    return {row[0] for row in rows}


def _cells(answer: ClassifyAnswer | RefusedImage, count: int) -> Iterator[Any]:
    if isinstance(answer, RefusedImage):
        yield from [""] * count
        yield _cell(answer.code)
        return
    for each in (*answer.findings, *answer.heads):
        yield from (getattr(each, kind) for kind in _KINDS)
    yield ""
