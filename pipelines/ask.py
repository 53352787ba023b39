"""Ask a running service about an image: its findings, where a phrase is seen, what is similar."""

import csv
import io
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from medclip_dcl.client import Client, answer_question
from medclip_dcl.core.errors import ConfigError, MedclipError, ServiceError
from medclip_dcl.core.progress import Progress
from medclip_dcl.schemas import ClassifyAnswer, RefusedImage

from .job import run_resumable

Image = Annotated[Path, typer.Argument(metavar="IMAGE", help="DICOM, JPEG or PNG.")]
Url = Annotated[str, typer.Option("--url", help="Address of the service.")]
KeyFile = Annotated[Path | None, typer.Option("--key-file", help="File with the API key.")]
Authorities = Annotated[
    Path | None,
    typer.Option("--ca", help="PEM file of the authorities that sign the service's certificate."),
]
_URL = "http://127.0.0.1:8000"
_KINDS = ("score", "probability", "decision")
"""What the columns of a table hold of a finding or head."""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_MOST_BYTES = 16 << 20
"""Of the images that are sent at once: below what a service takes in a body."""

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode="markdown", help=__doc__
)


def _read_box(text: str) -> tuple[float, ...]:
    """Read `X,Y,WIDTH,HEIGHT`."""
    numbers = tuple(map(float, text.split(",")))
    if len(numbers) != 4:
        raise typer.BadParameter("give four numbers, such as 100,80,240,200")
    return numbers


@app.command("classify")
def ask_findings(
    image: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE...", help="DICOM, JPEG or PNG; folders too with --csv."),
    ],
    explain: Annotated[bool, typer.Option("--explain", help="With heatmaps.")] = False,
    table: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="A row an image, in place of JSON."),
    ] = None,
    url: Url = _URL,
    key_file: KeyFile = None,
    ca: Authorities = None,
) -> None:
    """Ask which findings images show, and what the model's heads say.

    Up to 32 images; with --csv any number, and a killed run goes on where it was.
    """
    if table is not None:
        if explain:
            raise typer.BadParameter("--explain draws heatmaps, which no row of --csv holds")
        try:
            with Client(url, key_file or "", ca=ca) as client:
                raise typer.Exit(run_resumable("ask", lambda: write_findings(client, image, table)))
        except MedclipError as error:
            typer.echo(f"ask: {error}", err=True)
            raise typer.Exit(error.exit_code) from error
    asked = Namespace(
        question="classify", image=image, explain=explain, url=url, key_file=key_file, ca=ca
    )
    raise typer.Exit(answer_question(asked))


@app.command("ground")
def ask_places(
    image: Image,
    phrase: Annotated[list[str], typer.Argument(metavar="PHRASE...", help="What is looked for.")],
    threshold: Annotated[
        float | None, typer.Option(help="Score from which boxes are traced.")
    ] = None,
    url: Url = _URL,
    key_file: KeyFile = None,
    ca: Authorities = None,
) -> None:
    """Ask where phrases are seen on an image."""
    asked = Namespace(
        question="ground", image=image, phrase=phrase, threshold=threshold, url=url,
        key_file=key_file, ca=ca,
    )  # fmt: skip
    raise typer.Exit(answer_question(asked))


@app.command("embed")
def ask_vectors(
    image: Annotated[
        list[Path] | None, typer.Argument(metavar="IMAGE...", help="DICOM, JPEG or PNG.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="A sentence, not an image; may be repeated.")
    ] = None,
    what: Annotated[Literal["global", "regions"], typer.Option(help="Of each image.")] = "global",
    box: Annotated[
        list[Any] | None,  # typer knows no list of tuples
        typer.Option(
            metavar="X,Y,WIDTH,HEIGHT",
            parser=_read_box,
            help="Of the vector, in pixels: once for each image, in their order.",
        ),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16"], typer.Option(help="Of the numbers.")
    ] = "float32",
    encoding: Annotated[
        Literal["json", "base64"], typer.Option("--format", help="How vectors are written.")
    ] = "json",
    url: Url = _URL,
    key_file: KeyFile = None,
    ca: Authorities = None,
) -> None:
    """Ask for the vectors of images or sentences."""
    asked = Namespace(
        question="embed", image=image or [], text=text or [], what=what, box=box or [],
        dtype=dtype, format=encoding, url=url, key_file=key_file, ca=ca,
    )  # fmt: skip
    raise typer.Exit(answer_question(asked))


@app.command("retrieve")
def ask_similar(
    target: Annotated[Literal["image", "text"], typer.Option(help="What is wanted.")],
    text: Annotated[str, typer.Option(help="A sentence to ask with.")] = "",
    image: Annotated[
        Path | None, typer.Option(metavar="IMAGE", help="An image to ask with, instead.")
    ] = None,
    box: Annotated[
        tuple[float, float, float, float] | None,
        typer.Option(metavar="X Y WIDTH HEIGHT", help="This part of the image alone, in pixels."),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Hits at most.")] = 10,
    split: Annotated[list[str] | None, typer.Option(help="Of this split; may be repeated.")] = None,
    view: Annotated[list[str] | None, typer.Option(help="Of this view; may be repeated.")] = None,
    finding: Annotated[
        list[str] | None, typer.Option(help="With this finding; may be repeated.")
    ] = None,
    exclude_patient: Annotated[str, typer.Option(help="Not of this patient.")] = "",
    url: Url = _URL,
    key_file: KeyFile = None,
    ca: Authorities = None,
) -> None:
    """Ask which indexed images or sentences are closest to a sentence or an image."""
    if bool(text) == bool(image):
        raise typer.BadParameter("give either --text or --image")
    asked = Namespace(
        question="retrieve", target=target, text=text, image=image, box=box, k=k,
        split=split or [], view=view or [], finding=finding or [],
        exclude_patient=exclude_patient, url=url, key_file=key_file, ca=ca,
    )  # fmt: skip
    raise typer.Exit(answer_question(asked))


def write_findings(client: Client, images: Sequence[Path], table: Path) -> None:
    """Write a row for each image, and each file of a folder, that the table does not have yet.

    Columns: `image`; `model`, the digest of what answered; score, probability and decision of each
    finding and head; `refused`: why an image has none of them. ConfigError where the table has
    other columns, or rows of another model.
    """
    names = [image.as_posix() for image in images if not image.is_dir()]
    for folder in (image for image in images if image.is_dir()):
        names += _files_below(folder, table.resolve())
    model = client.model()
    labels = [each["name"] for each in model.card["prompts"]] + [each.name for each in model.heads]
    asked = [_cell(f"{label} {kind}") for label in labels for kind in _KINDS]
    columns = ["image", "model", *asked, "refused"]
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
                rows.writerow([_name_cell(name), model.digest, *_cells(answer, len(asked))])
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
    """Give the images of a table's rows; the end of one that a kill cut off is taken away."""
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
