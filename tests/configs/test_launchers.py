"""Accelerate reads its configs, and the launch scripts start what they say."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs/accelerate").glob("*.yaml"))
PROCESSES = {"cpu": 1, "one_gpu": 1, "eight_gpus": 8, "two_nodes": 16}
DEADLINE_S = 20


def stub(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text(f"#!/usr/bin/env bash\n{body}\n")
    file.chmod(0o755)


def machine_of(folder: Path) -> dict[str, str]:
    """A machine of eight GPUs, whose python, srun and scontrol say what they were asked."""
    stub(folder, "nvidia-smi", "for at in 1 2 3 4 5 6 7 8; do echo GPU $at; done")
    stub(folder, "python", f'printf "%s\\n" "$@" > {folder}/asked')
    stub(folder, "srun", '"$@"')
    said = f'[[ $1 == show ]] && printf "node7\\nnode8\\n" || echo "$@" > {folder}/queue'
    stub(folder, "scontrol", said)
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHON": str(folder / "python"),
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_JOB_ID": "77",
    }


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


def run(script: str, environment: dict[str, str]) -> int:
    command = ["bash", f"pipelines/{script}", "config.yaml", "--set", "train.steps=5"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_reads_a_config_and_leaves_precision_to_the_recipe(path: Path) -> None:
    config = load_config_from_file(str(path))
    assert isinstance(config, ClusterConfig)
    machines = 2 if path.stem == "two_nodes" else 1
    assert (config.num_processes, config.num_machines) == (PROCESSES[path.stem], machines)
    assert config.use_cpu is (path.stem == "cpu")
    assert str(config.mixed_precision) == "no"
    assert config.distributed_type.value == ("MULTI_GPU" if config.num_processes > 1 else "NO")


def test_torchrun_starts_a_process_for_each_gpu_and_tells_the_recipe(tmp_path: Path) -> None:
    assert run("train_torchrun.sh", machine_of(tmp_path)) == 0
    launch = "-m torch.distributed.run --standalone --nproc-per-node 8 -m pipelines.train"
    settings = "--config config.yaml --set train.processes=8 --set train.steps=5"
    assert asked(tmp_path) == f"{launch} {settings}".split()


def test_slurm_starts_both_nodes_with_sixteen_processes(tmp_path: Path) -> None:
    assert run("train_slurm.sh", machine_of(tmp_path)) == 0
    words = asked(tmp_path)
    assert words[words.index("--rdzv-endpoint") + 1] == "node7:29500"
    assert words[words.index("--nnodes") + 1] == "2"
    assert "train.processes=16" in words
    assert not (tmp_path / "queue").exists()


def test_slurm_puts_a_stopped_job_back_once_its_checkpoint_is_written(tmp_path: Path) -> None:
    environment = machine_of(tmp_path)
    saved = tmp_path / "saved"
    saves = f"trap 'sleep 0.3; touch {saved}; exit 1' TERM; touch {tmp_path}/begun"
    stub(tmp_path, "srun", f"{saves}; while true; do sleep 0.05; done")
    queues = f"{{ ls {saved} && echo $@; }} > {tmp_path}/queue"
    stub(tmp_path, "scontrol", f"[[ $1 == show ]] && echo node7 || {queues}")
    command = ["bash", "pipelines/train_slurm.sh", "config.yaml"]
    job = subprocess.Popen(command, cwd=ROOT, env=environment)
    end = time.monotonic() + DEADLINE_S
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
    assert job.wait(DEADLINE_S) == 0
    assert (tmp_path / "queue").read_text().splitlines() == [str(saved), "requeue 77"]
