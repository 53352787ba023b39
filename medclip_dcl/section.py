"""What every section of the configuration has in common; keys that are kept in files."""

import stat
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from medclip_dcl.errors import ConfigError

NO_EFFECT = "no effect on the result"
"""Marks a setting, as in `Annotated[int, NO_EFFECT]`, that changes speed, memory or what is shown,
and not the artifact: a finished artifact stays valid whatever its value."""


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys and non-finite numbers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    def result_settings(self, *also: str) -> dict[str, Any]:
        """Give the settings that decide what a stage makes: all but those marked `NO_EFFECT`.

        Args:
            also: names of marked settings that do decide it this time.

        Returns:
            Plain values, for a fingerprint.
        """
        marked = {
            name for name, field in type(self).model_fields.items() if NO_EFFECT in field.metadata
        }
        return self.model_dump(mode="json", exclude=marked - set(also))


def read_key(path: Path) -> str:
    """Read the first key of a file, so that no command line and no environment shows it.

    Raises:
        ConfigError: the file is readable by others, cannot be read, or holds no key of
            printable ASCII.
    """
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = type(error).__name__
        raise ConfigError(f"key file {path} cannot be read ({reason}); name another") from error
    if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        raise ConfigError(f"key file {path} is open to others; run chmod 440 on it")
    keys = [line.strip() for line in lines if line.strip()]
    if not keys or not (keys[0].isascii() and keys[0].isprintable()):
        raise ConfigError(f"key file {path} holds no key of printable ASCII; write one a line")
    return keys[0]
