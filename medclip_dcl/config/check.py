"""Settings of the check that is made before anything is prepared."""

from typing import Annotated

from pydantic import Field

from medclip_dcl.config.section import Section


class CheckConfig(Section):
    """What `check_data` looks at, and how much of it may be wrong."""

    films: Annotated[int, Field(ge=0)] = 0
    """Films that are opened, drawn with the seed; 0: all."""
    reports: Annotated[int, Field(ge=0)] = 0
    """Reports that are split into sentences and read for findings, drawn with the seed; 0: all."""
    unit: Annotated[int, Field(gt=0)] = 256
    """Films, or sections of reports, in one unit of work: what a kill can lose."""
    max_unusable_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rows that cannot be used (lateral views apart) above which the exit code is 3."""
    max_duplicate_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of opened films whose picture another film has, above which the exit code is 3."""
    max_leaks: Annotated[int, Field(ge=0)] = 0
    """Patients or pictures on both sides of a split, above which the exit code is 3."""
