"""Settings of the generator."""

from typing import Annotated

from pydantic import Field

from medclip_dcl.settings import Section


class GenerateConfig(Section):
    """Generated studies with known truth, written below `source.root` (`generate_studies`)."""

    patients: Annotated[int, Field(gt=0, le=1_000_000)] = 1500
    """Number of patients whose findings are drawn as they fall; each has one or more studies."""
    coverage_images: Annotated[int, Field(ge=0, le=1000)] = 6
    """Extra test patients per fine finding, each with one study that shows it and nothing else."""
    size_px: Annotated[int, Field(ge=64)] = 256
    """Longer side of an image, pixels."""
    validate_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the patients put into `validate`."""
    test_share: Annotated[float, Field(ge=0, lt=0.9)] = 0.12
    """Share of the patients put into `test`; the coverage patients come on top."""
    faults: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Faults of each kind that are planted and listed in `truth/faults.csv`; 0: a sound tree."""
