"""One batch of pairs, as the trainer hands it to a step."""

import torch

from medclip_dcl.training.dataset import ImageTextBatch
from tests.synthetic.films import random_images, random_tokens


def pair_batch(
    pairs: int, step: int = 0, eta: float = 0.05, mine: slice | None = None
) -> ImageTextBatch:
    """A global batch of `pairs` random pairs, of which `mine` are this process's."""
    own = slice(0, pairs) if mine is None else mine
    images = torch.from_numpy(random_images(pairs, seed=step)).unsqueeze(1)
    ids, mask = random_tokens(pairs, seed=step)
    return ImageTextBatch(
        step=step,
        mine=own,
        study_ids=tuple(f"s{number}" for number in range(pairs)),
        crops=images[own],
        brightness=torch.ones(len(images[own])),
        contrast=torch.ones(len(images[own])),
        input_ids=ids[own],
        attention_mask=mask[own],
        eta=torch.full((pairs,), eta),
        sentence_codes=None,
        report_codes=None,
        labels=None,
    )
