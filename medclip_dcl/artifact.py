"""Artifacts: folders of data files with `artifact.json`, whole or not there.

An artifact is written as a draft next to its final folder and renamed once every byte is on
disk and hashed, so a folder with the final name is whole. A draft outlives a kill: the next run
with the same fingerprint goes on where it stopped.

    fingerprint  what determines the content: type, version, settings, digests of inputs
    digest       what the content is: names, sizes and SHA-256 of all data files
    checksum     SHA-256 of the header itself
    origin       time, package versions and digests of the code that made it; in neither
                 fingerprint nor digest, so an edited module does not make an artifact invalid
"""

import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from medclip_dcl.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactStale
from medclip_dcl.files import (
    denials_named,
    disk_faults_named,
    remove_staged,
    sha256_file,
    sync_file,
    write_text,
)
from medclip_dcl.settings import Section

HEADER = "artifact.json"
_FINGERPRINT = "fingerprint.json"
_DRAFT_CODE = "code.json"
_PACKAGES = (
    *("medclip-dcl", "torch", "transformers", "tokenizers", "accelerate", "numpy", "pyarrow"),
    *("pydicom", "imagecodecs", "pillow", "pysbd", "scikit-learn"),
)


@functools.cache
def package_versions() -> dict[str, str]:
    """Versions of the installed packages that can change what an artifact holds."""
    found = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


_PROJECT = Path(__file__).parents[1]
_CODE = tuple(f"{_PROJECT / name}/" for name in ("medclip_dcl", "pipelines"))


def code_digests() -> dict[str, str]:
    """Digests of the project's modules that this process has loaded, by path: 16 hex digits."""
    files = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    names = sorted(Path(file).relative_to(_PROJECT) for file in files if file.startswith(_CODE))
    return {name.as_posix(): _code_digest(name.as_posix()) for name in names}


def changed_code(artifact: "Artifact") -> list[str]:
    """List the modules that an artifact was made with and that differ now."""
    return _changed(artifact.origin.get("code", {}))


def remove_if_code_changed(path: Path) -> None:
    """Delete an artifact, or a checkpoint, that other code than today's has made."""
    with suppress(ArtifactError):
        if changed_code(read_artifact_header(path)):
            shutil.rmtree(path)


@functools.cache  # what a process has loaded stays what it was
def _code_digest(name: str) -> str:
    try:
        return sha256_file(_PROJECT / name)[:16]
    except OSError:
        return ""


def _changed(code: Mapping[str, str]) -> list[str]:
    return [name for name, digest in code.items() if _code_digest(name) != digest]


@dataclass(frozen=True)
class ArtifactType:
    """The folder's name, the format version and the job that makes it."""

    name: str
    version: int
    job: str
    costly: bool = False
    """Whether an unfinished draft with other settings is refused, not deleted: it took hours."""

    def at(self, work: Path) -> Path:
        """Give the artifact's folder in `work`, whether it exists or not."""
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
        """Give the path of a data file; ArtifactCorrupt where the header does not list it."""
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

    Raises:
        ArtifactMissing: there is none.
        ArtifactStale: it is of another type or format version.
        ArtifactUnreadable: this user may not read it.
        TooManyOpenFiles: this process may open no more files.
        ArtifactCorrupt: a file is missing, was added, or differs from what was committed.
    """
    if not path.exists() and (_retired(path) / HEADER).is_file():
        path = _restore(path)
    if not (path / HEADER).is_file():
        raise ArtifactMissing(f"no {kind.name} in {path}; run {kind.job} first")
    artifact = _read_header(path, kind)
    if (artifact.kind, artifact.version) != (kind.name, kind.version):
        raise ArtifactStale(
            f"{path} holds {artifact.kind} version {artifact.version}, version {kind.version} of "
            f"{kind.name} is read here; rerun {kind.job}"
        )
    found, others = _entries(path)
    if found != set(artifact.files) or others:
        for name in artifact.files:  # denied where a folder may not be entered, else missing
            with suppress(FileNotFoundError, NotADirectoryError):
                (path / name).stat()
        raise ArtifactCorrupt(f"{path} lacks a file or has one too many; rerun {kind.job}")
    for name, entry in artifact.files.items():
        file = path / name
        if file.stat().st_size != entry["bytes"] or (
            verify and sha256_file(file) != entry["sha256"]
        ):
            raise ArtifactCorrupt(f"{name} of {path} is damaged; rerun {kind.job}")
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


@dataclass
class ArtifactWriter:
    """An artifact that is being written; its draft, `directory`, survives a kill."""

    directory: Path
    final: Path
    kind: ArtifactType
    fingerprint: dict[str, Any]
    resumed: bool
    started: float
    carried: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Origin of an earlier artifact that stays that of this one."""

    def commit(self, summary: Mapping[str, Any]) -> Artifact:
        """Flush and hash the draft and rename it to its final folder.

        `summary` holds counts that people look at, no texts.
        """
        entries = {}
        for name in _data_files(self.directory):
            file = self.directory / name
            sync_file(file)
            entries[name] = {"bytes": file.stat().st_size, "sha256": sha256_file(file)}
        header = {
            "kind": self.kind.name,
            "version": self.kind.version,
            "fingerprint": self.fingerprint,
            "fingerprint_digest": json_digest(self.fingerprint),
            "files": entries,
            "digest": json_digest(entries),
            "summary": dict(summary),
            "origin": {  # no host or user name
                "committed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "seconds": round(time.monotonic() - self.started, 3),
                "python": platform.python_version(),
                "machine": platform.machine(),
                "system": platform.system(),
                "packages": package_versions(),
                "code": code_digests(),
                **self.carried,
            },
        }
        header["checksum"] = json_digest(header)
        write_text(self.directory / HEADER, _header_text(header))
        # Only now: a kill before this line leaves a note, one after it a header to resume by.
        for name in (_FINGERPRINT, _DRAFT_CODE):
            (self.directory / name).unlink(missing_ok=True)
        _publish(self.directory, self.final)
        return open_artifact(self.final, self.kind, verify=False)


@contextmanager
def write_artifact(
    path: Path, kind: ArtifactType, fingerprint: dict[str, Any], *, same_code: bool = False
) -> Iterator[ArtifactWriter]:
    """Write an artifact; what a killed run with the same fingerprint had written is kept.

    With `same_code` it is kept only where today's code wrote it. Leaving without `commit` keeps
    the draft for the next run.

    Raises:
        ArtifactError: another process is writing the same artifact.
        ArtifactStale: a costly type has an unfinished draft with another fingerprint.
        ArtifactUnwritable: the disk is full, or fails, or may not be written to.
    """
    with disk_faults_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            directory = path.with_name(f".{path.name}.draft")
            if same_code and _changed(_read_draft_code(directory)):
                shutil.rmtree(directory)
            resumed = _take_up(directory, kind, fingerprint)
            yield ArtifactWriter(directory, path, kind, fingerprint, resumed, time.monotonic())


def _take_up(directory: Path, kind: ArtifactType, fingerprint: dict[str, Any]) -> bool:
    """Return whether a draft of a killed run is resumed; else make a new one."""
    begun = _begun(directory)
    if begun == fingerprint:
        remove_staged(directory)
        write_text(directory / _FINGERPRINT, json.dumps(fingerprint, sort_keys=True))
        (directory / HEADER).unlink(missing_ok=True)
        return True
    if kind.costly and directory.exists() and _data_files(directory):
        changes = fingerprint_changes(begun, fingerprint) if begun else ["by an earlier version"]
        raise ArtifactStale(
            f"{directory} holds an unfinished {kind.name} that was started with other settings "
            f"({'; '.join(changes)}); set them back to go on with it, or delete that folder to "
            "start again"
        )
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir()
    write_text(directory / _DRAFT_CODE, json.dumps(code_digests()))
    write_text(directory / _FINGERPRINT, json.dumps(fingerprint, sort_keys=True))
    return False


def _read_draft_code(directory: Path) -> dict[str, str]:
    try:
        code: dict[str, str] = json.loads((directory / _DRAFT_CODE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return code


def _begun(directory: Path) -> dict[str, Any] | None:
    """Read a draft's fingerprint from its note or, if it was about to be renamed, its header."""
    for name in (_FINGERPRINT, HEADER):
        try:
            tree = json.loads((directory / name).read_text(encoding="utf-8"))
            fingerprint: dict[str, Any] = tree["fingerprint"] if name == HEADER else tree
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(fingerprint, dict):
            return fingerprint
    return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArtifactError(
                f"{path} is being written by another process; wait for it"
            ) from error
        yield


def _publish(directory: Path, final: Path) -> None:
    # A folder cannot be replaced in one rename; between the two, readers find the retired one.
    retired = _retired(final)
    replaces = final.exists()
    if replaces:
        if retired.exists():
            shutil.rmtree(retired)
        final.replace(retired)
    try:
        directory.replace(final)
    except OSError:
        if replaces:
            retired.replace(final)
        raise
    sync_file(final.parent)
    shutil.rmtree(retired, ignore_errors=True)


def _restore(path: Path) -> Path:
    """Give back its name to an artifact whose writer was killed between the two renames.

    Gives the folder where it is: still the retired one while a writer lives, or where this user
    may not rename it.
    """
    retired = _retired(path)
    with suppress(ArtifactError, OSError), _locked(path):
        if not path.exists():
            retired.replace(path)
    return path if path.exists() else retired


def remove_retired(path: Path) -> None:
    """Delete the old artifact that a writer, killed right after its commit, left next to the new.

    Whoever reuses an artifact calls this: nothing else would free that space.
    """
    retired = _retired(path)
    if retired.exists() and path.exists():
        with (
            suppress(ArtifactError, OSError),
            _locked(path),
        ):  # another may be writing, and keeps it
            shutil.rmtree(retired)


def _retired(path: Path) -> Path:
    """Folder of the old artifact until the new one has its name."""
    return path.with_name(f".{path.name}.retired")


def _read_header(path: Path, kind: ArtifactType) -> Artifact:
    try:
        with denials_named():
            text = (path / HEADER).read_text(encoding="utf-8")
        tree = json.loads(text)
        whole = text == _header_text(tree) and tree.pop("checksum") == json_digest(tree)
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


def _header_text(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, indent=1, sort_keys=True) + "\n"


def _data_files(directory: Path) -> list[str]:
    """List a draft's files; the frame's own notes and half-written files, which are hidden, not."""
    return sorted(_entries(directory)[0] - {_FINGERPRINT, _DRAFT_CODE})


def _entries(directory: Path) -> tuple[set[str], list[str]]:
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


Item = TypeVar("Item")
Row = dict[str, Any]


def map_resumable(
    folder: Path,
    name: str,
    items: Sequence[Item],
    size: int,
    answer: Callable[[Sequence[Item]], list[Row]],
    finished: Callable[[int], None],
) -> list[Row]:
    """Map items to rows, in units of `size`; what a killed run had finished is read back.

    `folder` is the draft's. The fingerprint must determine the order of the items. `answer` gives
    JSON-serialisable rows for the items of one unit; `finished` is called with how many are done.
    """
    rows: list[Row] = []
    for number, start in enumerate(range(0, len(items), size)):
        part = items[start : start + size]
        note = folder / f"unit-{name}-{number:06d}.json"
        if note.is_file():
            rows += json.loads(note.read_text(encoding="utf-8"))
        else:
            answers = answer(part)
            write_text(note, json.dumps(answers))
            rows += answers
        finished(len(part))
    return rows


def remove_resumable(folder: Path) -> None:
    """Remove the notes, and what a kill left half-written, before the draft is committed."""
    for note in [*folder.glob("unit-*.json"), *folder.glob(".unit-*")]:
        note.unlink()


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
