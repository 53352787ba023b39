"""Write the vectors of a folder's images, or of a table's images or sentences, as Parquet.

The vectors have unit length in the space in which the model compares images and sentences. A row
that is refused keeps its place, with the reason in `refused`. A killed run resumes after the last
512 rows that were finished.

    medclip embed FOLDER --model RUN --out vectors.parquet
    medclip embed TABLE --images path --id id --model RUN --out vectors.parquet
    medclip embed TABLE --sentences text --model RUN --out vectors.parquet
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data.table_columns import read_columns
from medclip_dcl.inference.predictor import load
from medclip_dcl.models.pretrained import PACKAGE, fetch_weights
from medclip_dcl.models.settings import EngineName, Precision
from medclip_dcl.retrieval.vectors import Dtype, EmbeddedRows, list_image_files, write_vectors

from .cli import reuse_memory, run_folder, tool_main
from .job import run_resumable


def command(
    source: Annotated[
        Path,
        typer.Argument(metavar="FOLDER_OR_TABLE", help="DICOM, JPEG, PNG; or Parquet, CSV, JSONL."),
    ],
    model: Annotated[
        Path,
        typer.Option(metavar="RUN_OR_MODEL", help="A run, a model, or OWNER/NAME@COMMIT."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The Parquet file that is written.")],
    images: Annotated[
        str, typer.Option(metavar="COLUMN", help="A table's images: their paths.")
    ] = "",
    sentences: Annotated[str, typer.Option(metavar="COLUMN", help="A table's sentences.")] = "",
    key: Annotated[
        str, typer.Option("--id", metavar="COLUMN", help="Kept next to the vectors; else `row`.")
    ] = "",
    root: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where a table's paths start."),
    ] = None,
    engine: Annotated[
        EngineName, typer.Option(metavar="NAME", help="auto, torch or openvino.")
    ] = "auto",
    precision: Annotated[
        Precision, typer.Option(metavar="TYPE", help="auto, float32, bfloat16 or float16.")
    ] = "auto",
    dtype: Annotated[
        Dtype, typer.Option(metavar="TYPE", help="Of the vectors: float32 or float16.")
    ] = "float32",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace another file at --out.")
    ] = False,
) -> int:
    """Embed the rows and print counts."""
    reuse_memory()

    def work() -> None:
        rows = _rows_of(source, out, images, sentences, key, root)
        folder = fetch_weights(model, PACKAGE)
        folder = folder if folder.is_dir() else run_folder(folder)
        predictor = load(folder, engine=engine, precision=precision)
        print(json.dumps(write_vectors(out, rows, predictor, dtype, replace=replace)))

    return run_resumable("embed", work)


def _rows_of(
    source: Path, out: Path, images: str, sentences: str, key: str, root: Path | None
) -> EmbeddedRows:
    if source.is_dir():
        if images or sentences or key or root:
            raise ConfigError("--images, --sentences, --id and --root are of a table, not a folder")
        return list_image_files(source, out)
    if bool(images) == bool(sentences):
        raise ConfigError(f"{source} is not a folder: name a column by --images or by --sentences")
    folder = (root or source.parent) if images else None
    asked = [name for name in (key, images, sentences) if name]
    table = pa.concat_tables(read_columns(source, asked))
    values = table.column(images or sentences)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise ConfigError(
            f"column {images or sentences!r} holds {values.type}; name one of texts or paths"
        )
    keys = table.select([key]) if key else pa.table({"row": pa.array(range(len(table)))})
    return EmbeddedRows(keys, values, folder)


main = tool_main("embed", command)

if __name__ == "__main__":
    sys.exit(main())
