"""What every section of the configuration has in common."""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict

NO_EFFECT = "no effect on the result"
"""Marks a setting, as in `Annotated[int, NO_EFFECT]`, that changes speed, memory or what is shown,
and not the artifact: a finished artifact stays valid whatever its value."""

LOCAL = "names a place of this institution"
"""Marks a setting that names a file, a folder or a host: what is published does not hold it."""

WITHHELD = "withheld"
"""Stands for such a setting in what is published, where it was set."""

_PUBLIC_NAME = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")  # of a hub, where others find it too


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
        """Give the settings that decide what a stage makes, for a fingerprint.

        Those marked `NO_EFFECT` are left out, but for the names in `also`.
        """
        marked = {
            name for name, field in type(self).model_fields.items() if NO_EFFECT in field.metadata
        }
        return self.model_dump(mode="json", exclude=marked - set(also))

    def public_settings(self) -> dict[str, Any]:
        """Give plain values as they may leave the institution: those marked `LOCAL` are withheld.

        OWNER/NAME@COMMIT of a hub stays, since licences ask what a model was made from.
        """
        tree = self.model_dump(mode="json")
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Section):
                tree[name] = value.public_settings()
            elif LOCAL in field.metadata and value and not _PUBLIC_NAME.fullmatch(str(value)):
                tree[name] = WITHHELD
        return tree
