"""Datasets as the package `datasets` knows them: a hub's, or a folder; read by the table's reader.

What `save_to_disk` wrote, Parquet, a folder of images, webdataset and JSON lines are written out
once into the artifact `rows`: a Parquet table of the mapped columns and a file an image, bytes as
they are. A hub's dataset is downloaded into `source.root` first.
"""

import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from medclip_dcl.core.artifact import ArtifactType, make_fingerprint, open_if_current
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import ConfigError, HubError, StudyError
from medclip_dcl.core.files import (
    DISK_FAULTS,
    disk_faults_named,
    path_under,
    write_bytes,
    write_text,
)
from medclip_dcl.data.records import RawStudies, stamp_files
from medclip_dcl.data.source_settings import Resolve, SourceConfig
from medclip_dcl.data.sources.table import SPELLINGS, RowFile, mapped_columns, read_row_files
from medclip_dcl.data.table_files import take_columns

ROWS = ArtifactType("rows", 2, "build_manifest")

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SPLIT = re.compile(r"\w+([.-]\w+)*")
_DOWNLOADED = ".downloaded.json"  # in the root: which commit is there, whole
_BATCH = 16  # rows in memory at a time
_PART_BATCHES = 32  # of the unit that is resumed
_LARGEST = 1 << 30  # bytes of a file that is copied; the image gate has its own limit


class _Split(NamedTuple):
    name: str
    files: list[str]  # relative to the root
    open_rows: Callable[[], Any]


def read_huggingface(root: Path, settings: SourceConfig, resolve: Resolve) -> RawStudies:
    """Read a dataset; its splits become ours by `source.splits`, or by their usual names.

    Raises:
        ConfigError: it is not named by a commit, or a setting does not fit the dataset.
        HubError: the hub cannot be reached, or refuses.
        StudyError: the folder holds no dataset, or its rows cannot be read.
    """
    if settings.name:
        _download(root, settings)
    if not root.is_dir():
        raise StudyError("source.root is not a folder; name the folder of the dataset")
    if settings.columns.get("path"):
        raise ConfigError(
            "source.columns names path, and source.kind huggingface writes images out under names "
            "of its own; name the column of images or of their paths as image"
        )
    splits = _open_splits(root, settings)
    if not all(map(_SPLIT.fullmatch, splits)):
        raise StudyError("the dataset has a split whose name is not one of letters and digits")
    ours = _our_splits(splits, settings)
    columns, image = mapped_columns(settings)
    # Roles may be mapped anew without writing rows again: only the columns count.
    chosen = settings.model_dump(mode="json", include={"name", "config"})
    inputs = {split: stamp_files(root, splits[split].files) for split in ours}
    fingerprint = make_fingerprint(ROWS, chosen | {"columns": columns, "image": image}, inputs)
    work = ROWS.at(resolve("${WORK}"))
    if open_if_current(work, ROWS, fingerprint) is None:
        with write_artifact(work, ROWS, fingerprint) as writer:
            rows = [_write_rows(writer.directory, root, splits[name], settings) for name in ours]
            writer.commit({"rows": sum(rows), "splits": len(rows)})
    parts = {split: sorted(work.glob(f"{split}-*.parquet")) for split in ours}
    tables = [RowFile(part, split, ours[split]) for split in ours for part in parts[split]]
    raw = read_row_files(work, tables, settings)
    counts = raw.counts | {"ignored_splits": len(splits) - len(ours)}
    return replace(raw, counts=counts, card=_read_card(root, settings))


def _our_splits(splits: Collection[str], settings: SourceConfig) -> dict[str, str]:
    """Map each split that is used to ours; to nothing where its patients are split by hash."""
    if settings.splits:
        if missing := sorted(set(settings.splits.values()) - set(splits)):
            raise ConfigError(f"source.splits names {missing}; the dataset has {sorted(splits)}")
        return {theirs: "" if our == "any" else our for our, theirs in settings.splits.items()}
    # A single split, mostly called train, holds all patients.
    if len(splits) == 1 and not settings.is_anonymous:
        return dict.fromkeys(splits, "")
    named = {split: SPELLINGS.get(split, split) for split in splits}
    ours = {split: our for split, our in named.items() if our in {"train", "validate", "test"}}
    if not ours:
        raise ConfigError(f"the dataset's splits are {sorted(splits)}; map them in source.splits")
    return ours


def _open_splits(root: Path, settings: SourceConfig) -> dict[str, _Split]:
    """Open a dataset by its splits; one with a file outside the root is refused."""
    # `datasets` would fetch them.
    if "://" in json.dumps(_front_matter(root).get("configs", "")):
        raise StudyError("README.md of the dataset names files by address; download them first")
    datasets = _datasets()
    try:
        if any((root / name).is_file() for name in ("dataset_dict.json", "state.json")):
            saved = datasets.load_from_disk(str(root))
            if not isinstance(saved, dict):
                saved = {saved.split or "train": saved}
            opened = {
                name: ([file["filename"] for file in rows.cache_files], rows.to_iterable_dataset)
                for name, rows in saved.items()
            }
        else:
            builder = datasets.load_dataset_builder(str(root), name=settings.config or None)
            # Streamed from this folder: else `datasets` would write a copy of its own.
            opened = {
                name: (files, partial(builder.as_streaming_dataset, name))
                for name, files in builder.config.data_files.items()
            }
        base = root.resolve()
        splits = {}
        for name, (files, open_rows) in opened.items():
            # A link stays one: those that lead out are refused later.
            paths = [Path(os.path.abspath(file)).relative_to(base) for file in files]  # noqa: PTH100
            splits[str(name)] = _Split(str(name), [path.as_posix() for path in paths], open_rows)
        return splits
    except Exception as error:  # of many kinds, whose words may quote the data
        if isinstance(error, OSError) and error.errno in DISK_FAULTS:
            with disk_faults_named(Path(datasets.config.HF_DATASETS_CACHE)):
                if not Path(error.filename or "").is_relative_to(root):
                    raise
        raise StudyError(
            "source.root holds no dataset that `datasets` can read; give a folder"
            " of save_to_disk, Parquet, images or webdataset, whose files are all in it, "
            "and its source.config"
        ) from error


def _datasets() -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    return import_module("datasets")


def _write_rows(folder: Path, root: Path, split: _Split, settings: SourceConfig) -> int:
    """Write a split's mapped columns and images; parts that a killed run finished stay."""
    columns, image = mapped_columns(settings)
    wanted = [*columns, *([image] if image else [])]
    parts = sorted(folder.glob(f"{split.name}-*.parquet"))
    # A part is written after its images: what a finished part names is there.
    done = sum(int(pq.read_metadata(part).num_rows) for part in parts)
    try:
        batches = _batches(split, done)
        for number in count(len(parts)):
            place = Path(f"{split.name}-{number:05d}")
            tables: list[pa.Table] = []
            for batch in islice(batches, _PART_BATCHES):
                table = take_columns(batch, root.name, wanted)
                if image:
                    (folder / place).mkdir(exist_ok=True)
                    names = [
                        _write_images(value, folder, place / f"{row:06d}", root)
                        for row, value in enumerate(table.column(image).to_pylist(), done)
                    ]
                    table = table.drop_columns(image).append_column(image, pa.array(names))
                tables.append(table)
                done += table.num_rows
            if not tables:
                break
            sink = io.BytesIO()
            pq.write_table(pa.concat_tables(tables, promote_options="permissive"), sink)
            write_bytes(folder / f"{place}.parquet", sink.getvalue())
    except (StudyError, OSError):
        raise
    except Exception as error:  # of many kinds, whose words may quote the data
        raise StudyError(
            f"row {done} or a later one of split {split.name!r} cannot be read; "
            "correct it and run again to go on"
        ) from error
    return done


def _batches(split: _Split, skip: int) -> Iterator[pa.Table]:
    """Read rows some at a time, nothing decoded, with the metadata that know their features."""
    rows, schema = split.open_rows(), None
    if rows.features is not None:
        rows = rows.decode(enable=False)  # only the image gate opens an image
        schema = rows.features.arrow_schema
    # The last row of a tar file has its columns in another order, which Arrow refuses.
    by_row = any(file.endswith(".tar") for file in split.files)
    # Skipped rows are those of parts that a killed run has finished.
    batches = rows.with_format(None if by_row else "arrow").skip(skip).iter(_BATCH)
    return (pa.table(batch, schema=schema) for batch in batches)


def _write_images(value: Any, folder: Path, place: Path, root: Path) -> Any:
    """Write the images of a row; return their paths, empty where there is none.

    A path outside the dataset's folder stays, and is missing later: no address is fetched.
    """
    if isinstance(value, list):
        return [
            _write_images(item, folder, place.with_name(f"{place.name}-{k}"), root)
            for k, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        value = {"path" if isinstance(value, str) else "bytes": value}
    data, path = value.get("bytes"), value.get("path")
    if data is None and path:
        base = root.resolve()
        with suppress(StudyError, OSError):
            file = path_under(base, os.path.relpath(base / path, base))
            data = file.read_bytes() if file.stat().st_size <= _LARGEST else None
    if data is None:
        return path or ""
    if not isinstance(data, bytes):
        raise StudyError(
            "source.columns.image names a column without images; name one of bytes, of paths, of "
            "objects of both, or of lists of these"
        )
    write_bytes(folder / place, data)
    return place.as_posix()


def _download(root: Path, settings: SourceConfig) -> None:
    """Bring a dataset into the root, resuming a part; the token is the variable HF_TOKEN alone."""
    name, _, commit = settings.name.partition("@")
    if not _COMMIT.fullmatch(commit):
        raise ConfigError(
            f"source.name must be {name}@COMMIT, of 40 hexadecimal digits, since a branch moves; "
            "the hub lists commits under the dataset's files, as history"
        )
    wanted = json.dumps({"name": name, "commit": commit})
    note = root / _DOWNLOADED
    if note.is_file() and note.read_text(encoding="utf-8") == wanted:
        return
    # Whether a download is whole cannot be seen among other files.
    held = {path.name for path in root.iterdir()} if root.is_dir() else set()
    if held and (note.is_file() or ".cache" not in held):  # .cache: of a download that was stopped
        raise ConfigError(
            "source.root holds something else than this dataset; name a folder of its own, which "
            "need not exist"
        )
    _datasets()
    hub, errors = import_module("huggingface_hub"), import_module("huggingface_hub.errors")
    try:
        hub.snapshot_download(
            name,
            repo_type="dataset",
            revision=commit,
            endpoint=os.environ.get("HF_ENDPOINT") or None,
            token=os.environ.get("HF_TOKEN") or False,  # False: none, stored or not
            local_dir=root,
        )
    except errors.HFValidationError as error:
        raise ConfigError("source.name must be OWNER/NAME@COMMIT") from error
    except Exception as error:  # the client's HTTP library has errors of its own
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and cause.errno in DISK_FAULTS:
            with disk_faults_named(root):
                raise cause from None
        status = getattr(getattr(cause, "response", None), "status_code", 0)
        if status in {401, 403}:
            fault = (
                f"the hub refused with status {status}: accept the agreement of {name} with your "
                "account, put that account's token into HF_TOKEN, then run again"
            )
        elif isinstance(cause, errors.RevisionNotFoundError | errors.RepositoryNotFoundError):
            fault = f"the hub has no dataset {name}; correct source.name"
        else:
            fault = (
                f"the hub cannot be reached, and {name} is not whole in source.root; run again "
                "with a network, or without HF_HUB_OFFLINE"
            )
        raise HubError(fault) from error
    write_text(note, wanted)


def _front_matter(root: Path) -> dict[str, Any]:
    # The metadata of the dataset's card; none where it has none, or is not YAML.
    path = root / "README.md"
    with suppress(Exception):  # whatever YAML raises
        return dict(import_module("huggingface_hub").metadata_load(path) or {})
    return {}


def _read_card(root: Path, settings: SourceConfig) -> dict[str, str]:
    """Read licence and terms in the dataset's own card, and note where it comes from."""
    data = _front_matter(root)
    licence: list[str] = []
    for value in (data.get(key) for key in ("license", "license_name", "license_link")):
        licence += [str(item) for item in (value if isinstance(value, list) else [value]) if item]
    name, _, commit = settings.name.partition("@")
    facts = {"name": name, "commit": commit, "config": settings.config}
    facts |= {"licence": ", ".join(licence), "terms": str(data.get("extra_gated_prompt") or "")}
    return {name: value for name, value in facts.items() if value}
