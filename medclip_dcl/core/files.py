"""Files that are there whole or not at all, paths that stay under their root, keys in files."""

import errno
import functools
import hashlib
import os
import re
import resource
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import (
    ArtifactUnreadable,
    ArtifactUnwritable,
    ConfigError,
    StudyError,
    TooManyOpenFiles,
)

STAGED = ".staged."
"""How the name of a file begins that is being written; one that a kill leaves is hidden, and goes
with its draft."""

# In the wheel they stand in the package, in the checkout next to it.
_CONFIG_ROOTS = (Path(), Path(__file__).parents[1], Path(__file__).parents[2])

DISK_FAULTS = {
    getattr(errno, name)
    for name in ("EACCES", "EDQUOT", "EFBIG", "EIO", "ENOSPC", "EPERM", "EROFS")
}


@contextmanager
def disk_faults_named(path: Path) -> Iterator[None]:
    """Turn the errors of a full, failing or read-only disk into ArtifactUnwritable.

    The outermost names the path: of an artifact, not of a file in its draft.
    """
    try:
        yield
    except Exception as error:
        fault = error.__cause__ if isinstance(error, ArtifactUnwritable) else error
        number = _errno_of(fault)
        if number not in DISK_FAULTS:
            raise
        raise ArtifactUnwritable(
            f"{path} could not be written: {os.strerror(number)}; what was there before still "
            "holds, and so does what had been written; make room and run again to go on"
        ) from fault


def _errno_of(error: BaseException | None) -> int:
    if isinstance(error, OSError):
        return error.errno or 0
    # tokenizers and safetensors raise errors of their own: "Input/output error (os error 5)", and
    # perhaps the path behind it
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match else 0


@contextmanager
def denials_named(path: Path | None = None) -> Iterator[None]:
    """Turn a denial into an error that names the file and the remedy.

    `path` names the file where the system's error does not.

    Raises:
        ArtifactUnreadable: this user may not read the file.
        TooManyOpenFiles: this process may open no more files.
    """
    try:
        yield
    except OSError as error:
        file = Path(error.filename) if error.filename else path
        if file is not None and isinstance(error, PermissionError):
            raise ArtifactUnreadable(file) from error
        if file is not None and error.errno in {errno.EMFILE, errno.ENFILE}:
            raise TooManyOpenFiles(file) from error
        raise


def raise_open_file_limit() -> None:
    """Let this process open as many files as the system allows it, not only Linux's usual 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS refuses an unlimited number
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a kill leaves the old content or the new, never a part.

    Raises:
        ArtifactUnwritable: the folder is not there, or the disk is full, fails, or may not be
            written to.
    """
    if not path.parent.is_dir() or path.is_dir():
        raise ArtifactUnwritable(
            f"{path} could not be written; name a file in a folder that exists"
        )
    staged = path.with_name(f"{STAGED}{path.name}.{secrets.token_hex(8)}")
    with disk_faults_named(path):
        try:
            with staged.open("xb") as stream:  # unlike mkstemp's, its mode is what the umask leaves
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())  # before the rename, else a crash may leave an empty file
            staged.replace(path)
        except BaseException:
            with suppress(OSError):  # what the disk said first is what is passed on
                staged.unlink()
            raise
        sync_file(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def remove_staged(folder: Path) -> None:
    """Delete what killed writers left half written in a folder that no one is writing to."""
    for path in folder.rglob(f"{STAGED}*"):
        path.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Flush a closed file, or a folder's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_file(path: Path) -> str:
    """Hash a file's bytes: 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@functools.lru_cache(maxsize=16)
def _resolved(root: Path) -> Path:
    return root.resolve()


def path_under(root: Path, relative: str) -> Path:
    """Resolve a path that a table names to a regular file under the root.

    Raises:
        StudyError: the path is absolute, leaves the root (also by a link), holds a
            NUL, or names no regular file. The message does not repeat it.
    """
    if not relative or "\0" in relative or Path(relative).is_absolute():
        raise StudyError("a path in the table is empty, absolute or holds a NUL; make it relative")
    base = _resolved(root)
    try:
        path = (base / relative).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a link that leads to itself; no Unicode
        raise StudyError("a file that the table names is missing") from error
    if not path.is_relative_to(base):
        raise StudyError("a path in the table leaves the source's root; keep files under it")
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise StudyError("a file that the table names is missing") from error
    if not stat.S_ISREG(mode):
        raise StudyError("a path in the table names no regular file")
    return path


def read_keys(path: Path) -> list[str]:
    """Read keys, one a line, from a file, so that no command line and no environment shows them.

    Blank lines, and those that begin with `#`, are none.

    ConfigError where the file is open to others, cannot be read or holds no printable ASCII.
    """
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "it is not UTF-8"
        raise ConfigError(f"key file {path} cannot be read ({reason}); name another") from error
    if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        raise ConfigError(f"key file {path} is open to others; run chmod 440 on it")
    stripped = (line.strip() for line in lines)
    keys = [line for line in stripped if line and not line.startswith("#")]
    if not keys or not all(key.isascii() and key.isprintable() for key in keys):
        raise ConfigError(f"key file {path} holds no key of printable ASCII; write one a line")
    return keys


def find_config(path: Path) -> Path:
    """Find a file of `configs`: here, else as it came with the package.

    `demo` means `configs/demo.yaml`, where no file is called `demo`. Other paths stay as they are.
    """
    if path.is_file() or not path.name:
        return path
    named = path if path.parts[:1] == ("configs",) else Path("configs", path.with_suffix(".yaml"))
    return next((file for root in _CONFIG_ROOTS if (file := root / named).is_file()), path)


def config_names() -> list[str]:
    """List the names that `find_config` knows, such as `demo` and `train/table`."""
    return sorted(
        {
            file.relative_to(root / "configs").with_suffix("").as_posix()
            for root in _CONFIG_ROOTS
            for file in (root / "configs").rglob("*.yaml")
        }
    )


def cache_root() -> Path:
    """Make the folder of this user's caches; OSError where others may write there."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = (Path(given) if given else Path.home() / ".cache") / "medclip-dcl"
    except RuntimeError as error:
        raise FileNotFoundError("no home is known") from error
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = root.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{root} may be written to by others")
    return root
