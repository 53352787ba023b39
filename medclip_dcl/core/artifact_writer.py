"""Writing of artifacts: a draft that survives a kill, and the rename that commits it.

What a job works through in units is kept in the draft as well, so that the next run goes on with
the unit that was cut.
"""

import dataclasses
import functools
import json
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from medclip_dcl.core.artifact import (
    HEADER,
    Artifact,
    ArtifactType,
    file_stamp,
    fingerprint_changes,
    header_text,
    json_digest,
    list_entries,
    locked,
    note_stamps,
    open_artifact,
    read_artifact_header,
    retired_folder,
)
from medclip_dcl.core.errors import ArtifactError, ArtifactStale, ArtifactUnwritable
from medclip_dcl.core.files import (
    disk_faults_named,
    remove_staged,
    sha256_file,
    sync_file,
    write_text,
)
from medclip_dcl.core.plugins import plugin_files

_NOTE = "draft.json"  # of a draft: its fingerprint, and the code that began it


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
        entries, stamps = {}, {}
        names = _data_files(self.directory)
        with ThreadPoolExecutor() as pool:  # several wait for the disk as long as one
            list(pool.map(sync_file, [self.directory / name for name in names]))
        for name in names:
            file = self.directory / name
            stamps[name] = file_stamp(file)
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
        write_text(self.directory / HEADER, header_text(header))
        # Only now: a kill before this line leaves a note, one after it a header to resume by.
        (self.directory / _NOTE).unlink(missing_ok=True)
        _publish(self.directory, self.final)
        artifact = open_artifact(self.final, self.kind, verify=False)
        note_stamps(artifact, stamps)
        return artifact


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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ArtifactUnwritable(
                f"{path.parent} is below a file, or is one; name another folder in `work`"
            ) from error
        with locked(path):
            directory = path.with_name(f".{path.name}.draft")
            resumed = _take_up(directory, kind, fingerprint, same_code=same_code)
            yield ArtifactWriter(directory, path, kind, fingerprint, resumed, time.monotonic())


def _take_up(
    directory: Path, kind: ArtifactType, fingerprint: dict[str, Any], *, same_code: bool
) -> bool:
    """Return whether a draft of a killed run is resumed; else make a new one."""
    unfinished, code = _begun(directory)
    is_resumed = unfinished == fingerprint
    if is_resumed and same_code and changed_modules(code):
        shutil.rmtree(directory)
        is_resumed = False
    elif not is_resumed and kind.costly and directory.exists() and _data_files(directory):
        changes = (
            fingerprint_changes(unfinished, fingerprint)
            if unfinished
            else ["by an earlier version"]
        )
        raise ArtifactStale(
            f"{directory} holds an unfinished {kind.name} that was started with other settings "
            f"({'; '.join(changes)}); set them back to go on with it, or delete that folder to "
            "start again"
        )
    if is_resumed:
        remove_staged(directory)
    else:
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir()
        code = code_digests()
    note = {"fingerprint": fingerprint, "code": code}
    write_text(directory / _NOTE, json.dumps(note, sort_keys=True))
    (directory / HEADER).unlink(missing_ok=True)
    return is_resumed


def _begun(directory: Path) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Read a draft's fingerprint and code from its note or, once that is gone, its header."""
    for name in (_NOTE, HEADER):
        with suppress(OSError, ValueError, KeyError, TypeError):
            tree = json.loads((directory / name).read_text(encoding="utf-8"))
            return tree["fingerprint"], (tree["origin"] if name == HEADER else tree)["code"]
    return None, {}


def _publish(directory: Path, final: Path) -> None:
    # A folder cannot be replaced in one rename; between the two, readers find the retired one.
    retired = retired_folder(final)
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


def _data_files(directory: Path) -> list[str]:
    """List a draft's files; the frame's own notes and half-written files, which are hidden, not."""
    return sorted(list_entries(directory)[0] - {_NOTE})


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
    """Remove the notes before the draft is committed."""
    for note in folder.glob("unit-*.json"):
        note.unlink()


_PACKAGES = (
    *("medclip-dcl", "torch", "transformers", "tokenizers", "accelerate", "numpy", "pyarrow"),
    *("pydicom", "imagecodecs", "pillow", "scikit-learn"),
)


@functools.cache
def package_versions() -> dict[str, str]:
    """Versions of the installed packages that can change what an artifact holds."""
    versions = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


_PROJECT = Path(__file__).parents[2]
_PLUGIN = "plugin "  # begins the name of a module that is not the project's
_CODE = tuple(f"{_PROJECT / name}/" for name in ("medclip_dcl", "pipelines"))


def code_digests() -> dict[str, str]:
    """Digests of the modules of the project, and of plugins, that this process has loaded."""
    files = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    own = sorted(Path(file).relative_to(_PROJECT) for file in files if file.startswith(_CODE))
    names = [name.as_posix() for name in own] + [f"{_PLUGIN}{name}" for name in plugin_files()]
    return {name: _code_digest(name) for name in names}


def changed_code(artifact: "Artifact") -> list[str]:
    """List the modules that an artifact was made with and that differ now."""
    return changed_modules(artifact.origin.get("code", {}))


def remove_if_code_changed(path: Path) -> None:
    """Delete an artifact, or a checkpoint, that other code than today's has made."""
    with suppress(ArtifactError):
        if changed_code(read_artifact_header(path)):
            shutil.rmtree(path)


@functools.cache  # what a process has loaded stays what it was
def _code_digest(name: str) -> str:
    plugin = plugin_files().get(name.removeprefix(_PLUGIN))
    try:
        return sha256_file(plugin or _PROJECT / name)[:16]
    except OSError:
        return ""


def changed_modules(code: Mapping[str, str]) -> list[str]:
    """List the modules whose digests are not those of today."""
    absent = {name for name in code if name.removeprefix(_PLUGIN) not in plugin_files()}
    absent = {name for name in absent if name.startswith(_PLUGIN)}  # not loaded in this process
    return [name for name in code if name not in absent and _code_digest(name) != code[name]]
