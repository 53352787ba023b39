"""Studies in a bucket: `source.root: s3://BUCKET/PREFIX`, or gs:// or az://.

Objects are read whole, as the decode workers ask for them; a request that fails is sent again. The
library finds credentials, region and endpoint by its own chain: the environment (`AWS_*`,
`GOOGLE_*`, `AZURE_*`), then the role of the machine or pod. None is in a config or an artifact.
"""

import importlib
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
_MOST_BYTES = 1 << 30  # of an object: it is held in memory


@dataclass
class ObjectStore(Bucket):
    """The objects below a URL. It is sent to other processes without what it has listed."""

    url: str

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStore, (self.url,)

    def state(self, path: str) -> tuple[int, str] | None:
        """Give an object's size and version; None: it is not there. All are listed once."""
        return self._states.get(path)

    def read(self, path: str) -> bytes:
        """Read an object.

        Raises:
            StudyError: there is no such object, or it is larger than 1 GiB.
            StoreError: the store does not answer, or refuses.
        """
        if not path or any(part in {"", ".", ".."} for part in path.split("/")):
            raise StudyError(
                "a path in the table is empty, absolute or not plain; make it relative"
            )
        try:
            found = _library().get(_opened(self.url), path)
            if found.meta["size"] > _MOST_BYTES:
                raise StudyError("an object that the table names is larger than 1 GiB")
            return bytes(found.bytes())
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
            "the object store of source.root does not answer, or refuses "
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
    _library()
    return ObjectStore(settings.root.rstrip("/"))


def _library() -> Any:
    try:
        return importlib.import_module("obstore")
    except ImportError as error:
        raise ConfigError(
            "source.root is a bucket, which needs obstore; run pip install '.[bucket]' in the "
            "checkout"
        ) from error


def _faults() -> tuple[type[Exception], ...]:
    return (importlib.import_module("obstore.exceptions").BaseError, OSError, ValueError)


@lru_cache(4)
def _opened(url: str) -> Any:
    return importlib.import_module("obstore.store").from_url(url, retry_config=_RETRIES)
