"""Studies in a bucket: `source.root: s3://BUCKET/PREFIX`, or gs:// or az://.

Objects are read whole, as the decode workers ask for them; a request that fails is sent again. The
library finds credentials, region and endpoint by its own chain: the environment (`AWS_*`,
`GOOGLE_*`, `AZURE_*`), then the role of the machine or pod. None is in a config or an artifact.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from medclip_dcl.data.row_images import Bucket
from medclip_dcl.data.source_settings import Resolve, SourceConfig
from medclip_dcl.errors import ConfigError, StoreError, StudyError

_SCHEMES = ("s3://", "gs://", "az://")
_RETRIES = {"max_retries": 10, "retry_timeout": timedelta(minutes=5)}  # then the job ends
_PIECE = 8 << 20
_MOST_BYTES = 1 << 30  # of an object: it is held in memory


@dataclass
class ObjectStore(Bucket):
    """The objects below a URL. It is sent to other processes without what it has listed."""

    url: str
    setting: str = "source.root"
    """Whose URL it is, for messages."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStore, (self.url, self.setting)

    def state(self, path: str) -> tuple[int, str] | None:
        """Give an object's size and version; None: it is not there. All are listed once."""
        return self._states.get(path)

    def read(self, path: str) -> bytes:
        """Read an object.

        Raises:
            StudyError: there is no such object, or it is larger than 1 GiB.
            StoreError: the store does not answer, or refuses.
        """
        with self._asked(path) as store:
            found = _library().get(store, path)
            if found.meta["size"] > _MOST_BYTES:
                raise StudyError("an object that the table names is larger than 1 GiB")
            return bytes(found.bytes())

    def pieces(self, path: str) -> Iterator[bytes]:
        """Read an object of any size piece by piece; as `read`."""
        with self._asked(path) as store:
            for piece in _library().get(store, path).stream(min_chunk_size=_PIECE):
                yield bytes(piece)

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Read some bytes of an object; as `read`."""
        with self._asked(path) as store:
            return bytes(_library().get_range(store, path, start=start, end=stop))

    def write(self, path: str, file: Path) -> None:
        """Write a file as an object; StoreError where the store does not answer, or refuses."""
        with self._asked(path) as store:
            _library().put(store, path, file)

    @contextmanager
    def _asked(self, path: str) -> Iterator[Any]:
        if not path or any(part in {"", ".", ".."} for part in path.split("/")):
            raise StudyError(
                "a path in the table is empty, absolute or not plain; make it relative"
            )
        try:
            yield _opened(self.url)
        except FileNotFoundError as error:
            raise StudyError("an object that the table names is missing") from error
        except _faults() as error:
            raise self._fault(error) from error

    @cached_property
    def _states(self) -> dict[str, tuple[int, str]]:
        try:
            parts = _library().list(_opened(self.url), chunk_size=10_000)
            return {
                item["path"]: (item["size"], item["e_tag"] or str(item["last_modified"]))
                for part in parts
                for item in part
            }
        except _faults() as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> StoreError:
        return StoreError(
            f"the object store of {self.setting} does not answer, or refuses "
            f"({type(error).__name__}); correct the URL, the variables of its credentials or the "
            "network, and run again"
        )


def open_root(settings: SourceConfig, resolve: Resolve) -> Path | Bucket:
    """Give the folder or bucket that paths of a source are relative to.

    ConfigError where the kind of source needs a folder, or the library is not installed.
    """
    if not settings.root.startswith(_SCHEMES):
        return resolve(settings.root)
    if settings.kind != "table":
        raise ConfigError(
            f"source.root is a bucket, and source.kind {settings.kind} needs a folder; list its "
            "images in a table (source.kind: table)"
        )
    return open_bucket(settings.root, "source.root")


def open_bucket(url: str, setting: str) -> ObjectStore:
    """Give the objects below the URL of a setting; ConfigError where they cannot be read."""
    if not url.startswith(_SCHEMES):
        raise ConfigError(f"{setting} {url!r} is no bucket; give s3://, gs:// or az:// and a path")
    _library()
    return ObjectStore(url.rstrip("/"), setting)


def _library() -> Any:
    try:
        return importlib.import_module("obstore")
    except ImportError as error:
        raise ConfigError(
            "a bucket is named, which needs obstore; run pip install '.[bucket]' in the checkout"
        ) from error


def _faults() -> tuple[type[Exception], ...]:
    return (importlib.import_module("obstore.exceptions").BaseError, OSError, ValueError)


@lru_cache(4)
def _opened(url: str) -> Any:
    return importlib.import_module("obstore.store").from_url(url, retry_config=_RETRIES)
