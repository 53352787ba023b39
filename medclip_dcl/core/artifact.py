"""Artifacts: folders of data files with `artifact.json`, whole or not there.

An artifact is written as a draft next to its final folder and renamed once every byte is on
disk and hashed, so a folder with the final name is whole. A draft outlives a kill: the next run
with the same fingerprint resumes where it stopped.

    fingerprint  what determines the content: type, version, settings, digests of inputs
    digest       what the content is: names, sizes and SHA-256 of all data files
    checksum     SHA-256 of the header itself
    origin       time, package versions and digests of the code that made it; in neither
                 fingerprint nor digest, so an edited module does not make an artifact invalid
    stamps       size, times and inode of each file that was hashed, in a note in this user's own
                 cache: a file that still has them is not hashed again
"""

import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medclip_dcl.core.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactStale
from medclip_dcl.core.files import cache_root, denials_named, sha256_file, write_text
from medclip_dcl.core.settings import Section

HEADER = "artifact.json"

_NOTES = "verified"  # folder in the cache: who may write to an artifact must not vouch for it
_MOST_NOTES = 1000
_TICK_NS = 2 * 10**9  # a file that is changed this soon after it was hashed may keep its times


@dataclass(frozen=True)
class ArtifactType:
    """The folder's name, the format version and the job that makes it."""

    name: str
    version: int
    job: str
    costly: bool = False
    """Whether an unfinished draft with other settings is refused, not deleted: it took hours."""

    def at(self, work: Path) -> Path:
        """Return the artifact's folder in `work`, whether it exists or not."""
        return work / self.name


@dataclass(frozen=True)
class Artifact:
    """A committed artifact: its folder, what made it and what it holds."""

    path: Path
    kind: str
    version: int
    fingerprint: dict[str, Any]
    fingerprint_digest: str
    files: dict[str, dict[str, Any]]
    digest: str
    summary: dict[str, Any]
    origin: dict[str, Any]

    def file(self, name: str) -> Path:
        """Return the path of a data file; ArtifactCorrupt where the header does not list it."""
        if name not in self.files:
            raise ArtifactCorrupt(f"artifact {self.kind} holds no {name!r}; rerun its job")
        return self.path / name


_HEADER_KEYS = {field.name for field in dataclasses.fields(Artifact)} - {"path"}


def make_fingerprint(
    kind: ArtifactType, settings: Mapping[str, Any], inputs: Mapping[str, Artifact | str]
) -> dict[str, Any]:
    """Name everything that determines an artifact's content: equal fingerprints, equal content.

    `inputs` are the artifacts that it is made from, or digests of other inputs.
    """
    plain = {
        name: value.model_dump(mode="json") if isinstance(value, Section) else value
        for name, value in settings.items()
    }
    digests = {
        name: item.digest if isinstance(item, Artifact) else item for name, item in inputs.items()
    }
    fingerprint = {"kind": kind.name, "version": kind.version, "settings": plain, "inputs": digests}
    # Tuples become lists, as on disk: a fingerprint equals the one that is read back.
    plain_tree: dict[str, Any] = json.loads(json.dumps(fingerprint))
    return plain_tree


def json_digest(tree: Any) -> str:
    """Hash a JSON tree independently of key order: 64 hexadecimal digits."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


@denials_named()
def open_artifact(path: Path, kind: ArtifactType, *, verify: bool = True) -> Artifact:
    """Open a committed artifact; without `verify` sizes alone are compared, not hashes.

    A file whose size, times and inode are those with which it was hashed before is not hashed
    again; `verify_artifact` hashes all.

    Raises:
        ArtifactMissing: there is none.
        ArtifactStale: it is of another type or format version.
        ArtifactUnreadable: this user may not read it.
        TooManyOpenFiles: this process may open no more files.
        ArtifactCorrupt: a file is missing, was added, or differs from what was committed.
    """
    if not path.exists() and (retired_folder(path) / HEADER).is_file():
        path = _restore(path)
    if not (path / HEADER).is_file():
        raise ArtifactMissing(f"no {kind.name} in {path}; run {kind.job} first")
    artifact = _read_header(path, kind)
    if artifact.kind != kind.name:
        raise ArtifactStale(
            f"{path} holds {artifact.kind}, where {kind.name} is read; name the folder of a "
            f"{kind.name}, or of the run that holds it"
        )
    if artifact.version != kind.version:
        raise ArtifactStale(
            f"{path} holds {artifact.kind} version {artifact.version}, version {kind.version} of "
            f"{kind.name} is read here; rerun {kind.job}"
        )
    trusted = _read_stamps(artifact) if verify else None
    stamps = _check_files(artifact, kind, trusted)
    if trusted is not None and stamps != trusted:
        note_stamps(artifact, stamps)
    return artifact


@denials_named()
def verify_artifact(path: Path) -> Artifact:
    """Open an artifact of any type and hash every file, whatever was noted before.

    Raises:
        ArtifactMissing: there is none.
        ArtifactCorrupt: as `open_artifact`.
    """
    if not (path / HEADER).is_file():
        raise ArtifactMissing(f"no artifact in {path}; name a folder that holds {HEADER}")
    kind = ArtifactType(path.name, 0, "its job")
    artifact = _read_header(path, kind)
    note_stamps(artifact, _check_files(artifact, kind, {}))
    return artifact


Stamp = list[int]
"""Size, time of the last change of the bytes and of the entry in ns, and inode of a file."""


def file_stamp(file: Path) -> Stamp:
    """Read by what a file is known to be the one that was hashed."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def note_stamps(artifact: Artifact, stamps: Mapping[str, Stamp]) -> None:
    """Note with which stamps the files of an artifact have its digest, if there is a cache."""
    now = time.time_ns()
    if all(max(stamp[1:3]) + _TICK_NS > now for stamp in stamps.values()):
        return  # nothing that could be trusted later
    with suppress(OSError, ArtifactError):
        note = _note_of(artifact)
        note.parent.mkdir(mode=0o700, exist_ok=True)
        write_text(note, json.dumps({"digest": artifact.digest, "files": stamps}))
        notes = sorted(note.parent.glob("*.json"), key=lambda item: item.stat().st_mtime_ns)
        for old in notes[:-_MOST_NOTES]:
            old.unlink()


def _note_of(artifact: Artifact) -> Path:
    """Name the note on an artifact: one a folder, which a new digest replaces."""
    name = hashlib.sha256(os.fsencode(artifact.path.resolve())).hexdigest()
    return cache_root() / _NOTES / f"{name}.json"


def _read_stamps(artifact: Artifact) -> dict[str, Stamp]:
    """Read the stamps of files that had settled when they were hashed; none after a change."""
    try:
        note = _note_of(artifact)
        tree = json.loads(note.read_text(encoding="utf-8"))
        latest = note.stat().st_mtime_ns - _TICK_NS
        if tree["digest"] != artifact.digest:
            return {}
        return {name: stamp for name, stamp in tree["files"].items() if max(stamp[1:3]) <= latest}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _check_files(
    artifact: Artifact, kind: ArtifactType, trusted: Mapping[str, Stamp] | None
) -> dict[str, Stamp]:
    """Compare files with the header; those without a trusted stamp are hashed, None: none is."""
    path, stamps = artifact.path, {}
    present, others = list_entries(path)
    if present != set(artifact.files) or others:
        for name in artifact.files:  # denied where a folder may not be entered, else missing
            with suppress(FileNotFoundError, NotADirectoryError):
                (path / name).stat()
        raise ArtifactCorrupt(f"{path} lacks a file or has one too many; rerun {kind.job}")
    for name, entry in artifact.files.items():
        file = path / name
        stamps[name] = stamp = file_stamp(file)
        is_hashed = trusted is not None and trusted.get(name) != stamp
        if stamp[0] != entry["bytes"] or (is_hashed and sha256_file(file) != entry["sha256"]):
            raise ArtifactCorrupt(f"{name} of {path} is damaged; rerun {kind.job}")
    return stamps


def open_if_current(
    path: Path, kind: ArtifactType, fingerprint: Mapping[str, Any]
) -> Artifact | None:
    """Open the artifact of a folder where it is whole and of this fingerprint, else give None.

    What an earlier one left behind when it was replaced is removed then.
    """
    try:
        artifact = open_artifact(path, kind)
    except ArtifactError:
        return None
    if artifact.fingerprint != fingerprint:
        return None
    remove_retired(path)
    return artifact


@denials_named()
def read_artifact_header(path: Path) -> Artifact:
    """Read the header of an artifact of any type, without checking its files."""
    return _read_header(path, ArtifactType(path.name, 0, "its job"))


def fingerprint_changes(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """List the settings and inputs that differ, one `name: old -> new` string each."""
    lines = []
    for name in sorted(set(old) | set(new)):
        here, there = old.get(name), new.get(name)
        if here == there:
            continue
        label = f"{prefix}{name}"
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            lines += fingerprint_changes(here, there, f"{label}.")
        else:
            lines.append(f"{label}: {_short(here)} -> {_short(there)}")
    return lines


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of an artifact's writer; ArtifactError where another process does."""
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArtifactError(
                f"{path} is being written by another process; wait for it"
            ) from error
        yield


def _restore(path: Path) -> Path:
    """Return its name to an artifact whose writer was killed between the two renames.

    The folder is still the retired one while a writer lives, or where this user may not rename it.
    """
    retired = retired_folder(path)
    with suppress(ArtifactError, OSError), locked(path):
        if not path.exists():
            retired.replace(path)
    return path if path.exists() else retired


def remove_retired(path: Path) -> None:
    """Delete the old artifact that a writer, killed right after its commit, left next to the new.

    Whoever reuses an artifact calls this: nothing else would free that space.
    """
    retired = retired_folder(path)
    if retired.exists() and path.exists():
        with suppress(ArtifactError, OSError), locked(path):  # another may be writing, and keeps it
            shutil.rmtree(retired)


def retired_folder(path: Path) -> Path:
    """Folder of the old artifact until the new one has its name."""
    return path.with_name(f".{path.name}.retired")


def _read_header(path: Path, kind: ArtifactType) -> Artifact:
    try:
        with denials_named():
            text = (path / HEADER).read_text(encoding="utf-8")
        tree = json.loads(text)
        whole = text == header_text(tree) and tree.pop("checksum") == json_digest(tree)
        if whole and set(tree) != _HEADER_KEYS:
            raise ArtifactStale(
                f"{path} was written by an earlier version of this project; rerun {kind.job}"
            )
        artifact = Artifact(path=path, **tree)
        whole &= artifact.digest == json_digest(artifact.files)
        whole &= artifact.fingerprint_digest == json_digest(artifact.fingerprint)
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ArtifactCorrupt(f"header of {path} cannot be read; rerun {kind.job}") from error
    if not whole:
        raise ArtifactCorrupt(f"header of {path} is damaged; rerun {kind.job}")
    return artifact


def header_text(tree: Mapping[str, Any]) -> str:
    """Lay a header out as it stands on disk."""
    return json.dumps(tree, indent=1, sort_keys=True) + "\n"


def list_entries(directory: Path) -> tuple[set[str], list[str]]:
    """List the files of an artifact, and what is neither a file nor a folder: that is never read.

    Hidden names are left out, of folders too: hubs, git and file systems put theirs everywhere.
    Files may be links, as in a hub's cache; a link to a folder is not followed.
    """
    files, others = set(), []
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *names):
            item = Path(folder, name)
            if name.startswith(".") or (name in folders and not item.is_symlink()):
                continue
            if item.is_file():
                files.add(item.relative_to(directory).as_posix())
            else:
                others.append(name)
    return files - {HEADER}, others


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_object(artifact: Artifact, name: str, kind: ArtifactType) -> dict[str, Any]:
    """Read the JSON object in a file of an artifact; ArtifactCorrupt where there is none."""
    try:
        with denials_named():
            tree = json.loads(artifact.file(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactCorrupt(f"{name} of {artifact.path} cannot be read") from error
    if not isinstance(tree, dict):
        raise ArtifactCorrupt(f"{name} of {artifact.path} holds no object; rerun {kind.job}")
    return tree
