"""The image-only experiment: its views, its loss against the DCL paper's, kills, whole runs."""

import argparse
import json
import math
import signal
import time
from pathlib import Path

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


# ---- Options and imbalance


@pytest.mark.parametrize(
    ("ratio", "low", "high"), [(0.1, 0.01818, 0.18182), (0.5, 0.06667, 0.13333)]
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


def counts(rows: np.ndarray) -> list[int]:
    return np.bincount(rows % 4, minlength=4).tolist()


# ---- Reading


RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


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
