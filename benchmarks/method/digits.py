"""SimCLR on handwritten digits whose odd classes are thinned to a share r.

Images of 16 x 16 pixels, 120 a class before thinning; a small convolutional network, a
head with batch norm, strong affine augmentation, gamma squared 2, 64 images a batch with
both views as anchors (N = 126), 400 steps (200 where a row stops early), Adam 1e-3. Probed
on features with one and five labels a class, mean of ten draws, and by class means; the
test images are balanced. What M = 3 adds are two more views of the anchor's image.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.method.bias import THINNED
from medclip_dcl.losses.debiased import Floor, debiased_contrastive_loss, debiasing_gauges
from medclip_dcl.losses.multi_positive import multi_positive_loss

SIDE, PER_CLASS, HELD_OUT = 16, 120, 54
BATCH, STEPS, EARLY_STEPS, GAMMA_SQUARED = 64, 400, 200, 2.0
GAUGED_EVERY = 20
LABELS_DRAWN, DRAWS = (1, 5), 10


@dataclass(frozen=True)
class DigitsRow:
    """One objective.

    Attributes:
        name: how the tables call it.
        eta: `none`, `low` (0.2 r / (1 + r)), `high` (0.2 / (1 + r)), `true` (share of the
            anchor's class), `reversed` (that of a class of the other kind), `shuffled`
            (that of another image).
        floor: what stands in for Eq. 8 at its minimum.
        mates: views v of the anchor's image, M.
        known: `none`, or what labels are used for: `remove` takes images of the anchor's
            class out of the negatives, `pull` makes them positives.
        early: whether training stops early, with a schedule of its own.
    """

    name: str
    eta: str = "none"
    floor: Floor = "floor"
    mates: int = 1
    known: str = "none"
    early: bool = False


ROWS = (
    DigitsRow("infonce"),
    DigitsRow("infonce, early", early=True),
    DigitsRow("low", "low"),
    DigitsRow("high", "high"),
    DigitsRow("true", "true"),
    DigitsRow("reversed", "reversed"),
    DigitsRow("shuffled", "shuffled"),
    DigitsRow("high, fallback", "high", "fallback"),
    DigitsRow("true, fallback", "true", "fallback"),
    DigitsRow("low, M = 3", "low", mates=3),
    DigitsRow("high, M = 3", "high", mates=3),
    DigitsRow("true, M = 3", "true", mates=3),
    DigitsRow("remove labels", known="remove"),
    DigitsRow("multipositive labels", known="pull"),
)


@dataclass(frozen=True)
class Digits:
    """Images of one run."""

    images: Tensor  # (images, 1, SIDE, SIDE) in [0, 1]
    classes: Tensor
    pool: Tensor
    pool_classes: Tensor
    """Balanced images that labels are drawn from: those of training before thinning."""
    test: Tensor
    test_classes: Tensor


@functools.lru_cache(maxsize=1)
def digits_of(r: float, seed: int) -> Digits:
    """Draw the images of a run; `r` is the share of the odd digits that stays."""
    generator = torch.Generator().manual_seed(seed)
    raw = load_digits()
    images = torch.as_tensor(raw.images / 16).float().unsqueeze(1)
    images = functional.interpolate(images, size=(SIDE, SIDE), mode="bilinear", antialias=False)
    labels = torch.as_tensor(raw.target)
    train, pool, test = [], [], []
    for digit in range(10):
        rows = (labels == digit).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=generator)]
        test.append(rows[:HELD_OUT])
        pool.append(rows[HELD_OUT : HELD_OUT + PER_CLASS])
        kept = round(PER_CLASS * r) if digit in THINNED else PER_CLASS
        train.append(pool[-1][:kept])
    parts = [torch.cat(rows) for rows in (train, pool, test)]
    (a, b, c) = ((images[rows], labels[rows]) for rows in parts)
    return Digits(*a, *b, *c)


class Network(nn.Module):
    """Three convolutions to 64 features, and a projection head."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((1, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
            layers += [nn.ReLU(), nn.MaxPool2d(2) if after < 64 else nn.AdaptiveAvgPool2d(1)]
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Sequential(
            nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Embed images as unit vectors."""
        return functional.normalize(self.head(self.features(images)), dim=1)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turn, scale, shear, shift and brighten images in [0, 1], add noise and cut a square out."""
    count = len(images)

    def spread(width: float) -> Tensor:
        return width * (2 * torch.rand(count, generator=generator) - 1)

    turn, scale, aspect, shear = spread(0.35), 1 + spread(0.25), 1 + spread(0.15), spread(0.2)
    across, down = turn.cos() / scale, turn.sin() / scale
    first = torch.stack([across * aspect, -down + shear, spread(0.25)], dim=1)
    second = torch.stack([down, across / aspect, spread(0.25)], dim=1)
    grid = functional.affine_grid(
        torch.stack([first, second], dim=1), [count, 1, SIDE, SIDE], align_corners=False
    )
    views = functional.grid_sample(images, grid, align_corners=False)
    views = views * (1 + spread(0.4)).view(-1, 1, 1, 1)
    views = views + 0.1 * torch.randn(views.shape, generator=generator)
    corner = torch.randint(SIDE - 4, (count, 2, 1), generator=generator)
    line = torch.arange(SIDE)
    rows, columns = ((line >= corner[:, k]) & (line < corner[:, k] + 5) for k in (0, 1))
    return views.masked_fill((rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1), 0)


def measure(row: DigitsRow, r: float, seed: int) -> dict[str, float]:
    """Train with one row's loss and probe the features; `r` is the share of odd digits that stays.

    Gives `lp1`, `lp5`: accuracy of a linear probe with that many labels a class; `mean`: accuracy
    of class means; `floor`: share of anchors on the floor, last quarter.
    """
    digits = digits_of(r, seed)
    torch.manual_seed(seed)
    network = Network().to(memory_format=torch.channels_last)
    steps = EARLY_STEPS if row.early else STEPS
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, weight_decay=1e-6, fused=True)
    generator = torch.Generator().manual_seed(seed)
    eta = _eta_of(row, r, digits, seed)
    views = 1 + max(row.mates, 1)
    order, floors = torch.empty(0, dtype=torch.long), []
    for step in range(steps):
        if len(order) < BATCH:
            order = torch.randperm(len(digits.images), generator=generator)
        chosen, order = order[:BATCH], order[BATCH:]
        images = digits.images[chosen].repeat(views, 1, 1, 1)
        z = network(augment(images, generator))
        gauged = 4 * step >= 3 * steps and step % GAUGED_EVERY == 0
        loss, floor = _loss(row, z, digits.classes[chosen], eta[chosen], gauged=gauged)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        floors += [floor] if gauged else []
    return _probe(network.eval(), digits, seed) | {"floor": float(np.mean(floors))}


def _loss(
    row: DigitsRow, z: Tensor, classes: Tensor, eta: Tensor, *, gauged: bool
) -> tuple[Tensor, float]:
    """Contrast the first two views of every image; further views are known positives."""
    anchors = 2 * BATCH
    s = GAMMA_SQUARED * z[:anchors] @ z.T
    image = torch.arange(len(z)) % BATCH
    index = torch.arange(anchors)
    positive = (index + BATCH) % anchors
    own = image[:anchors, None] == image[None, :]
    itself = torch.zeros_like(own).scatter(1, index.unsqueeze(1), True)
    mates = own & ~itself
    same = classes[image[:anchors]][:, None] == classes[image][None, :]
    if row.known == "pull":
        return multi_positive_loss(s, same & ~itself, itself, positive=positive), 0.0
    read = ~itself & (own | (torch.arange(len(z)) < anchors))
    if row.known == "remove":
        read &= own | ~same
    weights, gamma = read.float(), math.sqrt(GAMMA_SQUARED)
    given = {"weights": weights, "known_positives": mates}
    eta = eta.repeat(2)
    loss = debiased_contrastive_loss(s, positive, eta, gamma, floor=row.floor, **given)
    if not gauged:
        return loss, 0.0
    return loss, float(debiasing_gauges(s.detach(), positive, eta, gamma, **given)["frac_floor"])


def _eta_of(row: DigitsRow, r: float, digits: Digits, seed: int) -> Tensor:
    """Eta of each training image."""
    count = len(digits.images)
    shares = torch.bincount(digits.classes, minlength=10) / count
    if row.eta in {"low", "high"}:
        return torch.full((count,), 0.2 * (r if row.eta == "low" else 1) / (1 + r))
    if row.eta == "true":
        return shares[digits.classes]
    if row.eta == "reversed":  # an even digit and the odd one after it change places
        return shares[digits.classes ^ 1]
    if row.eta == "shuffled":
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        return shares[digits.classes][order]
    return torch.zeros(count)


@torch.inference_mode()
def _probe(network: Network, digits: Digits, seed: int) -> dict[str, float]:
    pool, test = network.features(digits.pool).numpy(), network.features(digits.test).numpy()
    classes, truth = digits.pool_classes.numpy(), digits.test_classes.numpy()
    generator = np.random.default_rng(seed)
    found: dict[str, list[float]] = {f"lp{count}": [] for count in LABELS_DRAWN}
    for count in LABELS_DRAWN:
        for _ in range(DRAWS):
            rows = np.concatenate(
                [
                    generator.choice(np.flatnonzero(classes == digit), count, replace=False)
                    for digit in range(10)
                ]
            )
            probe = LogisticRegression(C=1.0, max_iter=1000).fit(pool[rows], classes[rows])
            found[f"lp{count}"].append(float(probe.score(test, truth)))
    means = np.stack([pool[classes == digit].mean(axis=0) for digit in range(10)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    figures = {name: float(np.mean(values)) for name, values in found.items()}
    return figures | {"mean": float(((test @ means.T).argmax(axis=1) == truth).mean())}
