"""SimCLR with the debiased loss on images alone: CIFAR10-r, CIFAR10, STL10, or digits.

    python examples/image_only/train.py --data digits --loss true --ratio 0.25 --out runs/digits_r

The image-only experiments of both papers. A recipe holds the settings of one;
examples/README.md says whose each is. Everything random is a function of the seed and a place
(class, epoch, step). So there is no random state to save, and a batch does not depend on the number
of processes.

Sources: Chen et al. 2020 (SimCLR); Chuang et al. 2020, Figure 4 (CIFAR10, STL10), and their code
(both views as anchors, the ranges of the views); Wang et al. 2023, Section 3.1 (CIFAR10-r, eta by
class).
"""

import argparse
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from augment import Images, Views, draw_views, normalize, show
from datasets import ClassLabel, Dataset, DatasetDict, Features, load_dataset, load_from_disk
from datasets import Image as ImageFeature
from jaxtyping import Float, Int64, UInt8
from PIL.Image import Resampling
from probe import Labeled, draw_map, probe_by_fraction
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from transformers import ResNetConfig, ResNetModel

from medclip_dcl import debiased_contrastive_loss, debiasing_gauges, gather_with_grad

GAMMA = math.sqrt(2.0)  # s = gamma**2 * cosine, that is a temperature of 0.5
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 1e-6
IMBALANCE, ORDER, VIEWS = range(3)  # independent streams of randomness
WARMUP_SHARE = 1 / 30  # of the steps of a cosine schedule
RESNETS = {
    18: ("basic", [2, 2, 2, 2], [64, 128, 256, 512]),
    50: ("bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048]),
}

Labels = Int64[np.ndarray, " images"]

# ---- Options --------------------------------------------------------------------------------

CHUANG = {  # CIFAR10 as in Chuang et al. 2020 and their code
    "size": 32,
    "view_size": 32,
    "channels": 3,
    "mean": [0.4914, 0.4822, 0.4465],
    "std": [0.2023, 0.1994, 0.2010],
    "smallest_crop": 0.08,
    "rotation_rad": 0.0,
    "flip": 0.5,
    "blur": 0.5,
    "resnet": 50,
    "hidden": 512,
    "dim": 128,
    "forwards": "each",
    "batch": 256,
    "epochs": 400,
    "loss": "constant",
}
RECIPES = {
    "cifar10": CHUANG,
    "stl10": CHUANG | {"size": 96},  # views of 32 pixels; probes read the whole 96
    "cifar10_r": CHUANG  # Wang et al. 2023; what they leave open is Chuang et al.'s
    | {"resnet": 18, "batch": 128, "epochs": 300, "loss": "true", "ratio": 0.1}
    | {"rare": ["dog", "frog", "horse", "ship", "truck"]},
    "digits": CHUANG  # ours; a mirrored digit, or a keyhole's view of one, is another digit
    | {"size": 16, "view_size": 16, "channels": 1, "mean": [0.5], "std": [0.25]}
    | {"smallest_crop": 0.4, "rotation_rad": 0.35, "flip": 0.0, "blur": 0.0}
    | {"widths": [16, 32, 64], "blocks": 1, "hidden": 64, "dim": 64, "forwards": "one"}
    | {"batch": 64, "epochs": 33, "schedule": "cosine", "clip": 1.0, "loss": "true", "ratio": 0.1}
    | {"rare": ["1", "3", "5", "7", "9"], "per_class": 110, "test_per_class": 54},
}


def parse_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; the recipe sets the defaults."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--data", default="digits", help="digits, a file or folder, or a Hub name")
    first.add_argument("--recipe", choices=RECIPES, help="defaults of all else")
    known = first.parse_known_args(argv)[0]
    recipe = known.recipe or ("digits" if known.data == "digits" else "cifar10_r")
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        parents=[first],
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--image-column", default="image")
    add("--label-column", default="label")
    add("--unlabeled-split", default="unlabeled", help="images that train and are never probed")
    add("--size", type=int, help="side of an image, pixels")
    add("--view-size", type=int, help="side of a view, pixels")
    add("--mean", type=float, nargs="+", help="of each channel, subtracted")
    add("--std", type=float, nargs="+", help="of each channel, divided by")
    add("--rare", nargs="*", default=[], help="classes made rare in the training split")
    add("--ratio", type=float, default=1.0, help="share r of a rare class that is kept")
    add("--per-class", type=int, default=0, help="most training images; 0: all")
    add("--test-per-class", type=int, default=0, help="test images; 0: all")
    losses = ("cl", "low", "high", "true", "constant", "oracle")
    add("--loss", choices=losses, help="see examples/README.md")
    add("--eta", type=float, default=0.1, help="tau+ of Chuang et al., for --loss constant")
    add("--positives", type=int, default=1, help="M, views that estimate the correction")
    add("--floor", choices=("floor", "zero", "fallback"), default="floor")
    add("--resnet", type=int, choices=RESNETS)
    add("--widths", type=int, nargs="+", help="channels of each stage of a smaller ResNet")
    add("--blocks", type=int, default=2, help="of each of its stages")
    add("--forwards", choices=("one", "each"), help="batch norm over all views, or over each")
    add("--batch", type=int, help="images over all processes; N = 2 (batch - 1)")
    add("--epochs", type=int, help="times that the training images are passed")
    add("--steps", type=int, default=0, help="in place of epochs, for a short trial")
    add("--schedule", choices=("constant", "cosine"), default="constant", help="learning rate")
    add("--clip", type=float, default=0.0, help="largest norm of a gradient; 0: any")
    add("--precision", choices=("no", "bf16"), default="no")
    add("--shares", type=float, nargs="+", default=[0.01, 0.1, 1.0], help="of labels, for probes")
    add("--seed", type=int, default=0)
    add("--out", type=Path, required=True, help="folder of checkpoint and results")
    add("--save-every", type=int, default=500, help="steps between checkpoints")
    add("--log-every", type=int, default=50, help="steps between lines of the log")
    parser.set_defaults(**RECIPES[recipe], recipe=recipe)
    args = parser.parse_args(argv)
    if not (0 < args.ratio <= 1 and 0 <= args.eta < 1 and args.positives >= 1):
        parser.error(
            f"--ratio {args.ratio} must be in (0, 1], --eta {args.eta} in [0, 1) and "
            f"--positives {args.positives} at least 1"
        )
    return args


# ---- Images ---------------------------------------------------------------------------------


class Split(NamedTuple):
    """Images of one split."""

    pixels: UInt8[Tensor, "images channels size size"]
    labels: Labels  # -1: none

    def labeled(self) -> "Split":
        """Leave out images without a label."""
        rows = np.flatnonzero(self.labels >= 0)
        return (
            self if len(rows) == len(self.labels) else Split(self.pixels[rows], self.labels[rows])
        )


class ImageSet(NamedTuple):
    """The training split alone is imbalanced, and may hold images without a label."""

    names: list[str]
    is_rare: list[bool]
    train: Split
    test: Split


def open_dataset(data: str, splits: Sequence[str]) -> DatasetDict:
    """Open scikit-learn's digits, Parquet files, or whatever the `datasets` package reads."""
    if data == "digits":
        digits = load_digits()
        names = [str(name) for name in digits.target_names]
        gray = list(np.rint(digits.images * (255 / 16)).astype(np.uint8))
        features = Features({"image": ImageFeature(), "label": ClassLabel(names=names)})
        columns = {"image": gray, "label": digits.target}
        return DatasetDict(train=Dataset.from_dict(columns, features=features))
    files = {split: sorted(map(str, Path(data).rglob(f"{split}*.parquet"))) for split in splits}
    if Path(data).is_file():
        files = {"train": [data]}
    if files["train"]:  # each split by itself: the unlabeled one may have other columns
        found = {split: Dataset.from_parquet(paths) for split, paths in files.items() if paths}
        return DatasetDict(found)
    if any((Path(data) / name).exists() for name in ("dataset_dict.json", "state.json")):
        saved = load_from_disk(data)
        return saved if isinstance(saved, DatasetDict) else DatasetDict(train=saved)
    return load_dataset(data)


def read_images(args: argparse.Namespace) -> ImageSet:
    """Divide and decode a dataset; without a test split of its own, some images are held out."""
    source = open_dataset(args.data, ["train", "test", args.unlabeled_split])
    train, test = source["train"], source.get("test")
    if test is None and not args.test_per_class:
        raise SystemExit(f"{args.data} has no test split; give --test-per-class")
    labels = _labels(train, args)
    if labels.max() < 0:
        raise SystemExit(f"{args.data} has no labels in {args.label_column}; probes need some")
    names = getattr(train.features[args.label_column], "names", None)
    names = names or [str(label) for label in range(labels.max() + 1)]
    if unknown := sorted(set(args.rare) - set(names)):
        raise SystemExit(f"--rare names {unknown}; the classes are {names[:40]}")
    is_rare = [name in args.rare for name in names]
    rows = divide(labels, is_rare, args, held_out=args.test_per_class if test is None else 0)
    if test is not None:
        shown = _labels(test, args)
        if shown.min() < 0:
            raise SystemExit(f"{args.data} has test images without a label; leave them out")
        rows["test"] = divide(shown, is_rare, args, args.test_per_class or len(shown))["test"]
    learned = _decode(train, rows["train"], args)
    if args.unlabeled_split in source:
        more = source[args.unlabeled_split]
        pixels = _decode(more, np.arange(len(more)), args).pixels
        unknown_labels = np.full(len(more), -1)
        learned = Split(
            torch.cat([learned.pixels, pixels]), np.concatenate([learned.labels, unknown_labels])
        )
    tested = _decode(train if test is None else test, rows["test"], args)
    return ImageSet(names, is_rare, learned, tested)


def divide(
    labels: Labels, is_rare: Sequence[bool], args: argparse.Namespace, held_out: int
) -> dict[str, np.ndarray]:
    """Choose the rows that train and those that test, class by class.

    A rare class keeps round(ratio n) of its n training images, at least one. A smaller ratio
    keeps a part of what a larger one keeps; the test images are the same at every ratio. Every
    image without a label trains.
    """
    trained, tested = [np.flatnonzero(labels < 0)], []
    for label, rare in enumerate(is_rare):
        rows = np.flatnonzero(labels == label)
        rows = np.random.default_rng([args.seed, IMBALANCE, label]).permutation(rows)
        pool = rows[held_out:][: args.per_class or None]
        kept = max(1, round(args.ratio * len(pool))) if rare else len(pool)
        tested.append(rows[:held_out])
        trained.append(pool[:kept])
    parts = {"train": trained, "test": tested}
    return {name: np.sort(np.concatenate(rows)) for name, rows in parts.items()}


def class_eta(
    loss: str, counts: Sequence[int], is_rare: Sequence[bool], ratio: float, constant: float
) -> Float[Tensor, " classes"]:
    """Return the chance that a random image is of the anchor's class, as the loss assumes it."""
    if loss == "true":
        return torch.tensor(counts) / sum(counts)
    whole = sum(ratio if rare else 1.0 for rare in is_rare)  # images, counted in whole classes
    values = {"low": ratio / whole, "high": 1 / whole, "constant": constant}
    return torch.full((len(is_rare),), values.get(loss, 0.0))  # eta = 0 is InfoNCE


def _labels(dataset: Dataset, args: argparse.Namespace) -> Labels:
    if args.label_column not in dataset.column_names:
        return np.full(len(dataset), -1)
    labels = dataset.select_columns(args.label_column)[:][args.label_column]
    return np.array([-1 if label is None else label for label in labels], np.int64)


def _decode(dataset: Dataset, rows: np.ndarray, args: argparse.Namespace) -> Split:
    mode = ImageFeature(mode="L" if args.channels == 1 else "RGB")
    shape = (args.size, args.size)
    pixels = [
        np.asarray(row[args.image_column].resize(shape, Resampling.BILINEAR)).reshape(*shape, -1)
        for row in dataset.select(rows).cast_column(args.image_column, mode)
    ]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
    return Split(images, _labels(dataset, args)[rows])


# ---- Model and loss -------------------------------------------------------------------------


class Encoder(nn.Module):
    """ResNet with a stem for small images, and a head of two layers."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        if args.widths:
            layer, depths, widths = "basic", [args.blocks] * len(args.widths), args.widths
        else:
            layer, depths, widths = RESNETS[args.resnet]
        channels, first = args.channels, min(64, widths[0])
        self.parts = 1 if args.forwards == "one" else args.positives + 1
        self.backbone = ResNetModel(
            ResNetConfig(
                num_channels=channels,
                embedding_size=first,
                hidden_sizes=widths,
                depths=depths,
                layer_type=layer,
            )
        )
        stem = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        self.backbone.embedder.embedder.convolution = stem
        self.backbone.embedder.pooler = nn.Identity()
        layers = nn.Linear(widths[-1], args.hidden), nn.BatchNorm1d(args.hidden), nn.ReLU()
        self.head = nn.Sequential(*layers, nn.Linear(args.hidden, args.dim))

    def forward(self, images: Images) -> Float[Tensor, "images dim"]:
        """Map views to unit vectors, all first ones before all second ones."""
        found = [self.head(self.features(part)) for part in images.chunk(self.parts)]
        return functional.normalize(torch.cat(found).float())

    def features(self, images: Images) -> Float[Tensor, "images features"]:
        """Return what the probes read: the mean of the last map, below the head."""
        return self.backbone(images).last_hidden_state.mean(dim=(2, 3))


def build_encoder(args: argparse.Namespace) -> Encoder:
    """Build the model; the seed alone decides its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        return Encoder(args)


def similarities(
    vectors: Float[Tensor, "views local dim"], first: int, batch: int
) -> tuple[Float[Tensor, "anchors others"], Int64[Tensor, " anchors"], Tensor]:
    """Compare the first two views of this process with the other views of the global batch.

    Args:
        vectors: unit vectors of the first views, of the second ones, and of any further ones.
        first: place of this process's first image in the batch.
        batch: images in the batch, over all processes.

    Returns:
        s, with a row for each first and second view. Its columns are every first and second
        view but the row's own: the positive, which is the other view of the image, and
        N = 2 batch - 2 negatives; then the further views of the row's own image. Also the
        column of the positive, and the image that each column shows.
    """
    pair, further = vectors[:2], vectors[2:]
    both = gather_with_grad(pair.transpose(0, 1)).transpose(0, 1)
    mine = torch.arange(first, first + vectors.shape[1], device=vectors.device)
    own, partner = torch.cat([mine, batch + mine]), torch.cat([batch + mine, mine])
    columns = torch.arange(2 * batch - 1, device=vectors.device)
    columns = columns + (columns >= own.unsqueeze(1))
    s = (pair.flatten(0, 1) @ both.flatten(0, 1).T).gather(1, columns)
    s_further = torch.einsum("pld,fld->plf", pair, further).flatten(0, 1)
    shown = torch.cat([columns % batch, mine.repeat(2).unsqueeze(1).expand_as(s_further)], dim=1)
    return GAMMA**2 * torch.cat([s, s_further], dim=1), partner - (partner > own).long(), shown


def contrast_views(
    vectors: Float[Tensor, "views local dim"],
    first: int,
    labels: Int64[Tensor, " batch"],
    eta: Float[Tensor, " classes"],
    args: argparse.Namespace,
) -> tuple[Float[Tensor, ""], dict[str, Any]]:
    """Compute the loss of this process's anchors, and the arguments it was computed from."""
    s, positive, shown = similarities(vectors, first, len(labels))
    of_anchor = labels[first : first + vectors.shape[1]].repeat(2)
    known = {"s": s, "positive": positive, "eta": eta[of_anchor], "gamma": GAMMA}
    if args.positives > 1:  # the further views of the anchor's image, the last columns
        further = torch.arange(s.shape[1], device=s.device) >= 2 * len(labels) - 1
        known["known_positives"] = further.expand_as(s)
    if args.loss == "oracle":  # images of the anchor's class leave the negatives
        known["weights"] = (of_anchor.unsqueeze(1) != labels[shown]).float()
    return debiased_contrastive_loss(**known, floor=args.floor), known


# ---- Training -------------------------------------------------------------------------------


def train(
    args: argparse.Namespace, images: ImageSet, accelerator: Accelerator
) -> tuple[Encoder, list[dict[str, float]]]:
    """Train, or go on where a killed run left off; give the model and the log."""
    pixels, labels = images.train
    classes = labels[labels >= 0]
    if len(classes) < len(labels) and args.loss in {"true", "oracle"}:
        raise SystemExit(f"--loss {args.loss} needs every label; give cl or constant")
    device, processes = accelerator.device, accelerator.num_processes
    steps_per_epoch = len(labels) // args.batch
    if not steps_per_epoch or args.batch % processes:
        raise SystemExit(
            f"--batch {args.batch} must be a multiple of the {processes} processes and at most "
            f"the {len(labels)} training images"
        )
    steps = args.steps or args.epochs * steps_per_epoch
    local = args.batch // processes
    first = accelerator.process_index * local
    counts = np.bincount(classes, minlength=len(images.names)).tolist()
    eta = class_eta(args.loss, counts, images.is_rare, args.ratio, args.eta).to(device)
    encoder = build_encoder(args).to(device, memory_format=torch.channels_last)
    if processes > 1 and device.type == "cuda":  # statistics of the whole batch, as one process
        encoder = nn.SyncBatchNorm.convert_sync_batchnorm(encoder)
    optimizer = torch.optim.Adam(encoder.parameters(), weight_decay=WEIGHT_DECAY, fused=True)
    free = {"out", "save_every", "log_every"}  # all else is the same in a run that goes on
    settings = {name: value for name, value in vars(args).items() if name not in free}
    settings["processes"] = processes
    path = args.out / "checkpoint.pt"
    start, history = load(path, encoder, optimizer, settings)
    network, stepper = accelerator.prepare(encoder, optimizer)
    encoder.train()
    for step in range(start, steps):
        rows, views = draw_batch(step, steps_per_epoch, len(labels), args)
        mine = slice(first, first + local)
        views = Views(*(value[:, mine] for value in views))
        vectors = network(show(pixels[rows[mine]].to(device), views, args)).unflatten(
            0, (-1, local)
        )
        known_labels = torch.from_numpy(labels[rows]).to(device)
        loss, known = contrast_views(vectors, first, known_labels, eta, args)
        accelerator.backward(loss)
        limit = args.clip or math.inf
        norm = nn.utils.clip_grad_norm_(encoder.parameters(), limit, error_if_nonfinite=True)
        for group in optimizer.param_groups:
            share = learning_rate_share(step, steps) if args.schedule == "cosine" else 1.0
            group["lr"] = LEARNING_RATE * share
        stepper.step()
        stepper.zero_grad()
        done = step + 1
        if done % args.log_every == 0 or done == steps:
            figures = {"loss": loss.detach(), "gradient_norm": norm, **debiasing_gauges(**known)}
            figures = accelerator.reduce(figures, reduction="mean")
            history.append({"step": done, **{name: x.item() for name, x in figures.items()}})
            shown = (f"{name} {value:.4g}" for name, value in history[-1].items())
            accelerator.print(*shown, sep="  ", flush=True)
        if (done % args.save_every == 0 or done == steps) and accelerator.is_main_process:
            state = {"encoder": encoder.state_dict(), "optimizer": optimizer.state_dict()}
            save(path, {"step": done, "history": history, "settings": settings, **state})
    return encoder, history


def draw_batch(
    step: int, steps_per_epoch: int, images: int, args: argparse.Namespace
) -> tuple[np.ndarray, Views]:
    """Draw the images of a step, each at most once an epoch, and how they are seen."""
    epoch, turn = divmod(step, steps_per_epoch)
    order = np.random.default_rng([args.seed, ORDER, epoch]).permutation(images)
    rows = order[turn * args.batch : (turn + 1) * args.batch]
    return rows, draw_views(np.random.default_rng([args.seed, VIEWS, step]), args.batch, args)


def learning_rate_share(step: int, steps: int) -> float:
    """Return the share of the peak learning rate: linear warm-up, then cosine decay to zero."""
    warmup = round(WARMUP_SHARE * steps)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def load(
    path: Path, encoder: Encoder, optimizer: torch.optim.Optimizer, settings: dict[str, Any]
) -> tuple[int, list[dict[str, float]]]:
    """Restore a checkpoint where there is one; give the steps done and the log so far."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return 0, []
    saved = torch.load(path, map_location="cpu", weights_only=True)
    if saved["settings"] != settings:
        raise SystemExit(f"{path} belongs to a run with other options; choose another --out")
    encoder.load_state_dict(saved["encoder"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"], saved["history"]


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint whole or not at all."""
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


# ---- What was learned -----------------------------------------------------------------------


@torch.no_grad()
def embed(encoder: Encoder, split: Split, args: argparse.Namespace) -> Labeled:
    """Return the features of whole images."""
    encoder.eval()
    device = next(encoder.parameters()).device
    images = (normalize(part.to(device) / 255, args) for part in split.pixels.split(256))
    parts = [encoder.features(part) for part in images]
    return Labeled(torch.cat(parts).cpu().numpy(), split.labels)


def examine(
    args: argparse.Namespace, images: ImageSet, encoder: Encoder, history: list[dict[str, float]]
) -> None:
    """Probe the model, and as a control the same model before its first step; write results."""
    untrained = build_encoder(args).to(next(encoder.parameters()).device)
    probes = []
    for name, model in (("trained", encoder), ("untrained", untrained)):
        train, test = (embed(model, split.labeled(), args) for split in images[2:])
        for row in probe_by_fraction(train, test, images.is_rare, args.shares, args.seed):
            probes.append({"encoder": name, **row})
            print(name, *(f"{key} {value:.4g}" for key, value in row.items()), sep="  ", flush=True)
        if model is encoder:
            draw_map(test, images.names, images.is_rare, args.out / "map.png", args.seed)
    results = {"options": vars(args), "training": history, "probes": probes}
    text = json.dumps(results, indent=1, default=str)
    draft = args.out / "results.draft"
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(args.out / "results.json")


def main(argv: Sequence[str] | None = None) -> None:
    """Train, probe and draw."""
    args = parse_options(argv)
    torch.backends.cudnn.deterministic = True  # so that a resumed run repeats a whole one
    on_cpu = not torch.accelerator.is_available()
    accelerator = Accelerator(mixed_precision=args.precision, cpu=on_cpu)
    with accelerator.main_process_first():
        images = read_images(args)
    encoder, history = train(args, images, accelerator)
    if accelerator.is_main_process:
        examine(args, images, encoder, history)
    accelerator.end_training()


if __name__ == "__main__":
    main()
