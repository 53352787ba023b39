"""One batch of pairs, as the trainer hands it to a step."""

import torch

from medclip_dcl.training.dataset import PairBatch
from tests.synthetic.films import random_films, random_tokens


def pair_batch(
    pairs: int, step: int = 0, eta: float = 0.05, mine: slice | None = None
) -> PairBatch:
    """A global batch of `pairs` random pairs, of which `mine` are this process's."""
    own = slice(0, pairs) if mine is None else mine
    films = torch.from_numpy(random_films(pairs, seed=step)).unsqueeze(1)
    ids, mask = random_tokens(pairs, seed=step)
    return PairBatch(
        step=step,
        mine=own,
        study_ids=tuple(f"s{number}" for number in range(pairs)),
        crops=films[own],
        brightness=torch.ones(len(films[own])),
        contrast=torch.ones(len(films[own])),
        input_ids=ids[own],
        attention_mask=mask[own],
        eta=torch.full((pairs,), eta),
        sentence_codes=None,
        report_codes=None,
        labels=None,
    )
