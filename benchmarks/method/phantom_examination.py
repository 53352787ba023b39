"""Questions put to a model of the phantom: findings, sentences of boxes, images of sentences."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score
from torch.nn import functional

from benchmarks.method.phantom import Model, World, lse_scores
from benchmarks.method.phantom_world import (
    COMMON,
    FINE,
    GRID,
    SIDES,
    TYPES,
    PhantomImages,
    Sentence,
    plain_sentences,
    type_word,
)
from medclip_dcl.evaluation.metrics import (
    balanced_accuracy,
    best_ranks,
    is_pointed_at,
    recall_at,
    roc_auc,
    signed_cnr,
    value_of,
)

RARE = 10
"""Fine findings from this number on are rare."""


@torch.inference_mode()
def examine(model: Model, world: World) -> dict[str, float]:
    """Put every question.

    Args:
        model: a trained model.
        world: the seed's images.

    Returns:
        Metric -> value: `auc` and `acc` of prompt pairs of common types, `auc single` of
        the positive prompt alone, `auc rare` the same of rare types; `r1`, `r5`, `r1 rare`
        box -> the 20 fine sentences; `i2s` image -> a true sentence first; `map` fine
        sentence -> images; `point`, `cnr`, `cnr rare` on the 3 x 3 grid.
    """
    return _classify(model, world.natural) | _locate(model, world.balanced)


def _classify(model: Model, images: PhantomImages) -> dict[str, float]:
    kinds = range(len(TYPES))
    positive = [_asserts(kind) for kind in kinds]
    negative = [("cue0", type_word(kind, 0)) for kind in kinds]
    regions = model.regions(torch.from_numpy(images.regions))
    sentences = model.embed([*positive, *negative])
    scores = lse_scores(regions, sentences).double().numpy()
    asserted, denied = scores[: len(TYPES)], scores[len(TYPES) :]
    truth = np.array(
        [[kind in {f // len(SIDES) for f in image} for image in images.shown] for kind in kinds]
    )
    margin = asserted - denied
    common, rare = range(COMMON), range(COMMON, len(TYPES))
    return {
        "auc": _mean(roc_auc(margin[kind], truth[kind]) for kind in common),
        "auc single": _mean(roc_auc(asserted[kind], truth[kind]) for kind in common),
        "acc": _mean(balanced_accuracy(margin[kind], truth[kind]) for kind in common),
        "auc rare": _mean(roc_auc(asserted[kind], truth[kind]) for kind in rare),
    }


def _locate(model: Model, images: PhantomImages) -> dict[str, float]:
    regions = model.regions(torch.from_numpy(images.regions))
    texts = [model.embed(plain_sentences(fine)) for fine in range(FINE)]
    owner = np.arange(FINE).repeat(len(images.shown) // FINE)
    boxed = torch.stack(
        [regions[row, list(images.boxes[row][fine])].mean(dim=0) for row, fine in enumerate(owner)]
    )
    vectors = functional.normalize(boxed, dim=-1)
    scores = torch.stack([(vectors @ text.T).amax(dim=1) for text in texts], dim=1).numpy()
    ranks = best_ranks(scores, owner[:, None] == np.arange(FINE))
    plain = torch.stack([text[0] for text in texts])
    whole = lse_scores(regions, plain).numpy()  # (sentences, images)
    truth = np.array([[fine in image for image in images.shown] for fine in range(FINE)])
    pointed, contrasts = _grounded(images, owner, plain.numpy(), regions.numpy())
    rare = owner >= RARE
    return {
        "r1": _mean([recall_at(ranks, 1)]),
        "r5": _mean([recall_at(ranks, 5)]),
        "r1 rare": _mean([recall_at(ranks[rare], 1)]),
        "i2s": float((best_ranks(whole.T, truth.T) == 1).mean()),
        "map": float(
            np.mean([average_precision_score(truth[fine], whole[fine]) for fine in range(FINE)])
        ),
        "point": float(pointed.mean()),
        "cnr": float(contrasts.mean()),
        "cnr rare": float(contrasts[rare].mean()),
    }


def _grounded(
    images: PhantomImages,
    owner: NDArray[np.int64],
    sentences: NDArray[np.float32],
    regions: NDArray[np.float32],
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Whether the best region of each finding is in its box, and how far the box stands out."""
    pointed, contrasts = [], []
    for row, fine in enumerate(owner.tolist()):
        heatmap = (regions[row] @ sentences[fine]).reshape(GRID, GRID)
        mask = np.zeros(GRID * GRID, dtype=bool)
        mask[list(images.boxes[row][fine])] = True
        pointed.append(is_pointed_at(heatmap, mask.reshape(GRID, GRID)))
        contrasts.append(signed_cnr(heatmap, mask.reshape(GRID, GRID)))
    return np.array(pointed, dtype=bool), np.array(contrasts, dtype=np.float64)


def _asserts(kind: int) -> Sentence:
    return (type_word(kind, 0), "carrier0")


def _mean(samples: Iterable[NDArray[np.float64]]) -> float:
    known = [value for value in map(value_of, samples) if value is not None]
    return float(np.mean(known))
