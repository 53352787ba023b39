"""Every random number of training, as a pure function of the seed, a stream and a position.

No generator is carried from step to step, so there is no random state to save: a
resumed run draws what the uninterrupted one would have drawn.
"""

from enum import IntEnum

import numpy as np
import torch


class RngStream(IntEnum):
    """Streams of random numbers, each independent of the others."""

    ORDER = 1  # of the studies in an epoch
    CHOICE = 2  # image and sentence of each study in a step
    VIEW = 3  # crop, brightness and contrast of each image in a step
    PAIRING = 4  # whose report each image gets in the shuffled control
    DROPOUT = 5  # of each process in a step
    VALIDATION = 6  # seed of the validation batches
    NEGATIVES = 7  # those that are kept, of each process in a step
    PRETRAINING = 8  # images and views of a step of pretraining; and its first weights


def generator_for(seed: int, stream: RngStream, *position: int) -> np.random.Generator:
    """Make the counter-based generator of one position, such as an epoch or a step."""
    sequence = np.random.SeedSequence([seed, int(stream), *position])
    return np.random.Generator(np.random.Philox(sequence))


def seed_for(seed: int, stream: RngStream, *position: int) -> int:
    """Return the seed, below 2**63, of one position for a generator that is not numpy's."""
    words = np.random.SeedSequence([seed, int(stream), *position]).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def torch_generator_for(seed: int, stream: RngStream, *position: int) -> torch.Generator:
    """Make the torch generator of one position, on the CPU."""
    return torch.Generator().manual_seed(seed_for(seed, stream, *position))
