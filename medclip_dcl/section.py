"""What every section of the configuration has in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict

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
        """Give the settings that decide what a stage makes, for a fingerprint.

        Those marked `NO_EFFECT` are left out, but for the names in `also`.
        """
        marked = {
            name for name, field in type(self).model_fields.items() if NO_EFFECT in field.metadata
        }
        return self.model_dump(mode="json", exclude=marked - set(also))
