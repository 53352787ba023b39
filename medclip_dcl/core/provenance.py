"""Provenance: versions of the packages, and digests of the modules, that make an artifact."""

import functools
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from medclip_dcl.core.artifact import Artifact, read_artifact_header
from medclip_dcl.core.errors import ArtifactError
from medclip_dcl.core.files import sha256_file
from medclip_dcl.core.plugins import plugin_files

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
