"""Ask a running service about an image: its findings, where a phrase is seen, what is similar."""

from argparse import Namespace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from medclip_dcl.client import answer_question

Image = Annotated[Path, typer.Argument(metavar="IMAGE", help="DICOM, JPEG or PNG.")]
Url = Annotated[str, typer.Option("--url", help="Address of the service.")]
KeyFile = Annotated[Path | None, typer.Option("--key-file", help="File with the API key.")]
Authorities = Annotated[
    Path | None,
    typer.Option("--ca", help="PEM file of the authorities that sign the service's certificate."),
]
_URL = "http://127.0.0.1:8000"

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
        list[Path], typer.Argument(metavar="IMAGE...", help="DICOM, JPEG or PNG; up to 32.")
    ],
    explain: Annotated[bool, typer.Option("--explain", help="With heatmaps.")] = False,
    url: Url = _URL,
    key_file: KeyFile = None,
    ca: Authorities = None,
) -> None:
    """Ask which findings images show, and what the model's heads say."""
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
