"""Learning rate over the run: linear warm-up, then cosine decay to zero."""

import math


def learning_rate_share(step: int, warmup_steps: int, steps: int) -> float:
    """Give the share of the peak learning rate that a step uses.

    Args:
        step: the step, from 0.
        warmup_steps: steps of linear warm-up; the last of them uses the peak.
        steps: steps in all.

    Returns:
        A number in (0, 1]; a pure function, so a resumed run has no schedule to restore.

    Source: Wang et al. 2023, Section 3.2 (warm-up, then cosine decay).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    past = (step - warmup_steps) / max(1, steps - warmup_steps)
    return 0.5 * (1.0 + math.cos(math.pi * min(past, 1.0)))
