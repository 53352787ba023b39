"""Where an artifact came from: kept beside it, and no part of its digest."""

import functools
import platform
import time
from importlib import metadata
from typing import Any

PACKAGES = (
    "medclip-dcl",
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "numpy",
    "pyarrow",
    "pydicom",
    "imagecodecs",
    "pillow",
    "pysbd",
    "scikit-learn",
)


@functools.cache
def package_versions() -> dict[str, str]:
    """Versions of the packages that can change what an artifact holds.

    Returns:
        Package name -> version; packages that are not installed are left out.
    """
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def describe_origin(seconds: float) -> dict[str, Any]:
    """Describe the machine and moment at which an artifact was sealed.

    Args:
        seconds: wall time that the stage took, seconds.

    Returns:
        JSON-serialisable facts; no host or user name.
    """
    return {
        "sealed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 3),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "packages": package_versions(),
    }
