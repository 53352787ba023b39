"""A small model on the feature phantom: trained with one row's loss, then examined.

Sizes are those of the page that this bed rebuilds: 800 images, 64 pairs a batch, 2,000 steps
(700 where a row stops early), AdamW 4e-3 on one cycle, gamma squared 14 and fixed, texts as
anchors. Prototypes, images, reports, the reader's errors and the first weights differ from
seed to seed; all rows of a seed share them, and the batches.

Then it is asked for findings, for sentences of boxes and for images of sentences.
"""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.metrics import average_precision_score
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.method.phantom_world import (
    COMMON,
    FINE,
    GRID,
    SIDES,
    TYPES,
    Corpus,
    PhantomImages,
    Sentence,
    build_corpus,
    draw_balanced,
    draw_findings,
    draw_images,
    draw_report,
    plain_sentences,
    prototypes,
    read_reports,
    type_word,
)
from benchmarks.method.rows import Row
from medclip_dcl.evaluation.grounding import is_pointed_at, signed_cnr
from medclip_dcl.evaluation.metrics import (
    balanced_accuracy,
    best_ranks,
    recall_at,
    roc_auc,
    value_of,
)
from medclip_dcl.losses import negatives
from medclip_dcl.losses.debiased import debiased_contrastive_loss, debiasing_gauges
from medclip_dcl.losses.info_nce import info_nce_loss, sigmoid_loss
from medclip_dcl.losses.multi_positive import multi_positive_loss
from medclip_dcl.losses.relations import SAME, UNCLEAR

IMAGES, NATURAL, PER_FINDING, VALIDATION = 800, 1500, 25, 200
BATCH, STEPS, EARLY_STEPS, AUGMENTED_STEPS = 64, 2000, 700, 1200
LEARNING_RATE, GAMMA_SQUARED = 4e-3, 14.0
GAUGED_EVERY = 20
SIMILARITY_THRESHOLD, BETA, KEEP_SHARE, SIGMOID_BIAS = 0.9, 1.0, 0.5, -10.0
"""What the product's settings default to."""
_TAU = 0.1
_DIAGONAL = torch.arange(BATCH)


class World:
    """Everything that the rows of one seed share."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng((seed, 0))
        directions = prototypes(generator)
        shown = [draw_findings(generator) for _ in range(IMAGES)]
        images = draw_images(shown, directions, generator)
        reports = [draw_report(findings, generator) for findings in shown]
        self.corpus: Corpus = build_corpus(images, reports, generator)
        natural = [draw_findings(generator) for _ in range(NATURAL)]
        self.natural: PhantomImages = draw_images(natural, directions, generator)
        balanced = draw_balanced(PER_FINDING, generator)
        self.balanced: PhantomImages = draw_images(balanced, directions, generator)
        held_out = [draw_findings(generator) for _ in range(VALIDATION)]
        self.validation: PhantomImages = draw_images(held_out, directions, generator)
        validation_reports = [draw_report(findings, generator) for findings in held_out]
        self.validation_claims = read_reports(validation_reports, generator)


class Model(nn.Module):
    """Regions and bags of words -> unit vectors of one space."""

    def __init__(self, words: list[str]) -> None:
        super().__init__()
        self.number = {word: index for index, word in enumerate(words)}
        self.first, self.context = nn.Linear(24, 48), nn.Linear(48, 48)
        self.second, self.last = nn.Linear(48, 48), nn.Linear(48, 32)
        self.words = nn.Parameter(torch.randn(len(words), 64) * 0.1)
        self.hidden, self.out = nn.Linear(64, 64), nn.Linear(64, 32)

    def regions(self, images: Tensor) -> Tensor:
        """Embed regions; each sees the mean of its image."""
        x = functional.relu(self.first(images))
        x = x + self.context(x.mean(dim=1, keepdim=True))
        return functional.normalize(self.last(functional.relu(self.second(x))), dim=-1)

    def texts(self, bags: Tensor) -> Tensor:
        """Embed sentences, given as rows of word shares."""
        return functional.normalize(
            self.out(functional.relu(self.hidden(bags @ self.words))), dim=-1
        )

    def bags(self, sentences: list[Sentence]) -> Tensor:
        """Turn sentences into rows of word shares; unknown words count for nothing."""
        rows = torch.zeros(len(sentences), len(self.number))
        for row, sentence in zip(rows, sentences, strict=True):
            for word in sentence:
                if word in self.number:
                    row[self.number[word]] += 1 / len(sentence)
        return rows

    def embed(self, sentences: list[Sentence]) -> Tensor:
        """Embed sentences."""
        return self.texts(self.bags(sentences))


def lse_scores(regions: Tensor, sentences: Tensor) -> Tensor:
    """Score images against sentences: log-mean-exp over regions.

    The product's `lse` gives the same. Written out because at nine regions one matrix
    product is three times as fast, and a score within [-1, 1] needs no care for overflow.
    """
    h = (sentences @ regions.flatten(0, 1).T).view(len(sentences), *regions.shape[:2])
    return _TAU * (h / _TAU).exp().mean(dim=2).log()


@functools.lru_cache(maxsize=1)
def world_of(seed: int) -> World:
    """Draw the world of a seed, or give the last one again."""
    return World(seed)


def train(
    row: Row, seed: int, steps: int | None = None, noise: float = 0.0
) -> tuple[Model, dict[str, float]]:
    """Train with one row's loss; give the model, and gauges over the last quarter of training.

    `steps` are 2,000 unless given, or 700 where the row stops early. `noise` is the standard
    deviation of what augmentation adds to the regions of each step.
    """
    corpus = world_of(seed).corpus
    torch.manual_seed(seed)
    model = Model(sorted({word for sentence in corpus.sentences for word in sentence}))
    steps = steps or (EARLY_STEPS if row.early else STEPS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    bags, features = model.bags(list(corpus.sentences)), torch.from_numpy(corpus.images.regions)
    drawn = torch.Generator().manual_seed(seed)
    floors: list[float] = []
    for step, (images, texts) in enumerate(_batches(corpus, seed, steps)):
        shown = features[images]
        if noise:
            shown = shown + noise * torch.randn(shown.shape, generator=drawn)
        regions, sentences = model.regions(shown), model.texts(bags[texts])
        s = GAMMA_SQUARED * lse_scores(regions, sentences)
        loss = loss_of(row, corpus, s, images, texts, drawn)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle.step()
        if row.kind == "debiased" and 4 * step >= 3 * steps and step % GAUGED_EVERY == 0:
            floors.append(_on_floor(row, corpus, s, images, texts))
    return model.eval(), {"floor": float(np.mean(floors)) if floors else 0.0}


def loss_of(
    row: Row, corpus: Corpus, s: Tensor, images: Tensor, texts: Tensor, drawn: torch.Generator
) -> Tensor:
    """Compute one row's loss of a batch; with both directions the mean of the two.

    `s` are scaled similarities, (texts, images); `images` and `texts` are their numbers in the
    corpus; `drawn` is the source of resampled negatives.
    """
    from_texts = _direction(row, corpus, s, images, texts, drawn, turned=False)
    if row.directions == "t2i":
        return from_texts
    if row.image_anchor == "own":
        return (from_texts + info_nce_loss(s.T)) / 2
    return (from_texts + _direction(row, corpus, s.T, images, texts, drawn, turned=True)) / 2


def _direction(
    row: Row,
    corpus: Corpus,
    s: Tensor,
    images: Tensor,
    texts: Tensor,
    drawn: torch.Generator,
    *,
    turned: bool,
) -> Tensor:
    """The loss of one kind of anchors, which are the rows of `s`; `turned`: images."""
    if row.kind == "multipositive":
        relation = _relation(row, corpus, images, texts, turned=turned)
        return multi_positive_loss(s, relation == SAME, relation == UNCLEAR)
    if row.kind == "sigmoid":
        return sigmoid_loss(s, bias=SIGMOID_BIAS)
    if row.kind == "debiased":
        known = _correction(row, corpus, images, texts, turned=turned)
        gamma = math.sqrt(GAMMA_SQUARED)
        return debiased_contrastive_loss(s, None, gamma=gamma, floor=row.floor, **known)
    return info_nce_loss(s, weights=_weights(row, corpus, s, images, texts, drawn))


def _relation(row: Row, corpus: Corpus, images: Tensor, texts: Tensor, *, turned: bool) -> Tensor:
    relation = corpus.relations[row.relation][texts][:, images]
    return relation.T if turned else relation


def _correction(
    row: Row, corpus: Corpus, images: Tensor, texts: Tensor, *, turned: bool = False
) -> dict[str, Any]:
    """What the correction knows, as arguments of the loss."""
    eta = corpus.etas[row.eta][texts] if isinstance(row.eta, str) else row.eta
    if row.relation == "none":
        return {"eta": eta}
    relation = _relation(row, corpus, images, texts, turned=turned)
    return {
        "eta": eta,
        "known_mates": relation == SAME,
        "weights": (relation != UNCLEAR).float(),
    }


def _on_floor(row: Row, corpus: Corpus, s: Tensor, images: Tensor, texts: Tensor) -> float:
    known = _correction(row, corpus, images, texts)
    gauges = debiasing_gauges(s.detach(), None, gamma=math.sqrt(GAMMA_SQUARED), **known)
    return float(gauges["frac_floor"])


def _weights(
    row: Row, corpus: Corpus, s: Tensor, images: Tensor, texts: Tensor, drawn: torch.Generator
) -> Tensor | None:
    if row.negatives == "all":
        return None
    if row.negatives == "remove_labels":
        return negatives.remove_by_labels(corpus.overlap[images][:, images], _DIAGONAL)
    if row.negatives == "hard":
        return negatives.reweight_hard(s, _DIAGONAL, BETA)
    similarity = corpus.similarity[texts][:, texts]
    if row.negatives == "remove_similar":
        return negatives.remove_by_similarity(similarity, _DIAGONAL, SIMILARITY_THRESHOLD)
    if row.negatives == "reweight_similar":
        return negatives.reweight_by_similarity(similarity, _DIAGONAL, BETA)
    return negatives.resample_by_similarity(similarity, _DIAGONAL, BETA, KEEP_SHARE, drawn)


def _batches(corpus: Corpus, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Images of each step, every one once an epoch, and a sentence of each."""
    generator = np.random.default_rng((seed, 1))
    lengths = np.array([len(report) for report in corpus.said])
    starts, flat = np.cumsum(lengths) - lengths, np.concatenate(corpus.said)
    order: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    for _ in range(steps):
        if len(order) < BATCH:
            order = generator.permutation(IMAGES)
        images, order = order[:BATCH], order[BATCH:]
        texts = flat[starts[images] + (generator.random(BATCH) * lengths[images]).astype(np.int64)]
        yield torch.from_numpy(images), torch.from_numpy(texts)


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
