"""A device that computes nothing: a tensor that was left on the CPU fails next to its tensors.

`meta` stands for an accelerator, under torch's fake tensors, which check the device of every
operation. Numbers do not exist there: where code asks for one it gets 1, or False. torch has no
autocast and no fused optimiser for it. Code that asks which numbers are not zero does not run.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from accelerate import Accelerator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

FAKE = torch.device("meta")


class FakeAccelerator(Accelerator):
    """Accelerate for one process on the device."""

    device = FAKE  # type: ignore[assignment] # a property there


class _Answers(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return args[0].dtype != torch.bool and 1
        if func is torch.ops.aten.detach_.default:
            return args[0]  # of `torch.tensor`, which knows no fakes of this device
        return func(*args, **(kwargs or {}))


@contextmanager
def fake_device() -> Iterator[torch.device]:
    """Run code on the device; models are built before, under `torch.device(FAKE)`."""
    no_autocast = mock.patch.object(torch, "autocast", return_value=nullcontext())
    with FakeTensorMode(allow_non_fake_inputs=True), _Answers(), no_autocast:
        yield FAKE
