from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from medclip_dcl.losses.gather import gather_with_grad, positive_columns
from tests.support.contrastive_step import GLOBAL_BATCH, run_processes, step, two_processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    run_processes(two_processes, 2, folder)
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
