"""Datasets as the package `datasets` knows them: a hub's, or a folder; read by the table's reader.

Parquet, and what `save_to_disk` wrote, are read where they are. Any other form (a folder of images,
webdataset, JSON lines) is copied once into Arrow files, the artifact `rows`; so are those two where
`source.materialise` asks for it. A hub's dataset is downloaded into `source.root` first.
"""

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from medclip_dcl.artifact import ArtifactType, make_fingerprint, open_if_current
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.data.records import RawStudies
from medclip_dcl.data.row_images import open_arrow, stamp_files, within_lists
from medclip_dcl.data.source_settings import Resolve, SourceConfig
from medclip_dcl.errors import ConfigError, HubError, StudyError
from medclip_dcl.files import (
    DISK_FAULTS,
    STAGED,
    disk_faults_named,
    path_under,
    sync_file,
    write_text,
)
from medclip_sources.rows import take_columns, take_images
from medclip_sources.table import SPELLINGS, RowFile, mapped_columns, read_row_files

ROWS = ArtifactType("rows", 1, "build_manifest")

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SPLIT = re.compile(r"\w+([.-]\w+)*")
_DOWNLOADED = ".downloaded.json"  # in the root: which commit is there, whole
_IN_PLACE = {"parquet", "arrow"}
_BATCH = 16  # rows that are copied at a time
_SHARD_BYTES = 256 << 20  # of copied rows: the unit that is resumed
_LARGEST = 1 << 30  # bytes of a file that is copied; the image gate has its own limit
_IMAGE = pa.struct([("bytes", pa.large_binary()), ("path", pa.string())])


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
    kind, found = _list_files(root, settings)
    if not all(_SPLIT.fullmatch(split) for split in found):
        raise StudyError("the dataset has a split whose name is not one of letters and digits")
    ours = _our_splits(found, settings)
    if settings.materialise:
        base = _copy_rows(root, kind, {split: found[split] for split in ours}, settings, resolve)
        copied = {split: sorted(base.glob(f"{split}-*.arrow")) for split in ours}
        files = [RowFile(file, split, ours[split]) for split in ours for file in copied[split]]
    elif kind in _IN_PLACE:
        base = root
        files = [
            RowFile(root / name, split, ours[split]) for split in ours for name in found[split]
        ]
    else:
        raise ConfigError(
            f"the dataset is of the form {kind}, whose images are not in Parquet or Arrow; set "
            "source.materialise to true, which copies its rows once"
        )
    raw = read_row_files(base, files, settings)
    counts = raw.counts | {"ignored_splits": len(found) - len(ours)}
    return replace(raw, counts=counts, card=_read_card(root, settings))


def _our_splits(found: Mapping[str, Any], settings: SourceConfig) -> dict[str, str]:
    """Give each split that is used ours; empty where its patients are split by hash."""
    if settings.splits:
        if missing := sorted(set(settings.splits.values()) - set(found)):
            raise ConfigError(f"source.splits names {missing}; the dataset has {sorted(found)}")
        return {theirs: "" if o == "any" else o for o, theirs in settings.splits.items()}
    if len(found) == 1 and not settings.is_anonymous:
        return dict.fromkeys(found, "")
    named = {split: SPELLINGS.get(split, split) for split in found}
    ours = {split: o for split, o in named.items() if o in {"train", "validate", "test"}}
    if not ours:
        raise ConfigError(f"the dataset's splits are {sorted(found)}; map them in source.splits")
    return ours


def _list_files(root: Path, settings: SourceConfig) -> tuple[str, dict[str, list[str]]]:
    """Give the form of a dataset, and its files by split, relative to the root."""
    if (root / "dataset_dict.json").is_file():
        splits = _json(root / "dataset_dict.json").get("splits")
        if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
            raise _not_saved("dataset_dict.json")
        return "arrow", {split: _saved(root, f"{split}/") for split in splits}
    if (root / "state.json").is_file():
        split = _json(root / "state.json").get("_split") or "train"
        if not isinstance(split, str):
            raise _not_saved("state.json")
        return "arrow", {split: _saved(root, "")}
    if "://" in json.dumps(_front_matter(root).get("configs", "")):
        raise StudyError("README.md of the dataset names files by address; download them first")
    try:
        builder = _datasets().load_dataset_builder(str(root), name=settings.config or None)
        base = root.resolve()  # the files may be links: those that lead out are refused later
        inside = {
            str(split): [Path(name).relative_to(base).as_posix() for name in names]
            for split, names in builder.config.data_files.items()
        }
    except Exception as error:  # of many kinds, whose words may quote the data
        if isinstance(error, OSError) and error.errno in DISK_FAULTS:
            with disk_faults_named(Path(_datasets().config.HF_DATASETS_CACHE)):
                if not Path(error.filename or "").is_relative_to(root):
                    raise
        raise StudyError(
            f"source.root holds no dataset that `datasets` knows ({type(error).__name__}); give a "
            "folder of save_to_disk, Parquet, images or webdataset, and its source.config"
        ) from error
    return type(builder).__module__.rsplit(".", 1)[-1], inside


def _saved(root: Path, folder: str) -> list[str]:
    # What `save_to_disk` wrote into a folder.
    state = _json(path_under(root, f"{folder}state.json"))
    try:
        names = [f"{folder}{item['filename']}" for item in state["_data_files"]]
    except (LookupError, TypeError) as error:
        raise _not_saved("state.json") from error
    return [path_under(root, name).relative_to(root.resolve()).as_posix() for name in names]


def _json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _not_saved(path.name) from error
    if not isinstance(tree, dict):
        raise _not_saved(path.name)
    return tree


def _not_saved(name: str) -> StudyError:
    return StudyError(
        f"{name} of the dataset is not what save_to_disk writes; save the dataset again"
    )


def _datasets() -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    return import_module("datasets")


def _copy_rows(
    root: Path,
    kind: str,
    found: Mapping[str, Sequence[str]],
    settings: SourceConfig,
    resolve: Resolve,
) -> Path:
    """Copy the mapped columns into Arrow files, with the bytes of images; give their folder."""
    columns, image = mapped_columns(settings)
    named = settings.model_dump(mode="json", include={"name", "config"})
    inputs = {split: stamp_files(root, names) for split, names in found.items()}
    fingerprint = make_fingerprint(ROWS, named | {"columns": columns, "image": image}, inputs)
    work = ROWS.at(resolve("${WORK}"))
    if open_if_current(work, ROWS, fingerprint) is not None:
        return work
    with write_artifact(work, ROWS, fingerprint) as writer:
        rows = {
            split: _copy_split(writer.directory, root, kind, split, names, settings)
            for split, names in found.items()
        }
        writer.commit({"rows": sum(rows.values()), "splits": len(rows)})
    return work


def _copy_split(
    folder: Path,
    root: Path,
    kind: str,
    split: str,
    names: Sequence[str],
    settings: SourceConfig,
) -> int:
    columns, image = mapped_columns(settings)
    shards = sorted(folder.glob(f"{split}-*.arrow"))  # of a run that was killed
    done = sum(open_arrow(shard).num_rows for shard in shards)
    try:
        batches = _batches(_stream(root, kind, split, names, done, settings), columns, image, root)
        for number in itertools.count(len(shards)):
            table = next(batches, None)
            if table is None:
                return int(done)
            done += _write_shard(folder / f"{split}-{number:05d}.arrow", table, batches)
    except (StudyError, OSError):
        raise
    except Exception as error:  # of many kinds, whose words may quote the data
        raise StudyError(
            f"row {done} or a later one of split {split!r} cannot be read "
            f"({type(error).__name__}); correct it and run again to go on"
        ) from error
    raise AssertionError


def _stream(
    root: Path, kind: str, split: str, names: Sequence[str], skip: int, settings: SourceConfig
) -> Iterator[tuple[pa.Table, pa.Schema]]:
    """Give rows some at a time, with the schema that knows their features."""
    if kind in _IN_PLACE:
        yield from _file_rows([path_under(root, name) for name in names], skip)
        return
    name = settings.config or None
    dataset = _datasets().load_dataset(str(root), name=name, split=split, streaming=True)
    if dataset.features is not None:
        dataset = dataset.cast(without_decoding(dataset.features))
    schema = None if dataset.features is None else dataset.features.arrow_schema
    # The last row of a tar file has its columns in another order, which Arrow refuses.
    by_row = kind == "webdataset"
    for batch in dataset.skip(skip).with_format(None if by_row else "arrow").iter(_BATCH):
        table = pa.table(batch, schema=schema) if by_row else batch
        yield table, schema or table.schema


def _file_rows(paths: Sequence[Path], skip: int) -> Iterator[tuple[pa.Table, pa.Schema]]:
    for path in paths:
        if path.suffix == ".arrow":
            whole = open_arrow(path)
            for start in range(min(skip, len(whole)), len(whole), _BATCH):
                yield whole.slice(start, _BATCH), whole.schema
            skip = max(0, skip - len(whole))
            continue
        with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if skip < rows:
                    for batch in file.iter_batches(_BATCH, [group], use_threads=False):
                        if skip < batch.num_rows:
                            table = pa.Table.from_batches([batch.slice(skip)])
                            yield table, file.schema_arrow
                        skip = max(0, skip - batch.num_rows)
                else:
                    skip -= rows


def without_decoding(features: Any) -> Any:
    """Switch decoding off in a tree of features; StudyError where one would decode all the same."""
    library = _datasets()
    if isinstance(features, dict):
        plain = {name: without_decoding(feature) for name, feature in features.items()}
        return library.Features(plain) if isinstance(features, library.Features) else plain
    if isinstance(features, list | tuple):
        return [without_decoding(feature) for feature in features]
    if hasattr(features, "feature"):  # a list of something
        inner = without_decoding(features.feature)
        return type(features)(inner, length=getattr(features, "length", -1))
    if getattr(features, "decode", False):
        features = type(features)(decode=False)
    if getattr(features, "decode", False) or (
        hasattr(features, "decode_example") and not hasattr(features, "decode")
    ):
        kind = type(features).__name__
        raise StudyError(f"a column of {kind} decodes what it reads; leave it out")
    return features


def _batches(
    rows: Iterator[tuple[pa.Table, pa.Schema]], columns: Sequence[str], image: str, root: Path
) -> Iterator[pa.Table]:
    for table, schema in rows:
        kept = take_columns(table, schema, columns, root)
        if image:
            found = take_images(table, image, root)
            flat = within_lists(found, lambda values: _with_bytes(values, root))
            kept = kept.append_column(image, flat) if columns else pa.table({image: flat})
        yield kept


def _with_bytes(images: pa.Array, root: Path) -> pa.Array:
    rows = []
    for value in images.to_pylist():
        data, path = value, None
        if isinstance(value, dict):
            data, path = value.get("bytes"), value.get("path")
        elif isinstance(value, str):
            data, path = None, value
        if data is None and path:
            data = _file_bytes(path, root)
        rows.append({"bytes": data, "path": path if data is None else None})
    return pa.array(rows, _IMAGE)


def _file_bytes(path: str, root: Path) -> bytes | None:
    # Of a file in the dataset's own folder; nothing is fetched from an address.
    base = root.resolve()
    try:
        relative = Path(path).relative_to(base) if Path(path).is_absolute() else Path(path)
        file = path_under(base, relative.as_posix())
        return file.read_bytes() if file.stat().st_size <= _LARGEST else None
    except (StudyError, ValueError, OSError):
        return None


def _write_shard(path: Path, table: pa.Table | None, more: Iterator[pa.Table]) -> int:
    """Write rows until the file is large enough; it appears whole, or not at all."""
    assert table is not None
    staged = path.with_name(f"{STAGED}{path.name}")
    schema = pa.schema(
        [
            field.with_type(pa.string()) if pa.types.is_null(field.type) else field
            for field in table.schema
        ]
    )
    rows = 0
    with pa.OSFile(str(staged), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        while table is not None:
            writer.write_table(table.cast(schema))
            rows += table.num_rows
            table = next(more, None) if sink.tell() < _SHARD_BYTES else None
    sync_file(staged)
    staged.replace(path)
    return rows


def _download(root: Path, settings: SourceConfig) -> None:
    """Bring a hub's dataset into the root, unless it is there whole; a part of one is resumed."""
    name, commit = _dataset_of(settings)
    if not _COMMIT.fullmatch(commit):
        _refuse_branch(settings)
    wanted = {"name": name, "commit": commit}
    note = root / _DOWNLOADED
    if note.is_file() and _json(note) == wanted:
        return
    held = {path.name for path in root.iterdir()} if root.is_dir() else set()
    if held and (note.is_file() or ".cache" not in held):  # .cache: of a download that was stopped
        raise ConfigError(
            "source.root holds something else than this dataset; name a folder of its own, which "
            "need not exist"
        )
    files = _ask_hub(settings, local_dir=None)
    with disk_faults_named(root):
        _ask_hub(settings, local_dir=root)
    if missing := sum(not (root / name).is_file() for name in files):
        raise HubError(f"{missing} files of {name} did not come; run again to go on")
    write_text(note, json.dumps(wanted))


def _dataset_of(settings: SourceConfig) -> tuple[str, str]:
    name, _, commit = settings.name.partition("@")
    return name, commit


def _refuse_branch(settings: SourceConfig) -> None:
    known, (name, branch) = "", _dataset_of(settings)
    if branch:
        try:
            files = _ask_hub(settings, local_dir=None)
            known = f"; {branch!r} means {next(iter(files.values()))} now"
        except HubError:
            known = "; the hub cannot be asked what it means now"
    raise ConfigError(
        f"source.name must be {name}@COMMIT, of 40 hexadecimal digits, since a branch moves{known}"
    )


def _ask_hub(settings: SourceConfig, local_dir: Path | None) -> dict[str, str]:
    """List the files of a dataset with their commit, or download them.

    The token is `HF_TOKEN` of the environment alone, not one that was stored.
    """
    _datasets()
    name, commit = _dataset_of(settings)
    hub, errors = import_module("huggingface_hub"), import_module("huggingface_hub.errors")
    place = {"dry_run": True} if local_dir is None else {"local_dir": local_dir}
    try:
        found = hub.snapshot_download(
            name,
            repo_type="dataset",
            revision=commit,
            endpoint=os.environ.get("HF_ENDPOINT") or None,
            token=os.environ.get("HF_TOKEN") or False,
            **place,
        )
    except errors.HFValidationError as error:
        raise ConfigError("source.name must be OWNER/NAME@COMMIT") from error
    except Exception as error:  # the client's HTTP library has errors of its own
        cause = error.__cause__ or error
        if isinstance(cause, OSError) and cause.errno in DISK_FAULTS:
            raise cause from None
        status = getattr(getattr(cause, "response", None), "status_code", 0)
        if isinstance(cause, errors.GatedRepoError) or status in {401, 403}:
            raise HubError(
                f"the hub refused with status {status}: accept the agreement of {name} "
                "with your account, put that account's token into HF_TOKEN, then run again"
            ) from error
        if isinstance(cause, errors.RevisionNotFoundError | errors.RepositoryNotFoundError):
            raise HubError(f"the hub has no dataset {name}; correct source.name") from error
        raise HubError(
            f"the hub cannot be reached ({type(cause).__name__}), and {name} is not whole "
            "in source.root; run again with a network, or without HF_HUB_OFFLINE"
        ) from error
    if local_dir is None:
        return {item.filename: item.commit_hash for item in found}
    return {}


def _front_matter(root: Path) -> dict[str, Any]:
    # The metadata of the dataset's card; none where it has none, or is not YAML.
    path = root / "README.md"
    if not path.is_file():
        return {}
    try:
        card = import_module("huggingface_hub").DatasetCard(path.read_text(encoding="utf-8"))
    except Exception:  # noqa: BLE001 (whatever YAML raises)
        return {}
    found: dict[str, Any] = card.data.to_dict()
    return found


def _read_card(root: Path, settings: SourceConfig) -> dict[str, str]:
    """Give what the dataset's own card says of licence and terms, and where it comes from."""
    data = _front_matter(root)
    licence: list[str] = []
    for value in (data.get(key) for key in ("license", "license_name", "license_link")):
        licence += [str(item) for item in (value if isinstance(value, list) else [value]) if item]
    name, commit = _dataset_of(settings)
    facts = {"name": name, "commit": commit, "config": settings.config}
    facts["licence"] = ", ".join(licence)
    facts["terms"] = str(data.get("extra_gated_prompt") or "")
    return {name: value for name, value in facts.items() if value}
