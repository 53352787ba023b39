"""One contrastive step of a tiny model: two processes against one on the joined batch."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from medclip_dcl.losses.debiased import debiased_terms
from medclip_dcl.losses.gather import gather_with_grad, positive_columns
from medclip_dcl.models.dual_encoder import build_dual_encoder
from medclip_dcl.models.image_encoder import to_input
from tests.support import forkserver
from tests.support.tiny_models import (
    random_images,
    random_tokens,
    tiny_model_config,
    tiny_text_config,
)

GLOBAL_BATCH = 8
ETA = torch.linspace(0, 0.8, GLOBAL_BATCH, dtype=torch.float64)
"""So large, at the largest scale, that one anchor of the random model stands on the floor."""
SCALES = {torch.float64: 100.0, torch.float32: 14.0}
"""gamma**2; the largest would spend two of float32's digits."""
TEXT = tiny_text_config()
TEXT.initializer_range = 0.1  # at 0.02 the first norm magnifies rounding by 50


def splice_own_rows(tensor: Tensor) -> Tensor:
    """The usual mistake: gather without gradient, put the local rows back in place."""
    joined = gather_with_grad(tensor.detach()).clone()
    start = dist.get_rank() * len(tensor)
    joined[start : start + len(tensor)] = tensor
    return joined


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "exact": gather_with_grad,
    "detached": lambda tensor: gather_with_grad(tensor.detach()),
    "spliced": splice_own_rows,
}


def step(way: str, dtype: torch.dtype, rows: slice, wrapped: bool = False) -> dict[str, Tensor]:
    """Loss, share on the floor and every gradient of the pairs in `rows`, both directions."""
    settings = tiny_model_config(gamma_squared=SCALES[dtype])
    model = build_dual_encoder(settings, TEXT, seed=0).to(dtype)
    model.eval()  # batch statistics would be local
    network = DistributedDataParallel(model) if wrapped else model
    gather = WAYS[way]
    pixels = to_input(random_images(GLOBAL_BATCH), 64).to(dtype)[rows]
    ids, mask = random_tokens(GLOBAL_BATCH)
    regions, sentences = network(pixels, ids[rows], mask[rows])
    positive = positive_columns(len(sentences), sentences.device)
    loss = share = 0
    for f in (model.score(gather(regions), sentences), model.score(regions, gather(sentences)).T):
        terms = debiased_terms(model.gamma**2 * f, positive, ETA[rows], model.gamma)
        loss += terms.loss("floor") / 2
        share += terms.gauges()["frac_floor"] / 2
    loss.backward()
    parts = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }
    return parts | {"loss": loss.detach(), "frac_floor": share}


def main(arguments: Sequence[str]) -> int:
    """Write what two processes find, averaged over them, for each way and precision."""
    dist.init_process_group("gloo")
    half = GLOBAL_BATCH // 2
    rows = slice(dist.get_rank() * half, (dist.get_rank() + 1) * half)
    for way in WAYS:
        for dtype in SCALES:
            found = step(way, dtype, rows, wrapped=way == "exact")
            for name, value in found.items():
                if way != "exact" or name in {"loss", "frac_floor"}:
                    dist.all_reduce(value)  # DistributedDataParallel has averaged the rest
                    value /= 2
            if dist.get_rank() == 0:
                save_file(found, Path(arguments[0]) / f"{way}-{dtype}.safetensors")
    dist.destroy_process_group()
    return 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    ranks = forkserver.start_ranks(
        2, "tests.medclip_dcl.losses.test_gather", [str(folder)], folder / "log"
    )
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0, [log.read_text() for log in folder.glob("log*")]
    return folder


def differences(folder: Path, way: str, dtype: torch.dtype) -> dict[str, float]:
    """Largest difference of each part between two processes and one on the joined batch.

    Parts larger than 1 are compared relative to their largest entry.
    """
    alone = step("exact", dtype, slice(0, GLOBAL_BATCH))
    together = load_file(folder / f"{way}-{dtype}.safetensors")
    assert alone.keys() == together.keys()
    return {
        name: ((together[name] - part).abs().max() / part.abs().max().clamp(min=1)).item()
        for name, part in alone.items()
    }


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)], ids=["f64", "f32"]
)
def test_two_processes_find_the_loss_and_gradients_of_one(folder, dtype, tolerance):
    found = differences(folder, "exact", dtype)
    assert len(found) > 20
    assert max(found.values()) <= tolerance


def test_the_floor_binds_in_that_comparison(folder: Path) -> None:
    """Or a wrong N (local instead of global) would stay hidden."""
    share = load_file(folder / f"exact-{torch.float64}.safetensors")["frac_floor"].item()
    assert 0 < share < 1


@pytest.mark.parametrize("way", ["detached", "spliced"])
def test_gathering_without_gradient_is_wrong_and_is_seen(folder: Path, way: str) -> None:
    found = differences(folder, way, torch.float64)
    assert found["loss"] <= 1e-10
    assert max(found.values()) > 1e-3


def test_one_process_gathers_its_own_tensor() -> None:
    tensor = torch.randn(3, 2, requires_grad=True)
    assert gather_with_grad(tensor) is tensor
    assert positive_columns(3, torch.device("cpu")).tolist() == [0, 1, 2]
