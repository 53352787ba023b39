"""The image-only experiment: its views, its loss against the DCL paper's, kills, whole runs."""

import argparse
import colorsys
import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import augment
import datasets
import numpy as np
import probe
import pytest
import sweep
import torch
import torch.distributed as dist
import train
from augment import Views, draw_views
from pytorch_metric_learning.losses import NTXentLoss
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from testing import forkserver
from testing.process_group import run_processes

B = 6
N = 2 * B - 2
LABELS = torch.arange(B) % 3
TINY = [
    "--widths",
    "8",
    "16",
    "--size",
    "8",
    "--view-size",
    "8",
    "--batch",
    "32",
    "--steps",
    "40",
    "--per-class",
    "60",
]
TINY += ["--test-per-class", "20", "--save-every", "8", "--log-every", "1"]


def options(*words: str) -> argparse.Namespace:
    return train.parse_options(["--out", "unused", *words])


CIFAR, DIGITS = options("--data", "somewhere"), options()
CHUANG = options("--data", "somewhere", "--recipe", "cifar10")


# ---- Options and imbalance


def test_the_defaults_are_the_papers() -> None:
    assert [2 * args.batch - 2 for args in (CIFAR, CHUANG)] == [254, 510]
    assert [args.epochs for args in (CIFAR, CHUANG)] == [300, 400]
    assert [args.loss for args in (CIFAR, CHUANG)] == ["true", "constant"]
    assert CIFAR.rare == ["dog", "frog", "horse", "ship", "truck"]
    assert (CHUANG.rare, CHUANG.ratio, CHUANG.eta, CHUANG.positives) == ([], 1, 0.1, 1)
    for args in (CIFAR, CHUANG):
        shape = args.dim, args.flip, args.smallest_crop, args.rotation_rad
        assert shape == (128, 0.5, 0.08, 0)
        assert (args.schedule, args.clip, args.forwards) == ("constant", 0, "each")
    assert (train.LEARNING_RATE, train.WEIGHT_DECAY) == (1e-3, 1e-6)
    assert math.isclose(train.GAMMA**2, 1 / 0.5)
    stl10 = options("--data", "somewhere", "--recipe", "stl10")
    assert (stl10.size, stl10.view_size, stl10.epochs) == (96, 32, 400)


@pytest.mark.parametrize(
    ("ratio", "low", "high"),
    [
        (0.1, 0.01818, 0.18182),
        (0.5, 0.06667, 0.13333),
    ],
)
def test_eta_is_the_papers(ratio: float, low: float, high: float) -> None:
    counts, rare = [round(1000 * ratio), 1000] * 5, [True, False] * 5

    def eta(loss: str) -> list[float]:
        return train.class_eta(loss, counts, rare, ratio, 0.07).tolist()

    assert eta("low") == pytest.approx([low] * 10, abs=1e-5)
    assert eta("high") == pytest.approx([high] * 10, abs=1e-5)
    assert eta("true") == pytest.approx([low, high] * 5, abs=1e-5)
    assert eta("constant") == pytest.approx([0.07] * 10)
    assert eta("cl") == eta("oracle") == [0.0] * 10


def divided(*words: str, held_out: int = 20) -> dict[str, np.ndarray]:
    labels = np.arange(400) % 4  # 100 of each class
    return train.divide(labels, [False, True, False, True], options(*words), held_out)


def counts(rows: np.ndarray) -> list[int]:
    return np.bincount(rows % 4, minlength=4).tolist()


def test_only_training_images_of_the_named_classes_become_rare() -> None:
    parts = divided("--per-class", "50", "--ratio", "0.1")
    # Of 100, 20 test; of the rest 50 train, or a tenth of them.
    assert {name: counts(rows) for name, rows in parts.items()} == {
        "test": [20] * 4,
        "train": [50, 5, 50, 5],
    }
    assert counts(divided("--ratio", "0.001")["train"]) == [80, 1, 80, 1]
    everything = np.concatenate(list(divided("--ratio", "1").values()))
    assert sorted(everything.tolist()) == list(range(400))


# ---- Reading


def picture(color: tuple[int, int, int], size: int = 8) -> np.ndarray:
    return np.full((size, size, 3), color, dtype=np.uint8)


RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


@pytest.fixture
def colors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> datasets.DatasetDict:
    """Three classes, each of one color: 12 images to train and 6 to test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    names = datasets.ClassLabel(names=["red", "green", "blue"])
    features = datasets.Features({"image": datasets.Image(), "label": names})

    def split(count: int) -> datasets.Dataset:
        labels = [row % 3 for row in range(count)]
        images = [picture((RED, GREEN, BLUE)[label]) for label in labels]
        return datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)

    return datasets.DatasetDict(train=split(12), test=split(6))


def write_tables(source: datasets.DatasetDict, folder: Path) -> str:
    for split, rows in source.items():
        rows.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return str(folder)


def test_images_are_read_in_their_colors(colors: datasets.DatasetDict, tmp_path: Path) -> None:
    words = ["--data", write_tables(colors, tmp_path / "tables"), "--rare", "red", "--size", "8"]
    found = train.read_images(options(*words))
    assert [name for name, rare in zip(found.names, found.is_rare, strict=True) if rare] == ["red"]
    shown = {"red": RED, "green": GREEN, "blue": BLUE}
    for split, count in ((found.train, 1 + 4 + 4), (found.test, 6)):
        assert split.pixels.shape == (count, 3, 8, 8)
        for pixels, label in zip(split.pixels, split.labels, strict=True):
            assert pixels[:, 4, 4].tolist() == list(shown[found.names[label]])


def test_unknown_classes_are_refused(colors: datasets.DatasetDict, tmp_path: Path) -> None:
    data = write_tables(colors, tmp_path / "tables")
    with pytest.raises(SystemExit, match=r"\['dog'\]; the classes are \['red'"):
        train.read_images(options("--data", data, "--rare", "dog", "red"))


@pytest.fixture
def stl10(colors: datasets.DatasetDict, tmp_path: Path) -> Path:
    """Tables with an unlabeled split, and two training images whose label is null."""
    folder = tmp_path / "stl10"
    labels = [0, 1, 2] * 4
    labels[4] = labels[8] = None
    train_split = colors["train"].remove_columns("label").add_column("label", labels)
    train_split.to_parquet(folder / "train-00000-of-00001.parquet")
    colors["test"].to_parquet(folder / "test-00000-of-00001.parquet")
    more = colors["train"].remove_columns("label")
    more.to_parquet(folder / "unlabeled-00000-of-00001.parquet")
    return folder


def test_a_small_stl10_runs_and_refuses_what_needs_labels(stl10: Path, tmp_path: Path) -> None:
    words = ["--data", str(stl10), "--recipe", "stl10", "--size", "16", "--view-size", "8"]
    words += ["--widths", "4", "8", "--blocks", "1", "--batch", "8", "--epochs", "2"]
    words += ["--positives", "2", "--shares", "1", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit, match="--loss true needs every label"):
        train.main([*words, "--loss", "true"])
    train.main(words)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["training"][-1]["step"] == 2 * (24 // 8)
    assert results["training"][-1]["mean_eta"] == pytest.approx(0.1)
    assert [row["labels"] for row in results["probes"]] == [10, 10]
    assert [row["top_5"] for row in results["probes"]] == [1, 1]


@pytest.mark.real_data
def test_cifar_10_is_read_from_its_tables(
    test_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    words = ["--per-class", "50", "--test-per-class", "20"]
    found = train.read_images(options("--data", str(test_data / "cifar10"), *words))
    kept = [5 if name in CIFAR.rare else 50 for name in found.names]
    assert kept == [50] * 5 + [5] * 5
    assert np.bincount(found.train.labels).tolist() == kept
    assert np.bincount(found.test.labels).tolist() == [20] * 10
    means = found.train.pixels.float().mean(dim=(0, 2, 3)) / 255
    assert means.tolist() == pytest.approx([0.491, 0.482, 0.447], abs=0.03)


# ---- Views


def drawn(args: argparse.Namespace, step: int = 0, images: int = 2000) -> Views:
    return draw_views(np.random.default_rng([0, step]), images, args)


def test_views_are_a_function_of_the_step_and_differ_from_each_other() -> None:
    one, same, other = (drawn(DIGITS, step, images=50) for step in (3, 3, 4))
    for name in ("top", "height", "angle", "factors", "grayed"):
        value = getattr(one, name)
        assert torch.equal(value, getattr(same, name)), name
        assert not torch.equal(value, getattr(other, name)), name
        assert not torch.equal(value[0], value[1]), name


def test_chances_are_kept() -> None:
    views = drawn(CIFAR)
    jittered = views.order[..., 0] >= 0
    for happened, chance in (
        (views.flipped, 0.5),
        (jittered, 0.8),
        (views.grayed, 0.2),
        (views.blur_px > 0, 0.5),
    ):
        assert happened.float().mean().item() == pytest.approx(chance, abs=0.03)
    assert (views.order[~jittered] == -1).all()
    assert torch.equal(views.order[jittered].sort().values[0], torch.arange(4))
    assert len(views.order[jittered].unique(dim=0)) == 24
    low, high = views.factors.amin(dim=(0, 1)), views.factors.amax(dim=(0, 1))
    torch.testing.assert_close(low, torch.tensor([0.6, 0.6, 0.6, -0.1]), atol=4e-3, rtol=0)
    torch.testing.assert_close(high, torch.tensor([1.4, 1.4, 1.4, 0.1]), atol=4e-3, rtol=0)
    assert views.blur_px.max() <= 2
    assert (views.angle == 0).all()
    digits = drawn(DIGITS)
    assert not digits.flipped.any()
    assert not digits.blur_px.any()
    assert 0.34 < digits.angle.abs().max() <= 0.35


SIZE = 12


def pixels(images: int = 2, channels: int = 3) -> Tensor:
    shape = (images, channels, SIZE, SIZE)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(2)).byte()


def plain_views(**changes: float) -> Views:
    """Whole images as they are, but for the changes."""
    whole = {"top": 0.0, "left": 0.0, "height": SIZE, "width": SIZE, "angle": 0.0, "blur_px": 0.0}
    fields = {name: torch.full((2, 2), float(changes.get(name, x))) for name, x in whole.items()}
    flipped = torch.full((2, 2), bool(changes.get("flipped", False)))
    order, factors = torch.full((2, 2, 4), -1), torch.ones(2, 2, 4)
    grayed = torch.zeros(2, 2, dtype=torch.bool)
    return Views(flipped=flipped, order=order, factors=factors, grayed=grayed, **fields)


def cropped(view_size: int = SIZE, **changes: float) -> Tensor:
    views = plain_views(**changes)
    return augment.crop(pixels() / 255, Views(*(value[0] for value in views)), view_size)


def test_a_crop_is_scaled_up_as_interpolation_scales_it() -> None:
    crop = (pixels() / 255)[:, :, 3:8, 1:8]
    expected = functional.interpolate(crop, (SIZE, SIZE), mode="bilinear", align_corners=False)
    found = cropped(top=3, left=1, height=5, width=7)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_flip_and_a_quarter_turn_are_what_they_are_called() -> None:
    crop = {"top": 2, "left": 4, "height": 6, "width": 8}
    flipped = cropped(**crop, flipped=True)
    torch.testing.assert_close(flipped, cropped(**crop).flip(-1), atol=1e-5, rtol=1e-5)
    turned = (pixels() / 255).rot90(1, (-2, -1))
    torch.testing.assert_close(cropped(angle=math.pi / 2), turned, atol=1e-4, rtol=1e-4)


def test_a_turn_of_the_hue_is_that_of_hsv() -> None:
    images, turns = pixels(5) / 255, torch.tensor([0.0, 0.1, -0.1, 0.37, 0.5])
    images[0, :, 0, 0] = 0.3  # gray has no hue
    images[1, :, 0, 0] = 0.0
    found = augment.hue(images, turns)
    for image, turn, turned in zip(images, turns.tolist(), found, strict=True):
        for pixel, new in zip(image.flatten(1).T.tolist(), turned.flatten(1).T, strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            expected = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
            assert new.tolist() == pytest.approx(expected, abs=2e-6)


def test_the_blur_is_a_gaussian_over_three_pixels() -> None:
    images, deviations = pixels(3) / 255, torch.tensor([0.0, 0.7, 2.0])
    found = augment.blur(images, deviations)
    assert torch.equal(found[0], images[0])
    for image, deviation, blurred in zip(images[1:], (0.7, 2.0), found[1:], strict=True):
        line = torch.tensor([math.exp(-0.5 * (step / deviation) ** 2) for step in (-1, 0, 1)])
        line /= line.sum()
        kernel = (line.view(3, 1) * line).expand(3, 1, 3, 3)
        padded = functional.pad(image.unsqueeze(0), (1, 1, 1, 1), mode="reflect")
        torch.testing.assert_close(blurred, functional.conv2d(padded, kernel, groups=3)[0])


def test_each_image_is_changed_in_its_own_order() -> None:
    images = pixels(3) / 255
    order = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [-1, -1, -1, -1]])
    factors = torch.tensor([[1.3, 0.7, 1.2, 0.1]]).expand(3, 4)
    found = augment.jitter_colors(images, order, factors)
    steps = [augment.brightness, augment.contrast, augment.saturation, augment.hue]
    for image, turns, result in zip(images, order.tolist(), found, strict=True):
        expected = image.unsqueeze(0)
        for number in turns:
            if number >= 0:
                expected = steps[number](expected, factors[0, number : number + 1])
        torch.testing.assert_close(result, expected[0])
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[2], images[2])


# ---- Loss


def unit_vectors() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return functional.normalize(torch.randn(2, B, 5, generator=generator), dim=-1)


def loss_of(z: Tensor, eta: Tensor, *words: str) -> Tensor:
    return train.contrast_views(z, 0, LABELS, eta, options(*words))[0]


def official_loss(z: Tensor, eta: Tensor) -> Tensor:
    """Both views as anchors, N = 2 B - 2, in plain exponentials, as in Chuang et al.'s code."""
    out_1, out_2 = z
    out = torch.cat([out_1, out_2])
    neg = torch.exp(out @ out.T / 0.5)
    mask = ~(torch.eye(B, dtype=torch.bool).repeat(2, 2))  # neither the anchor nor its partner
    neg = neg.masked_select(mask).view(2 * B, 2 * B - 2)
    pos = torch.exp((out_1 * out_2).sum(dim=-1) / 0.5).repeat(2)
    Ng = (-eta * N * pos + neg.sum(dim=-1)) / (1 - eta)
    Ng = torch.clamp(Ng, min=N * math.exp(-1 / 0.5))
    return (-torch.log(pos / (pos + Ng))).mean()


@pytest.mark.parametrize("values", [(0.1, 0.1, 0.1), (0.02, 0.18, 0.1), (0.0, 0.6, 0.8)])
def test_the_loss_is_the_dcl_papers_over_both_views(values: tuple[float, ...]) -> None:
    """The last case is partly on the floor."""
    z, eta = unit_vectors().requires_grad_(), torch.tensor(values)
    expected = official_loss(z, eta[LABELS].repeat(2))
    found = loss_of(z, eta)
    torch.testing.assert_close(found, expected)
    both = [torch.autograd.grad(loss, z)[0] for loss in (found, expected)]
    torch.testing.assert_close(*both)


def test_further_views_estimate_the_correction_and_are_no_negatives() -> None:
    """M = 3: Eq. 8 with the mean over the positive and two more views, in plain exponentials."""
    generator = torch.Generator().manual_seed(6)
    z = functional.normalize(torch.randn(4, B, 5, generator=generator), dim=-1)
    terms = []
    for view, image in np.ndindex(2, B):
        anchor = z[view, image]
        rest = [z[v, i] for v, i in np.ndindex(2, B) if i != image]
        negatives = sum(torch.exp(2 * anchor @ u) for u in rest)
        positive = torch.exp(2 * anchor @ z[1 - view, image])
        v = (positive + sum(torch.exp(2 * anchor @ z[more, image]) for more in (2, 3))) / 3
        g = (negatives / N - 0.1 * v) / 0.9
        assert g > math.exp(-2)
        terms.append(-torch.log(positive / (positive + N * g)))
    words = "--positives", "3", "--loss", "constant"
    found = loss_of(z, torch.full((3,), 0.1), *words)
    torch.testing.assert_close(found, torch.stack(terms).mean())


def test_without_eta_the_loss_is_simclrs() -> None:
    z = unit_vectors()
    expected = NTXentLoss(temperature=0.5)(z.flatten(0, 1), torch.arange(B).repeat(2))
    torch.testing.assert_close(loss_of(z, torch.zeros(3), "--loss", "cl"), expected)


def test_the_oracle_removes_images_of_the_anchors_class() -> None:
    z = unit_vectors().flatten(0, 1)
    partner = torch.arange(2 * B).roll(B)
    same = LABELS.repeat(2).unsqueeze(1) == LABELS.repeat(2)
    same[torch.arange(2 * B), partner] = False  # the partner stays; the anchor itself goes
    expected = functional.cross_entropy((2 * z @ z.T).masked_fill(same, -torch.inf), partner)
    found = loss_of(unit_vectors(), torch.zeros(3), "--loss", "oracle")
    torch.testing.assert_close(found, expected)


def gradients(first: int, local: int, wrapped: bool) -> dict[str, Tensor]:
    """Loss and gradients of some images of a batch, with statistics that do not depend on it."""
    words = ["--widths", "4", "8", "--size", "8", "--view-size", "8", "--positives", "2"]
    args = options(*words)
    encoder = train.build_encoder(args).eval()
    network = DistributedDataParallel(encoder) if wrapped else encoder
    views = draw_views(np.random.default_rng(0), B, args)
    mine = slice(first, first + local)
    shape, generator = (B, 1, 8, 8), torch.Generator().manual_seed(4)
    images = torch.randint(0, 256, shape, generator=generator).byte()
    shown = augment.show(images[mine], Views(*(value[:, mine] for value in views)), args)
    vectors = network(shown).unflatten(0, (3, local))
    eta = torch.tensor([0.02, 0.1, 0.2])
    loss, _ = train.contrast_views(vectors, first, LABELS, eta, args)
    loss.backward()
    found = {name: weight.grad for name, weight in encoder.named_parameters()}
    return {**found, "loss": loss.detach()}


def write_gradients_of_two(rank: int, folder: Path) -> None:
    found = gradients(rank * B // 2, B // 2, wrapped=True)
    dist.all_reduce(found["loss"])  # DistributedDataParallel has averaged the rest
    found["loss"] /= 2
    if rank == 0:
        torch.save(found, folder / "gradients.pt")


def test_two_processes_find_the_loss_and_gradients_of_one(tmp_path: Path) -> None:
    alone = gradients(0, B, wrapped=False)
    run_processes(write_gradients_of_two, 2, tmp_path)
    together = torch.load(tmp_path / "gradients.pt", weights_only=True)
    assert alone.keys() == together.keys()
    assert len(alone) > 10
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, atol=1e-6, rtol=1e-5, msg=name)


# ---- Whole runs


def test_each_view_has_its_own_batch_norm_where_asked() -> None:
    images = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(7))
    words = ["--widths", "4", "8", "--size", "8"]
    one, each = (train.build_encoder(options(*words, "--forwards", x)) for x in ("one", "each"))
    alone = torch.cat([one(images[:4]), one(images[4:])])
    torch.testing.assert_close(each(images), alone)
    assert not torch.allclose(one(images), alone, atol=1e-3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("image_only") / "run"
    train.main([*TINY, "--out", str(out)])
    return out


def test_a_run_learns_probes_and_draws(run: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    log = results["training"]
    assert [line["step"] for line in log] == list(range(1, 41))
    losses = [line["uncorrected_loss"] for line in log]
    assert sum(losses[-6:]) < 0.985 * sum(losses[:6])
    cells = {(row["encoder"], row["fraction"], row["draw"]): row for row in results["probes"]}
    assert len(cells) == 2 * (3 + 3 + 1)
    last = cells["trained", 1.0, 0]
    assert last["labels"] == 5 * 60 + 5 * 6
    assert last["accuracy"] > cells["untrained", 1.0, 0]["accuracy"] > 0.1
    assert last["accuracy"] <= last["top_5"] <= 1
    assert last["mean_recall"] == pytest.approx((last["recall_whole"] + last["recall_rare"]) / 2)
    assert log[-1]["gradient_norm"] > 0
    assert (run / "map.png").read_bytes().startswith(b"\x89PNG")


def train_on_one_thread(words: list[str]) -> None:
    torch.set_num_threads(1)
    train.main(words)


def test_a_killed_run_goes_on_to_the_same_weights(run: Path, tmp_path: Path) -> None:
    checkpoint, words = tmp_path / "checkpoint.pt", [*TINY, "--out", str(tmp_path)]
    process = forkserver.context().Process(target=train_on_one_thread, args=(words,))
    process.start()
    while process.is_alive() and not checkpoint.exists():
        time.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert 8 <= torch.load(checkpoint, weights_only=True)["step"] < 40
    with pytest.raises(SystemExit, match="other options"):
        train.main([*words, "--loss", "cl"])
    train.main(words)
    states = [torch.load(path / "checkpoint.pt", weights_only=True) for path in (run, tmp_path)]
    assert states[0]["history"] == states[1]["history"]
    for name, weight in states[0]["encoder"].items():
        assert torch.equal(weight, states[1]["encoder"][name]), name
    probes = [json.loads((path / "results.json").read_text())["probes"] for path in (run, tmp_path)]
    assert probes[0] == probes[1]


# ---- Probes


def labeled(per_class: int, seed: int) -> probe.Labeled:
    rng = np.random.default_rng(seed)
    labels = np.arange(3 * per_class) % 3
    return probe.Labeled(4 * np.eye(3)[labels] + rng.standard_normal((len(labels), 3)), labels)


def test_labels_are_drawn_class_by_class_and_of_each_at_least_one() -> None:
    labels = np.repeat(np.arange(3), (100, 10, 2))
    rows = probe.draw_labeled(labels, 0.2, np.random.default_rng(0))
    assert np.bincount(labels[rows]).tolist() == [20, 2, 1]
    assert probe.draw_labeled(labels, 1.0, np.random.default_rng(0)).tolist() == list(range(112))


def test_probes_know_well_separated_classes() -> None:
    splits = labeled(100, 0), labeled(100, 2)
    rows = list(probe.probe_by_fraction(*splits, [True, False, False], [0.01, 1.0], 0))
    drawn = [(row["fraction"], row["draw"], row["labels"]) for row in rows]
    assert drawn == [(0.01, 0, 3), (0.01, 1, 3), (0.01, 2, 3), (1.0, 0, 300)]
    # Centers are 4 sqrt(2) apart, noise is 1: a pair is confused at 0.0023, three classes below.
    assert rows[-1]["accuracy"] > 0.98
    assert rows[-1]["accuracy"] == pytest.approx(rows[-1]["mean_recall"])  # classes of one size
    assert rows[-1]["top_5"] == 1
    assert list(probe.probe_by_fraction(*splits, [True, False, False], [0.01, 1.0], 0)) == rows
    (last,) = probe.probe_by_fraction(*splits, [False] * 3, [1.0], 0)
    assert math.isnan(last["recall_rare"])
    assert last["mean_recall"] == last["recall_whole"] == rows[-1]["mean_recall"]


def test_no_label_outside_the_share_chooses_the_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = labeled(30, 0), labeled(10, 1)
    fitted = []
    fit = probe._fit

    def watched(features: np.ndarray, labels: np.ndarray, penalty: float) -> Any:
        fitted.append((len(labels), penalty))
        return fit(features, labels, penalty)

    monkeypatch.setattr(probe, "_fit", watched)
    list(probe.probe_by_fraction(*splits, [False] * 3, [0.1], 0))
    # Three labels a class: each fold leaves one of each out; then all nine at the chosen penalty.
    assert [count for count, _ in fitted] == ([6] * 15 + [9]) * 3
    fitted.clear()
    list(probe.probe_by_fraction(*splits, [False] * 3, [0.01], 0))
    assert fitted == [(3, probe.ONE_LABEL_PENALTY)] * 3


# ---- Ratios, losses and seeds


def test_a_sweep_continues_and_draws_when_all_parts_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "draw_map", lambda *_: None)
    monkeypatch.setattr(probe, "PENALTIES", (probe.ONE_LABEL_PENALTY,))
    words = [*TINY, "--steps", "2", "--per-class", "20", "--test-per-class", "4"]
    words += ["--shares", "0.5", "1", "--ratios", "0.5", "--losses", "cl", "true", "--seeds", "2"]
    words += ["--out", str(tmp_path)]
    assert sweep.main([*words, "--part", "0/2"]) == []
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/results.json")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r0.5_cl_0", "r0.5_cl_1"]
    rows = sweep.main([*words, "--part", "1/2"])
    assert done == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*cl*/results.json")}
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "sweep.json").read_text())["rows"] == rows
    keys = {(row["loss"], row["seed"], row["encoder"], row["share"]) for row in rows}
    assert len(rows) == len(keys) == 2 * 2 * 2 * 2
    whole = ("share", 1.0)
    one = json.loads((tmp_path / "r0.5_true_1" / "results.json").read_text())["probes"]
    (accuracy,) = [x["accuracy"] for x in one if (x["encoder"], x["fraction"]) == ("trained", 1)]
    assert sweep.table(rows, "true", "ratio", whole)[0.5][1] == pytest.approx(accuracy, abs=1e-4)
