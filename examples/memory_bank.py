"""Two views of an image against negatives from a memory bank, at a temperature of 0.07.

    python examples/memory_bank.py [--data train.parquet] [--out runs/memory_bank]

The form of CMC (Tian et al. 2020), on which Chuang et al. 2020, Appendix B, replace the floor by
the uncorrected loss. An encoder reads each view: the halves of scikit-learn's digits, or the
luminance and the colors of a Parquet file's images. At this temperature the least value of e^s
is 6e-7, and an anchor that has learned its positive soon has an Eq. 8 below it: with
`floor="floor"` it stops learning. Compared are the share of such anchors and what a linear probe
reads from the encoders.
"""

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn.functional import normalize

from medclip_dcl import debiased_contrastive_loss, debiasing_gauges

TEMPERATURE, MOMENTUM, BATCH, DIM = 0.07, 0.5, 64, 64
FEW, DRAWS = 5, 20  # labels of a class for the second probe, and draws of them


def read_views(data: str, most: int) -> tuple[list[Tensor], np.ndarray]:
    """Return two views of every image, and the labels."""
    if data == "digits":
        digits = load_digits()
        images = torch.tensor(digits.images[:, None] / 8 - 1, dtype=torch.float32)
        return list(images.chunk(2, dim=3)), digits.target
    from datasets import Dataset  # only here: digits need nothing else

    rows = Dataset.from_parquet(data)[:most]
    pixels = [np.asarray(image.convert("YCbCr")) for image in rows["image"]]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2) / 64 - 2
    return [images[:, :1], images[:, 1:]], np.array(rows["label"])


def build_encoder(channels: int) -> nn.Sequential:
    """Build a small network; its last layer is the head, which the probes do not read."""
    first = nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()
    second = nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()
    return nn.Sequential(
        *first, *second, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, DIM)
    )


def train(
    views: list[Tensor], same: Tensor, tau: float, floor: str, seed: int, epochs: int, K: int
) -> tuple[nn.ModuleList, list[float]]:
    """Train an encoder a view; also give the share of anchors on the floor in each epoch.

    Negatives of an equal number in `same` are left out: a class, or a number of each image.
    """
    torch.manual_seed(seed)
    encoders = nn.ModuleList(build_encoder(view.shape[1]) for view in views)
    images = len(views[0])
    bank = normalize(torch.randn(2, images, DIM), dim=-1)
    optimizer = torch.optim.SGD(encoders.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    on_floor = []
    for _ in range(epochs):
        shares = []
        for rows in torch.randperm(images).split(BATCH)[: images // BATCH]:
            pairs = zip(encoders, views, strict=True)
            z = torch.stack([normalize(net(view[rows]), dim=-1) for net, view in pairs])
            others = (rows[:, None] + torch.randint(1, images, (BATCH, K))) % images
            columns = torch.cat([rows[:, None], others], dim=1)  # the positive comes first
            s = torch.einsum("vbd,vbkd->vbk", z, bank.flip(0)[:, columns]) / TEMPERATURE
            given = (
                s.flatten(0, 1),
                torch.zeros(2 * BATCH, dtype=torch.long),
                tau,
                TEMPERATURE**-0.5,
            )
            weights = (same[columns] != same[rows, None]).float().repeat(2, 1)
            optimizer.zero_grad()
            debiased_contrastive_loss(*given, weights=weights, floor=floor).backward()
            optimizer.step()
            bank[:, rows] = normalize(
                MOMENTUM * bank[:, rows] + (1 - MOMENTUM) * z.detach(), dim=-1
            )
            shares.append(debiasing_gauges(*given, weights=weights)["frac_floor"].item())
        on_floor.append(round(float(np.mean(shares)), 4))
    return encoders, on_floor


@torch.no_grad()
def probe(
    encoders: nn.ModuleList, views: list[Tensor], labels: np.ndarray, test: np.ndarray, seed: int
) -> dict[str, float]:
    """Return the accuracy of a linear probe on both views' features, by all and few labels."""
    parts = [net.eval()[:-1](view) for net, view in zip(encoders, views, strict=True)]
    features = torch.cat(parts, dim=1).numpy()
    rng = np.random.default_rng(seed)
    rows = np.setdiff1d(np.arange(len(labels)), test)
    drawn = []
    for _ in range(DRAWS):
        mixed = rng.permutation(rows)
        few = [mixed[labels[mixed] == label][:FEW] for label in np.unique(labels)]
        drawn.append(np.concatenate(few))
    found = {}
    for name, choices in (("all", [rows]), ("few", drawn)):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
        fits = (model.fit(features[chosen], labels[chosen]) for chosen in choices)
        scores = [fit.score(features[test], labels[test]) for fit in fits]
        found[name] = round(float(np.mean(scores)), 4)
    return found


def draw(rows: list[dict], path: Path) -> None:
    """Draw anchors on the floor by epoch, and accuracy by arm, one point a seed."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(row["arm"] for row in rows))
    for place, name in enumerate(names):
        mine = [row for row in rows if row["arm"] == name]
        if mine[0]["on_floor"]:
            left.plot(np.mean([row["on_floor"] for row in mine], axis=0), label=name)
        for key, fill in (("all", "C0"), ("few", "white")):
            label = f"{key} labels" if not place else None
            accuracy = [row[key] for row in mine]
            right.scatter(accuracy, [place] * len(mine), 22, fill, edgecolors="C0", label=label)
    left.set(xlabel="epoch", ylabel="share of anchors on the floor", ylim=(-0.03, 1.03))
    right.set(xlabel="accuracy of a linear probe", ylim=(len(names) - 0.5, -0.5))
    right.set_yticks(range(len(names)), names)
    left.legend(frameon=False, fontsize=8)
    right.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=100)


def main() -> list[dict]:
    """Train every arm and seed, print and draw; give one row each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits", help="digits, or a Parquet file")
    parser.add_argument("--images", type=int, default=5000, help="most images of a Parquet file")
    parser.add_argument("--negatives", type=int, default=256, help="K")
    parser.add_argument("--tau", type=float, nargs="+", default=[0.01, 0.1], help="tau+")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/memory_bank"))
    args = parser.parse_args()
    views, labels = read_views(args.data, args.images)
    learn, test = train_test_split(np.arange(len(labels)), stratify=labels, random_state=0)
    arms = {"untrained": (0.0, "floor", 0), "biased": (0.0, "floor", args.epochs)}
    arms["no false negatives"] = arms["biased"]  # a control that knows the labels
    for tau, floor in product(args.tau, ("floor", "fallback")):
        arms[f"tau+ {tau:g}, {floor}"] = tau, floor, args.epochs
    rows = []
    for seed, (name, (tau, floor, epochs)) in product(range(args.seeds), arms.items()):
        same = (
            torch.from_numpy(labels[learn]) if name.startswith("no") else torch.arange(len(learn))
        )
        own = [view[learn] for view in views]
        encoders, on_floor = train(own, same, tau, floor, seed, epochs, args.negatives)
        accuracy = probe(encoders, views, labels, test, seed)
        rows.append({"arm": name, "seed": seed, **accuracy, "on_floor": on_floor})
        print(f"{name:20} seed {seed}  {accuracy}  on the floor {on_floor[-1:]}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "results.json").write_text(json.dumps(rows) + "\n", encoding="utf-8")
    draw(rows, args.out / "memory_bank.png")
    return rows


if __name__ == "__main__":
    main()
