"""Generated studies with known truth, in the shape of MIMIC-CXR."""

from typing import Annotated

from pydantic import Field

from medclip_dcl.core.settings import Section


class GenerateConfig(Section):
    """Generated studies with known truth, written below `source.root` (`generate_studies`)."""

    patients: Annotated[int, Field(gt=0, le=1_000_000)] = 1500
    """Number of patients whose findings are drawn as they fall, 12 % of them in `test`. From 40 on
    there are further test patients, six a fine finding at most, with one study that shows it and
    nothing else."""
    size_px: Annotated[int, Field(ge=64)] = 256
    """Longer side of an image, pixels."""
    validate_share: Annotated[float, Field(ge=0, lt=0.8)] = 0.05
    """Share of the patients put into `validate`."""
