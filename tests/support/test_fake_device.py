"""Training, scoring and answering on a device without one: no tensor is left on the CPU."""

import pytest
import torch

from medclip_dcl.inference.predictor import load
from medclip_dcl.likelihood.masked_lm import MaskedCopies, prepare_engine
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
from medclip_dcl.training.step import TrainStep
from tests.support.bert import copies, tiny_bert
from tests.support.fake_device import FAKE, FakeAccelerator, fake_device
from tests.support.published import publish
from tests.support.tiny_models import pair_batch, random_images, tiny_dual_encoder


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
