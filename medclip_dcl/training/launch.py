"""How the processes of a run start, and how they are asked to stop.

`accelerate launch` starts the trainer as a child and, when it is asked to stop, ends without
passing the signal on. On Linux the kernel then sends SIGHUP instead. One request may arrive several
times: from the process group, from the launcher and from the kernel. Only a second Ctrl-C, later,
means to stop at once.
"""

import ctypes
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    DistributedType,
    InitProcessGroupKwargs,
    parse_flag_from_env,
)

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.progress import available_cores
from medclip_dcl.training.logging import tracker_options
from medclip_dcl.training.settings import TrainConfig

# Of all processes for the main one, whose work takes hours: torch waits ten minutes on GPUs.
_LONGEST_WAIT = timedelta(days=1)
_FOLLOWED = {DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU}
_SHARDED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "PARALLELISM_CONFIG")


def start_accelerator(
    settings: TrainConfig, workers: int = 0, work: Path | None = None
) -> Accelerator:
    """Join the processes of the run; `work` receives trackers' files, None: nothing is tracked.

    On a machine they take `workers` cores together; 0: all.

    Raises:
        ConfigError: there are more or fewer processes than the settings expect, they are to
            share the weights, or a tracker is not installed.
    """
    for name in _SHARDED:  # asked first: without their packages Accelerator fails
        if parse_flag_from_env(f"ACCELERATE_USE_{name}"):
            _refuse_distribution(name)
    accelerator = Accelerator(
        mixed_precision=settings.precision,
        cpu=not torch.accelerator.is_available(),
        kwargs_handlers=[
            # Gradients are made where they are sent from: a copy of the weights' size less.
            DistributedDataParallelKwargs(gradient_as_bucket_view=True),
            InitProcessGroupKwargs(timeout=_LONGEST_WAIT),
        ],
        **tracker_options(settings, work),
    )
    if accelerator.distributed_type not in _FOLLOWED:
        _refuse_distribution(accelerator.distributed_type.value)
    if accelerator.num_processes != settings.processes:
        raise ConfigError(
            f"train.processes is {settings.processes}, this run has {accelerator.num_processes}; "
            f"start it with torchrun --nproc-per-node {settings.processes} -m pipelines.train (on "
            "CPUs `accelerate launch` starts one process whatever it is asked)"
        )
    # Processes that each took all cores of a machine would wait for one another.
    share = (workers or available_cores()) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(max(1, share))
    return accelerator


def _refuse_distribution(name: str) -> None:
    raise ConfigError(
        f"accelerate is to distribute this run by {name}; every process needs whole weights, as in "
        "MULTI_GPU and MULTI_CPU, for a checkpoint is one process's: see configs/accelerate"
    )


_PR_SET_PDEATHSIG = 1
_SAME_KEY_PRESS_S = 1.0
_LAUNCHED_BY = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID")


class StopRequest:
    """Request made of SIGTERM, SIGINT or the launcher's death, for a `with` block.

    A second SIGINT, a second after the first, ends the process at once.
    """

    def __init__(self) -> None:
        self.requested = False
        self._since = 0.0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # The SIGHUP of a run started by hand is its shell's, which it may outlive.
        launched = sys.platform == "linux" and any(name in os.environ for name in _LAUNCHED_BY)
        for number in (signal.SIGTERM, signal.SIGINT, *[signal.SIGHUP] * launched):
            self._previous[number] = signal.signal(number, self._note)
        if launched:
            _follow_launcher()
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.requested:
            self.requested, self._since = True, now
        elif number == signal.SIGINT and now - self._since > _SAME_KEY_PRESS_S:
            os._exit(128 + number)  # nothing is waited for: the step may be what hangs


def _follow_launcher() -> None:
    # Ask the kernel for SIGHUP when the launcher dies.
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP), 0, 0, 0)
    if os.getppid() != parent:  # it died while we asked
        os.kill(os.getpid(), signal.SIGTERM)
