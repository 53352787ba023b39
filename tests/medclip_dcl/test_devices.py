"""Training, scoring and answering on a device without one: no tensor is left on the CPU.

`meta` stands for an accelerator, under torch's fake tensors, which check the device of every
operation. Numbers do not exist there: where code asks for one it gets 1, or False. torch has no
autocast and no fused optimiser for it. Code that asks which numbers are not zero does not run.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest
import torch
from accelerate import Accelerator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from medclip_dcl.inference.predictor import load
from medclip_dcl.likelihood.masked_lm import MaskedCopies, prepare_engine
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
from medclip_dcl.training.step import TrainStep
from tests.support.bert import copies, tiny_bert
from tests.support.published import publish
from tests.support.tiny_models import pair_batch, random_images, tiny_dual_encoder

FAKE = torch.device("meta")


class FakeAccelerator(Accelerator):
    """Accelerate for one process on the device."""

    device = FAKE  # type: ignore[assignment] # a property there


class _Answers(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aten = torch.ops.aten
        if func in {aten._local_scalar_dense.default, aten.item.default}:
            return args[0].dtype != torch.bool and 1
        if func is aten.detach_.default:
            return args[0]  # of `torch.tensor`, which knows no fakes of this device
        return func(*args, **(kwargs or {}))


@contextmanager
def fake_device() -> Iterator[torch.device]:
    """Run code on the device; models are built before, under `torch.device(FAKE)`."""
    no_autocast = mock.patch.object(torch, "autocast", return_value=nullcontext())
    with FakeTensorMode(allow_non_fake_inputs=True), _Answers(), no_autocast:
        yield FAKE


def test_a_tensor_on_the_cpu_is_found():
    with fake_device() as device:
        there = torch.ones(3, device=device)
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.ones(3)


@pytest.mark.parametrize("chunk", [0, 2])
def test_a_step_of_training(chunk: int):
    settings = TrainConfig(global_batch=4, chunk=chunk, freeze_batchnorm=True)
    with torch.device(FAKE):
        encoder = tiny_dual_encoder()
    objective = ContrastiveObjective(ObjectiveConfig(), 0, chunk=chunk)
    step = TrainStep(FakeAccelerator(cpu=True), encoder, objective, settings, seed=0)
    for group in step.optimizer.param_groups:
        group["fused"] = False
    with fake_device():
        report = step(pair_batch(4), stop=False)
    assert report.output.loss.device == FAKE


def test_what_the_service_asks_of_a_model(tmp_path):
    predictor = load(publish(tmp_path / "model").path, FAKE)
    with fake_device():
        regions = predictor.embed_images(random_images(2))
        vectors = predictor.embed_sentences(["No effusion.", "Large effusion."])
        assert regions.device == vectors.device == FAKE
        assert predictor.margins(regions, predictor.findings).shape[1] == 2


def test_log_probabilities_of_masked_pieces_by_the_trimmed_forward():
    engine, asked = prepare_engine(tiny_bert().to(FAKE)), copies()
    tensors = (asked.ids, asked.sentence, asked.position, asked.hidden)
    with fake_device(), torch.inference_mode():
        moved = MaskedCopies(*(tensor.to(FAKE) for tensor in tensors), asked.mask_id)
        assert engine.log_probs(moved).device == FAKE
