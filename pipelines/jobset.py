"""A config's stages as a JobSet for Kubernetes: one job each, after the one before.

Scoring and training run on every node, a process for each GPU, and meet by torchrun; the other
stages have one pod. All pods see the volume `medclip-work`, which holds the config as well. A pod
that is lost or evicted is started again, and its stage goes on from what is finished.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from medclip_dcl.errors import ConfigError

from .config import Config
from .stages import stages_of

NAME = "medclip"
FOLDER = PurePosixPath("/work")
"""Where pods see the volume."""
SPREAD = ("score_sentences", "train")
"""Stages that run on all nodes."""

_ONE_GPU = {"fit_language_model", "pretrain_images", "calibrate_scores", "fit_head"}
_ONE_GPU |= {"evaluate", "build_index"}
_PORT = 29500
_RESTARTS = 50  # of the pods of a job, before it counts as failed
_GRACE_S = 120  # from SIGTERM: training finishes its step and saves


def make_jobset(
    config: Config, file: str, overrides: Sequence[str], size: str, image: str
) -> dict[str, Any]:
    """Make the manifest of a config that was loaded with these overrides.

    `file` is the config's name on the volume, `size` is NODESxGPUS, as 2x8.

    Raises:
        ConfigError: the size is not NODESxGPUS, or gives no equal share of a batch.
    """
    if not (found := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", size)):
        raise ConfigError(f"--kubernetes is {size!r}; give nodes and the GPUs of each, as 2x8")
    nodes, gpus = map(int, found.groups())
    if config.train.global_batch % (nodes * gpus):
        raise ConfigError(
            f"train.global_batch {config.train.global_batch} has no equal share for {nodes * gpus} "
            "processes; choose other nodes and GPUs"
        )
    jobs: list[dict[str, Any]] = []
    for stage in stages_of(config):
        name = stage.replace("_", "-")
        options = ["--config", str(FOLDER / file)]
        for override in (*overrides, f"work={FOLDER / 'run'}"):
            options += ["--set", override]
        if stage in SPREAD:
            options += ["--set", f"train.processes={nodes * gpus}"] if stage == "train" else []
            # JOBSET-JOB-0-0.JOBSET is the first pod of a job
            head = f"{NAME}-{name}-0-0.{NAME}:{_PORT}"
            launch = ["-m", "torch.distributed.run", "--nnodes", str(nodes)]
            launch += ["--nproc-per-node", str(gpus), "--rdzv-backend", "c10d"]
            launch += ["--rdzv-id", name, "--rdzv-endpoint", head]
            command = ["python", *launch, "-m", f"{__package__}.{stage}", *options]
            spec = _job(command, image, nodes, gpus)
        else:
            command = ["python", "-m", __package__ or "", stage, *options]
            spec = _job(command, image, 1, int(stage in _ONE_GPU))
        after = {"dependsOn": [{"name": jobs[-1]["name"], "status": "Complete"}]} if jobs else {}
        jobs.append({"name": name, "replicas": 1, **after, "template": {"spec": spec}})
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": NAME},
        "spec": {"network": {"enableDNSHostnames": True}, "replicatedJobs": jobs},
    }


def _job(command: list[str], image: str, pods: int, gpus: int) -> dict[str, Any]:
    container = {
        "name": "stage",
        "image": image,
        "command": command,
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"limits": {"nvidia.com/gpu": gpus}} if gpus else {},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "work", "mountPath": str(FOLDER)},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 # NCCL's, in the pod
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "work", "persistentVolumeClaim": {"claimName": "medclip-work"}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    return {
        "completionMode": "Indexed",
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": _RESTARTS,
        "template": {"spec": pod},
    }
