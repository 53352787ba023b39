"""Prepared images in a bucket, by way of a cache on local disk.

A shard is fetched whole when one of its images is asked for, checked by the digest in the
artifact's header, and shared by all processes of the machine. Where shards would take more than the
cache may, those that were not used for the longest time are deleted first; a process maps a few at
a time, and what it maps stays readable. Ids and sizes are read at the first opening, without the
pixels between them, and kept.
"""

import fcntl
import hashlib
import os
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from medclip_dcl.artifact import HEADER, Artifact, ArtifactType, read_artifact_header
from medclip_dcl.data.row_images import Bucket
from medclip_dcl.errors import (
    ArtifactCorrupt,
    ArtifactMissing,
    ArtifactStale,
    ConfigError,
    StudyError,
)
from medclip_dcl.files import write_bytes

_MAPPED = 4  # shards that a process maps at a time, for which the disk keeps those deleted
_FEWEST = 2  # shards that a cache must hold: one in use while the next is fetched
_TRIES = 3  # fetches of a shard whose bytes are not those of the header
_AT_ONCE = 16  # requests for ids and sizes
_ENDS = (
    1 << 16
)  # bytes at both ends of a shard, which hold its ids and sizes but for very large ones
_TOUCH_S = 60.0  # a shard that is mapped counts as used this often at most
_LOCKS = 64
_FACTS = "facts.arrow"


class _OtherBytes(Exception):
    """Bytes that were fetched and are not those that the header names."""


@dataclass(frozen=True)
class StoredArtifact(Artifact):
    """Prepared images in a bucket; `path` is a folder of the cache, which holds some shards."""

    bucket: Bucket
    most_bytes: int
    """Bytes that shards may take in the cache."""
    _mapped: "OrderedDict[str, tuple[Any, float]]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def shard(self, name: str, read: Callable[[Path], Any]) -> Any:
        """Give what `read` makes of a shard, which is fetched where it is not in the cache.

        Raises:
            ArtifactCorrupt: the bucket's shard is not that of the header, or is not there.
            ArtifactUnwritable: the cache's disk is full, or fails.
            StoreError: the store does not answer, or refuses.
        """
        with self._lock:
            found, touched = self._mapped.pop(name, (None, 0.0))
            if found is None:
                found = self._open(name, read)
            if time.monotonic() - touched > _TOUCH_S:
                with suppress(FileNotFoundError):  # deleted, and mapped here
                    os.utime(self.path / name)
                touched = time.monotonic()
            self._mapped[name] = found, touched
            while len(self._mapped) > _MAPPED:
                self._mapped.popitem(last=False)
            return found

    def facts(self, names: list[str]) -> list[pa.Table]:
        """Give the ids and sizes of each shard, with its metadata."""
        path = self.path / _FACTS
        if not path.is_file():
            with _locked(self.path / ".facts.lock"):
                if not path.is_file():
                    write_bytes(path, self._fetched_facts(names))
        with pa.memory_map(str(path)) as source:
            whole = pa.ipc.open_file(source).read_all()
        starts = [int(start) for start in whole.schema.metadata[b"starts"].split()]
        kept = {b"size_px": whole.schema.metadata[b"size_px"]}
        return [
            whole.slice(start, stop - start).replace_schema_metadata(kept)
            for start, stop in pairwise(starts)
        ]

    def _open(self, name: str, read: Callable[[Path], Any]) -> Any:
        path = self.path / name
        for _ in range(_TRIES):
            with suppress(ArtifactCorrupt):  # of a file that was just deleted, too
                if path.is_file():
                    return read(path)
            with _locked(self.path / f".{zlib.crc32(name.encode()) % _LOCKS}.lock"):
                if not path.is_file():  # else another process was faster
                    with suppress(_OtherBytes):
                        write_bytes(path, self._pieces(name))
                        self._make_room()
        if path.is_file():
            return read(path)
        raise ArtifactCorrupt(
            f"{name} of {self.bucket.url} is not what its header names; copy the artifact again"
        )

    def _pieces(self, name: str) -> Iterator[bytes]:
        digest = hashlib.sha256()
        try:
            for piece in self.bucket.pieces(name):
                digest.update(piece)
                yield piece
        except StudyError as error:
            raise ArtifactCorrupt(
                f"{self.bucket.url} lacks {name}; copy the artifact again"
            ) from error
        if digest.hexdigest() != self.files[name]["sha256"]:
            raise _OtherBytes

    def _make_room(self) -> None:
        with _locked(self.path.parent / ".room.lock"):
            shards = []
            for shard in self.path.parent.glob("*/shard-*.arrow"):
                with suppress(FileNotFoundError):
                    found = shard.stat()
                    shards.append((found.st_mtime_ns, found.st_size, shard))
            held = sum(size for _, size, _ in shards)
            for _, size, shard in sorted(shards):
                if held <= self.most_bytes:
                    break
                shard.unlink(missing_ok=True)
                held -= size

    def _fetched_facts(self, names: list[str]) -> bytes:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            parts = list(pool.map(self._facts_of, names))
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + len(part))
        sizes = {part.schema.metadata[b"size_px"] for part in parts} or {b"0"}
        if len(sizes) > 1:
            raise ArtifactCorrupt(f"shards of {self.bucket.url} differ in size; copy them again")
        whole = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
        facts = {"starts": " ".join(map(str, starts)), "size_px": sizes.pop().decode()}
        whole = whole.combine_chunks().replace_schema_metadata(facts)
        sink = BytesIO()
        with pa.ipc.new_file(sink, whole.schema) as writer:
            writer.write_table(whole)
        return sink.getvalue()

    def _facts_of(self, name: str) -> pa.Table:
        # All columns but the second, which is the pixels.
        wanted = pa.ipc.IpcReadOptions(included_fields=[0, 2, 3])
        try:
            source = pa.PythonFile(_Ranges(self.bucket, name, self.files[name]["bytes"]), mode="r")
            with pa.ipc.open_file(source, options=wanted) as file:
                return pa.Table.from_batches([file.get_batch(0)]).replace_schema_metadata(
                    file.schema.metadata
                )
        except (StudyError, pa.ArrowException) as error:
            raise ArtifactCorrupt(
                f"{name} of {self.bucket.url} is missing or damaged; copy the artifact again"
            ) from error


class _Ranges:
    """An object as a file that is read here and there; both of its ends are fetched at once."""

    closed = False

    def __init__(self, bucket: Bucket, name: str, size: int) -> None:
        self._bucket, self._name, self._size, self._at = bucket, name, size, 0
        ends = (0, min(size, _ENDS)), (max(0, size - _ENDS), size)
        self._known = [(start, bucket.read_range(name, start, stop)) for start, stop in ends]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def read(self, count: int = -1) -> bytes:
        stop = self._size if count < 0 else min(self._size, self._at + count)
        start, self._at = self._at, stop
        for first, data in self._known:
            if first <= start and stop <= first + len(data):
                return data[start - first : stop - first]
        return self._bucket.read_range(self._name, start, stop)

    def close(self) -> None:
        self.closed = True


def open_stored(bucket: Bucket, kind: ArtifactType, cache: Path, most_bytes: int) -> StoredArtifact:
    """Open the artifact of prepared images whose files are in a bucket.

    Raises:
        ArtifactMissing: there is none.
        ArtifactStale: it is of another type or format version.
        ArtifactCorrupt: its header is damaged.
        ConfigError: the cache is smaller than two shards.
        StoreError: the store does not answer, or refuses.
    """
    try:
        header = b"".join(bucket.pieces(HEADER))
    except StudyError as error:
        raise ArtifactMissing(f"no {kind.name} in {bucket.url}; run {kind.job} first") from error
    folder = cache / hashlib.sha256(header).hexdigest()[:32]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / HEADER).is_file():
        write_bytes(folder / HEADER, header)
    found = read_artifact_header(folder)
    if (found.kind, found.version) != (kind.name, kind.version):
        raise ArtifactStale(
            f"{bucket.url} holds {found.kind} version {found.version}, version {kind.version} of "
            f"{kind.name} is read here; rerun {kind.job}"
        )
    largest = max((entry["bytes"] for entry in found.files.values()), default=0)
    if most_bytes < _FEWEST * largest:
        raise ConfigError(
            f"images.cache_gb is {most_bytes / 1e9:.3g}, and a shard takes {largest / 1e9:.3g}; "
            f"give it {_FEWEST} at least"
        )
    known = {item.name: getattr(found, item.name) for item in fields(Artifact)}
    return StoredArtifact(**known, bucket=bucket, most_bytes=most_bytes)


def upload(artifact: Artifact, bucket: Bucket) -> None:
    """Copy an artifact to a bucket, its header last, so that what has one is whole.

    Raises:
        StoreError: the store does not answer, or refuses.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda name: bucket.write(name, artifact.path / name), artifact.files))
    bucket.write(HEADER, artifact.path / HEADER)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
