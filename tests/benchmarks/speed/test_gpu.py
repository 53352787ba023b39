"""The kit for a new accelerator runs where there is none, and says why a case did not run."""

import pytest

from benchmarks.speed import gpu


def test_without_a_gpu_it_says_so_and_starts_nothing(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main([]) == 1
    assert capsys.readouterr() == (
        "",
        "benchmarks.gpu: PyTorch sees no GPU; --tiny tries the commands\n",
    )


def test_a_case_runs_in_a_process_of_its_own() -> None:
    figures, reasons = gpu._run(gpu.Case("device", "here", {"size": 64}))
    assert not reasons
    assert figures["here fp32_tflops"] > 0
    assert figures["here copy_gb_per_s"] > 0


def test_training_is_held_against_its_own_count_of_flop() -> None:
    options = {"encoder": "resnet18", "precision": "fp32", "px": 64, "batch": 4, "seconds": 0.1}
    found = gpu.measure_training(options | {"text": "tiny", "peaks": {"fp32_tflops": 0.1}})
    # ResNet-18 at 224 px takes 1.8 GMAC forward (He et al. 2016, Table 1); three times with the
    # backward pass, two FLOP each, (64 / 224)**2 of the area.
    assert found["gflop_per_pair"] == pytest.approx(1.8 * 3 * 2 * (64 / 224) ** 2, rel=0.1)
    bound = 0.1e12 / (found["gflop_per_pair"] * 1e9)
    assert found["over_flop_bound"] == pytest.approx(found["pairs_per_s"] / bound)
