"""The spool: images by SHA-256 and the objects made of them, on disk before they are acknowledged.

    incoming/           images that arrive, removed at start
    images/DIGEST.dcm   images that are whole
    objects/DIGEST/     their objects, UID.dcm
    journal.sqlite3     `journal.Journal`
    lock                held by the gateway that works here

It holds identity: the folder's mode is 0700, and everything goes by age.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.files import remove_staged, sync_file, write_bytes
from medclip_dcl.data.dicom.metadata import read_instance_uid

RESERVE_BYTES = 256 << 20
"""Free bytes of the disk below which no image is taken; of a small disk a twentieth."""


class IncomingImage:
    """An image that arrives: hashed and written as it comes, kept only by `Spool.keep`.

    It takes the place of pynetdicom's temporary file, so `write` does not raise: an exception
    there would end the association's thread and leave the sender without an answer.
    """

    def __init__(self, spool: "Spool", max_bytes: int) -> None:
        self.path = spool.incoming / f"{secrets.token_hex(8)}.part"
        self.failure = ""
        """Why it cannot be kept: `too_large`, `spool_full` or `disk`; empty where it can."""
        self.size = 0
        self._spool, self._max_bytes = spool, max_bytes
        self._hash = hashlib.sha256()
        try:
            self._stream = self.path.open("xb")
        except OSError:
            self.failure = "disk"

    @property
    def name(self) -> str:
        """Path as text, for pynetdicom."""
        return str(self.path)

    @property
    def file(self) -> Self:
        """File object that pynetdicom flushes after every fragment."""
        return self

    def flush(self) -> None:
        """Do nothing: `Spool.keep` flushes once."""

    def write(self, data: bytes) -> int:
        """Take some bytes; after a failure they are counted and dropped."""
        self.size += len(data)
        try:
            if self.failure or self.size > self._max_bytes:
                self.failure = self.failure or "too_large"
            elif not self._spool.has_room(self.size):
                self.failure = "spool_full"
            else:
                self._hash.update(data)
                self._stream.write(data)
        except OSError:
            self.failure = "disk"
        return len(data)

    @property
    def digest(self) -> str:
        """SHA-256 of what was written."""
        return self._hash.hexdigest()

    def instance_uid(self) -> str:
        """SOP instance UID of the data set; empty where it cannot be read; OSError of the disk."""
        self._stream.flush()
        return read_instance_uid(self.path)

    def sync(self) -> None:
        """Bring everything to the disk; OSError where it cannot."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def close(self) -> None:
        """Close and remove it, unless it was kept."""
        with suppress(AttributeError, OSError):  # never opened; or its last bytes find no room
            self._stream.close()
        self.path.unlink(missing_ok=True)

    def __del__(self) -> None:  # of an association that ended before its image was looked at
        self.close()


class Spool:
    """The folder; `close` gives its lock back."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Take the folder, which is made if need be.

        ConfigError where others may enter it, it cannot be made, or another gateway has it.
        """
        self.folder, self._max_bytes = folder, max_bytes
        self.incoming, self._images = folder / "incoming", folder / "images"
        self._objects = folder / "objects"
        self._room = threading.Lock()
        prepare_folder(folder)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(
                f"spool {folder} is used by another gateway; stop it, or name another folder"
            ) from error
        shutil.rmtree(self.incoming, ignore_errors=True)  # what never was acknowledged
        for path in (self.incoming, self._images, self._objects):
            path.mkdir(mode=0o700, exist_ok=True)
        remove_staged(self._objects)
        self.bytes = 0
        self.remove()

    def close(self) -> None:
        """Let another gateway have the folder."""
        os.close(self._lock)

    def has_room(self, size: int) -> bool:
        """Whether an image of so many bytes fits into the limit, and leaves the disk its reserve.

        What was acknowledged needs it: rows of the journal, and objects.
        """
        disk = os.statvfs(self.folder)
        reserve = min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // 20)
        return self.bytes + size <= self._max_bytes and disk.f_bavail * disk.f_frsize > reserve

    def keep(self, part: IncomingImage) -> None:
        """Make a whole image durable under its digest; OSError where the disk does not take it."""
        part.sync()
        target = self.image(part.digest)
        with self._room:  # two senders may bring one image at a time
            if not target.exists():
                self.bytes += part.size
            part.path.replace(target)
        sync_file(self._images)

    def image(self, digest: str) -> Path:
        """Path of an image that is here, or was."""
        return self._images / f"{digest}.dcm"

    def digests(self) -> Iterable[str]:
        """Digests of all images that are here."""
        return sorted(path.stem for path in self._images.glob("*.dcm"))

    def write_objects(self, digest: str, objects: Mapping[str, bytes]) -> None:
        """Make the objects of an image durable, by UID; what an earlier attempt left is gone."""
        folder = self._objects / digest
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        for uid, data in objects.items():
            write_bytes(folder / f"{uid}.dcm", data)
        sync_file(self._objects)

    def object(self, digest: str, uid: str) -> Path:
        """Path of an object that is here, or was."""
        return self._objects / digest / f"{uid}.dcm"

    def remove(self, digests: Iterable[str] = ()) -> None:
        """Delete images with their objects; then count the bytes that are left."""
        for digest in digests:
            remove_image(self.folder, digest)
        with self._room:  # counted anew: `forget` deletes images in another process
            self.bytes = sum(path.stat().st_size for path in self._images.iterdir())


def remove_image(folder: Path, digest: str) -> None:
    """Delete an image and its objects from the spool in a folder."""
    (folder / "images" / f"{digest}.dcm").unlink(missing_ok=True)
    shutil.rmtree(folder / "objects" / digest, ignore_errors=True)


def prepare_folder(folder: Path) -> None:
    """Make a folder that its owner alone may enter; ConfigError where others may."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        raise ConfigError(
            f"spool {folder} cannot be made ({error.strerror}); name another folder"
        ) from error
    if mode & 0o077:
        raise ConfigError(f"spool {folder} has mode {mode:o}; it holds names, run chmod 700 on it")
