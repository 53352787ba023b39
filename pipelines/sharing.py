"""A second run of a config: a folder next to the first, which begins with hard links to its data.

Files of artifacts are never changed in place: a stage that has other settings writes a folder of
its own and puts it where the linked one was, so the first run keeps what it has.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from medclip_dcl.core.artifact import HEADER
from medclip_dcl.core.errors import ConfigError

from .stages import DATA_ARTIFACTS

_SHARED = ("rows", *DATA_ARTIFACTS, "image_weights")
_NAME = re.compile(r"\w[\w.-]*")


def share_data(first: Path, name: str, *, say: bool = True) -> Path:
    """Make the folder of another run of the same config, and say what it shares; gives it.

    What it holds already stays.

    Raises:
        ConfigError: the name is none of a folder.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--as {name!r} must be letters, digits, dots and dashes")
    folder = first.with_name(f"{first.name}-{name}")
    shared = [item for item in _unshared(first, folder) if _link(first / item, folder / item)]
    if shared and say:
        print(f"{folder} shares with {first}, as hard links: {', '.join(shared)}", flush=True)
    return folder


def _unshared(first: Path, folder: Path) -> Iterator[str]:
    for name in _SHARED:
        if (first / name / HEADER).is_file() and not (folder / name).exists():
            yield name


def _link(source: Path, target: Path) -> bool:
    draft = target.with_name(f".{target.name}.shared")
    shutil.rmtree(draft, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, draft, copy_function=_link_file)
    with suppress(FileExistsError, NotADirectoryError):  # another process was faster
        draft.rename(target)
        return True
    shutil.rmtree(draft)
    return False


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
