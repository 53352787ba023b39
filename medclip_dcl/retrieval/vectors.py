"""Vectors of the user's own images or sentences as one Parquet file, made in parts.

The file has the user's own key of a row, then

    vector        the unit vector in the model's shared space; null where the row was refused
    out_of_range  of images alone: whether one is unlike those that the model was trained on
    refused       why there is no vector, a code of `images.REASONS`; null where there is one

Finished parts lie in a hidden folder next to the file until all are there. A killed run with the
same model, settings and rows goes on after them, and its vectors are those of a run at once.
"""

import hashlib
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from medclip_dcl.core.artifact import ArtifactType, json_digest, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.distributed import available_cores
from medclip_dcl.core.errors import ConfigError, ImageError, StudyError
from medclip_dcl.core.files import disk_faults_named, path_under, sync_file, write_bytes
from medclip_dcl.core.progress import Progress
from medclip_dcl.data.grayscale import SquareImage
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.records import stamp_files
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.models.similarity import global_vectors

PARTS = ArtifactType("vectors", 1, "embed")

COLUMNS = ("vector", "out_of_range", "refused")
"""Columns next to the key."""
METADATA = b"medclip_dcl"
"""Key of the file's metadata under which JSON names the model, the engine and the rows."""

UNIT = 512
"""Rows that are resumed together."""

_BATCH = 32
_AHEAD = 2  # batches that are decoded while one is encoded
_GROUP = 32  # parts in a row group of the file

Dtype = Literal["float32", "float16"]
_Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class EmbeddedRows:
    """Rows to be embedded: keys, and the images or sentences themselves."""

    keys: pa.Table
    """By what the user knows a row."""
    values: pa.ChunkedArray
    """Strings: sentences, or images as `files.path_under` takes them."""
    root: Path | None
    """Folder of the images; None: the rows are sentences."""

    def stamp(self) -> str:
        """Name the state of all rows without reading images."""
        digest = hashlib.sha256()
        for column in (*self.keys.columns, self.values):
            for value in column:
                digest.update(f"{value.as_py()}\0".encode("utf-8", "surrogatepass"))
        if self.root is not None:
            paths = (value.as_py() or "" for value in self.values)
            digest.update(stamp_files(self.root, paths).encode())
        return digest.hexdigest()


def list_image_files(folder: Path, out: Path) -> EmbeddedRows:
    """List the files below a folder by their relative path, without hidden ones and `out`.

    StudyError where a name is not UTF-8.
    """
    mine = out.resolve()
    names = sorted(name for name in _files(folder) if (folder / name).resolve() != mine)
    try:
        column = pa.chunked_array([names], pa.string())
    except UnicodeEncodeError as error:
        raise StudyError("the name of a file is not UTF-8; rename it") from error
    return EmbeddedRows(pa.table({"path": column}), column, folder)


def _files(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix()


def write_vectors(
    out: Path, rows: EmbeddedRows, predictor: Predictor, dtype: Dtype, *, replace: bool = False
) -> dict[str, Any]:
    """Embed all rows into the file `out`, and give counts; a file that has them already stays.

    Raises:
        ConfigError: `out` is another file and `replace` is not given, or a key's name is taken.
        ArtifactError: another process is writing it.
        ArtifactUnwritable: the disk is full, or fails, or may not be written to.
    """
    if taken := set(COLUMNS) & set(rows.keys.column_names):
        raise ConfigError(f"column {taken.pop()!r} of the table is one of {COLUMNS}; rename it")
    engine = predictor.engine
    facts = {"engine": engine.name, "precision": engine.precision, "dtype": dtype}
    inputs: dict[str, Any] = {"model": predictor.digest, "rows": rows.stamp()}
    fingerprint = make_fingerprint(PARTS, facts, inputs)
    stamp = {**facts, "model": predictor.digest, "fingerprint": json_digest(fingerprint)}
    if out.exists() and _stamp_of(out) == stamp:
        shutil.rmtree(_draft(out), ignore_errors=True)  # left by a kill after the last rename
        return {"state": "reused", **_counts(out)}
    if out.exists() and not replace:
        raise ConfigError(
            f"--out {out} exists and was made of another model, other settings or other rows; "
            "name another file, or give --replace"
        )
    with write_artifact(out, PARTS, fingerprint) as writer, disk_faults_named(out):
        _write_parts(writer.directory, rows, predictor, dtype)
        joined = writer.directory / "joined"
        _join(writer.directory, joined, json.dumps(stamp, sort_keys=True))
        joined.replace(out)
        sync_file(out.parent)
        shutil.rmtree(writer.directory)
    return {"state": "resumed" if writer.resumed else "made", **_counts(out)}


def _draft(out: Path) -> Path:
    return out.with_name(f".{out.name}.draft")  # where `write_artifact` has it


def _stamp_of(file: Path) -> Any:
    try:
        return json.loads((pq.read_schema(file).metadata or {}).get(METADATA, b"null"))
    except (OSError, ValueError):  # Arrow's own errors are one of the two
        return None


def _counts(file: Path) -> dict[str, Any]:
    codes = pq.read_table(file, columns=["refused"]).column(0)
    reasons = {
        item["values"]: item["counts"] for item in codes.drop_null().value_counts().to_pylist()
    }
    counts = {"rows": len(codes), "refused": len(codes) - codes.null_count}
    return {**counts, "reasons": dict(sorted(reasons.items()))}


def _write_parts(folder: Path, rows: EmbeddedRows, predictor: Predictor, dtype: Dtype) -> None:
    count = len(rows.values)
    units = [range(start, min(start + UNIT, count)) for start in range(0, count, UNIT)]
    files = {unit: folder / f"part-{number:06d}.parquet" for number, unit in enumerate(units)}
    left = [unit for unit, file in files.items() if not file.is_file()]
    done = count - sum(map(len, left))
    what = "sentence" if rows.root is None else "image"
    with Progress("embed", count, what, done) as progress:
        embedding = _embedded_sentences if rows.root is None else _embedded_images
        with embedding(rows, predictor, left, progress.advance) as embedded:
            for unit, (vectors, codes, flags) in zip(left, embedded, strict=True):
                keys = rows.keys.slice(unit.start, len(unit))
                table = _table(keys, vectors, codes, flags, dtype)
                sink = pa.BufferOutputStream()
                pq.write_table(table, sink, use_dictionary=False)
                write_bytes(files[unit], sink.getvalue().to_pybytes())


_Embedded = tuple[_Floats, list[str | None], list[bool | None] | None]
"""Vectors, refusals, and of images whether each is out of range."""


def _table(
    keys: pa.Table,
    vectors: _Floats,
    codes: Sequence[str | None],
    flags: Sequence[bool | None] | None,
    dtype: Dtype,
) -> pa.Table:
    refused = pa.array(codes, pa.string())
    flat = pa.array(vectors.astype(dtype).reshape(-1))
    column = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1], mask=refused.is_valid())
    table = keys.append_column("vector", column)
    if flags is not None:
        table = table.append_column("out_of_range", pa.array(flags, pa.bool_()))
    return table.append_column("refused", refused)


def _join(folder: Path, path: Path, stamp: str) -> None:
    """Write all parts into one file, some at a time."""
    parts = sorted(folder.glob("part-*.parquet"))
    if not parts:
        raise ConfigError("there is nothing to embed: the folder or table is empty")
    schema = pq.read_schema(parts[0]).with_metadata({METADATA: stamp})
    with pq.ParquetWriter(
        str(path), schema, compression="zstd", use_dictionary=False, write_page_checksum=True
    ) as writer:
        for start in range(0, len(parts), _GROUP):
            tables = [pq.read_table(part) for part in parts[start : start + _GROUP]]
            writer.write_table(pa.concat_tables(tables).replace_schema_metadata(schema.metadata))
    sync_file(path)


@contextmanager
def _embedded_sentences(
    rows: EmbeddedRows,
    predictor: Predictor,
    units: Sequence[range],
    finished: Callable[[int], None],
) -> Iterator[Iterator[_Embedded]]:
    dim = predictor.config.model.similarity.dim

    def embed() -> Iterator[_Embedded]:
        for unit in units:
            texts = [text or "" for text in rows.values.slice(unit.start, len(unit)).to_pylist()]
            codes = [None if text.strip() else "empty" for text in texts]
            good = [text for text in texts if text.strip()]
            vectors = predictor.embed_sentences(good).cpu().numpy() if good else None
            yield _spread(vectors, codes, dim), codes, None
            finished(len(unit))

    yield embed()


@contextmanager
def _embedded_images(
    rows: EmbeddedRows,
    predictor: Predictor,
    units: Sequence[range],
    finished: Callable[[int], None],
) -> Iterator[Iterator[_Embedded]]:
    """Decode images side by side, ahead of the model, and encode them in batches."""
    own, root = predictor.config.images, rows.root
    assert root is not None
    workers = available_cores()
    limits = ImagesConfig().model_copy(update={"voi": own.voi})
    with Decoder(limits, workers) as decoder, ThreadPoolExecutor(workers) as threads:

        def prepare(path: str | None) -> _Prepared:
            try:
                source = path_under(root, path or "")
                image = decoder.square(source, own.size_px, equalize=own.equalize)
            except StudyError:
                return "missing", None
            except ImageError as error:
                return error.code, None
            return image, predictor.is_out_of_range(image.pixels)

        def embed() -> Iterator[_Embedded]:
            batches = (batch for unit in units for batch in _batches(unit))
            prepared = _decoded_ahead(threads, prepare, rows.values, batches)
            for unit in units:
                parts = [_encoded(predictor, next(prepared), finished) for _ in _batches(unit)]
                yield (
                    np.concatenate([vectors for vectors, _, _ in parts]),
                    [code for _, codes, _ in parts for code in codes],
                    [flag for _, _, flags in parts for flag in flags],
                )

        try:
            yield embed()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _batches(unit: range) -> list[range]:
    return [unit[start : start + _BATCH] for start in range(0, len(unit), _BATCH)]


_Prepared = tuple[SquareImage | str, bool | None]


def _decoded_ahead(
    threads: ThreadPoolExecutor,
    prepare: Callable[[str | None], _Prepared],
    values: pa.ChunkedArray,
    batches: Iterable[range],
) -> Iterator[list[_Prepared]]:
    waiting: deque[list[Future[_Prepared]]] = deque()
    for batch in batches:
        paths = values.slice(batch.start, len(batch)).to_pylist()
        waiting.append([threads.submit(prepare, path) for path in paths])
        if len(waiting) > _AHEAD:
            yield [item.result() for item in waiting.popleft()]
    while waiting:
        yield [item.result() for item in waiting.popleft()]


def _encoded(
    predictor: Predictor,
    prepared: Sequence[_Prepared],
    finished: Callable[[int], None],
) -> tuple[_Floats, list[str | None], list[bool | None]]:
    codes = [image if isinstance(image, str) else None for image, _ in prepared]
    good = [image.pixels for image, _ in prepared if isinstance(image, SquareImage)]
    vectors = None
    if good:
        vectors = global_vectors(predictor.embed_images(np.stack(good))).cpu().numpy()
    finished(len(prepared))
    dim = predictor.config.model.similarity.dim
    return _spread(vectors, codes, dim), codes, [flag for _, flag in prepared]


def _spread(vectors: _Floats | None, codes: Sequence[str | None], dim: int) -> _Floats:
    """Put vectors into the rows that were not refused; zeros elsewhere."""
    spread = np.zeros((len(codes), dim), np.float32)
    if vectors is not None:
        spread[[code is None for code in codes]] = vectors
    return spread
