"""Questions put to a model of the phantom: findings, sentences of boxes, images of sentences."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.metrics import average_precision_score
from torch.nn import functional

from benchmarks.method.phantom import GAMMA_SQUARED, Model, World, lse_scores
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
from medclip_dcl.evaluation.grounding import is_pointed_at, signed_cnr
from medclip_dcl.evaluation.metrics import (
    balanced_accuracy,
    best_ranks,
    recall_at,
    roc_auc,
    value_of,
)

RARE = 10
"""Fine findings from this number on are rare."""


@torch.inference_mode()
def examine(model: Model, world: World) -> dict[str, float]:
    """Put every question to a trained model: metric -> value.

    `auc` and `acc` of prompt pairs of common types, `auc single` of the positive prompt alone, `auc
    rare` the same of rare types; `acc offset`: prompts corrected by their level over the validation
    images; `report auc`: AUC on the validation images against what their own reports claim, which
    stops a row; `r1`, `r5`, `r1 rare` box -> the 20 fine sentences; `i2s` image -> a true sentence
    first; `map` fine sentence -> images; `point`, `cnr`, `cnr rare` on the 3 x 3 grid.
    """
    return _classify(model, world) | _locate(model, world.balanced)


def _classify(model: Model, world: World) -> dict[str, float]:
    kinds, images = range(len(TYPES)), world.natural
    asserted, denied = _prompt_scores(model, images)
    truth = np.array(
        [[kind in {f // len(SIDES) for f in image} for image in images.shown] for kind in kinds]
    )
    margin = asserted - denied
    common, rare = range(COMMON), range(COMMON, len(TYPES))
    held_asserted, held_denied = _prompt_scores(model, world.validation)
    levels = _offset(held_asserted) - _offset(held_denied)
    claimed = np.array(
        [[TYPES[kind] in claims.asserted for claims in world.validation_claims] for kind in common]
    )
    held = held_asserted - held_denied
    return {
        "acc offset": _mean(
            balanced_accuracy(margin[kind] - levels[kind], truth[kind]) for kind in common
        ),
        "report auc": _mean(roc_auc(held[kind], claimed[kind]) for kind in common),
        "auc": _mean(roc_auc(margin[kind], truth[kind]) for kind in common),
        "auc single": _mean(roc_auc(asserted[kind], truth[kind]) for kind in common),
        "acc": _mean(balanced_accuracy(margin[kind], truth[kind]) for kind in common),
        "auc rare": _mean(roc_auc(asserted[kind], truth[kind]) for kind in rare),
    }


def _prompt_scores(
    model: Model, images: PhantomImages
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores of the sentences that assert and deny each type, (types, images)."""
    kinds = range(len(TYPES))
    positive = [_asserts(kind) for kind in kinds]
    negative = [("cue0", type_word(kind, 0)) for kind in kinds]
    regions = model.regions(torch.from_numpy(images.regions))
    scores = lse_scores(regions, model.embed([*positive, *negative])).double().numpy()
    return scores[: len(TYPES)], scores[len(TYPES) :]


def _offset(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Level of each prompt over a bank of images: log mean e^s, in unscaled scores."""
    level = logsumexp(GAMMA_SQUARED * scores, axis=1) - np.log(scores.shape[1])
    return np.asarray(level / GAMMA_SQUARED)


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
