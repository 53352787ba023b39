"""The JobSet that `plan` prints: each job is valid for Kubernetes, and waits for the one before."""

from pathlib import Path

import pytest
import yaml

from medclip_dcl.errors import ConfigError
from pipelines import plan
from pipelines.config import load_config
from pipelines.jobset import SPREAD, make_jobset
from pipelines.stages import stages_of

RECIPE = Path("configs/train/mimic_cxr.yaml")


def test_every_job_is_valid_and_waits_for_the_one_before(capsys: pytest.CaptureFixture[str]):
    validator = pytest.importorskip("kubernetes_validate")
    options = ["--config", str(RECIPE), "--set", "seed=3"]
    assert plan.main([*options, "--kubernetes", "2x8", "--image", "ours:1"]) == 0
    tree = yaml.safe_load(capsys.readouterr().out)
    jobs = tree["spec"]["replicatedJobs"]
    names = [job["name"] for job in jobs]
    assert names == [stage.replace("_", "-") for stage in stages_of(load_config(RECIPE))]
    before = [job["dependsOn"] for job in jobs[1:]]
    assert before == [[{"name": name, "status": "Complete"}] for name in names[:-1]]
    assert "dependsOn" not in jobs[0]
    for job in jobs:
        # The API requires names of at most 63 characters: the pod's is the longest.
        assert len(f"medclip-{job['name']}-0-1-abcde") <= 63
        spec = job["template"]["spec"]
        whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
        validator.validate({**whole, "spec": spec}, "1.37", strict=True)
        pod = spec["template"]["spec"]["containers"][0]
        is_spread = job["name"].replace("-", "_") in SPREAD
        assert spec["parallelism"] == spec["completions"] == (2 if is_spread else 1)
        assert ("--nnodes" in pod["command"]) == is_spread
        assert pod["image"] == "ours:1"
    train = jobs[names.index("train")]["template"]["spec"]["template"]["spec"]["containers"][0]
    assert train["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert "medclip-train-0-0.medclip:29500" in train["command"]
    assert "train.processes=16" in train["command"]
    assert "seed=3" in train["command"]


@pytest.mark.parametrize("size", ["8", "0x8", "2x", "3x5"])
def test_a_size_that_cannot_be_is_refused(size: str):
    with pytest.raises(ConfigError, match=r"as 2x8|equal share for 15 processes"):
        make_jobset(load_config(RECIPE), "config.yaml", (), size, "medclip-dcl")
