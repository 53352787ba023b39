"""Generated studies with known truth, in the shape of MIMIC-CXR."""

from typing import Annotated

from pydantic import Field

from medclip_dcl.core.settings import Section


class GenerateConfig(Section):
    """Generated studies with known truth, written below `source.root` (`generate_studies`)."""

    patients: Annotated[int, Field(gt=0, le=1_000_000)] = 1750
    """Number of patients, about 20 % of them in `test` and 10 % in `validate`."""
    size_px: Annotated[int, Field(ge=64)] = 256
    """Longer side of an image, pixels."""
