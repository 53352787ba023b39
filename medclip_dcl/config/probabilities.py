"""Settings of the calibrated probabilities."""

from typing import Annotated, Literal

from pydantic import Field

from medclip_dcl.config.section import Section


class ProbabilitiesConfig(Section):
    """Scores turned into probabilities (`calibrate_scores`)."""

    method: Literal["platt", "temperature", "isotonic"] = "platt"
    """`platt`: slope and intercept of the score's logit (Platt 2000); `temperature`: the slope
    alone (Guo et al. 2017), for prompts whose margin of 0 already means even odds; `isotonic`:
    any rising step function, for hundreds of films of each class."""
    least_per_class: Annotated[int, Field(ge=1)] = 30
    """Validation films with a finding, and as many without it, below which it stays
    uncalibrated."""
