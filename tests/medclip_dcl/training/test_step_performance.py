import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from medclip_dcl.models.settings import ImageEncoderConfig, ModelConfig
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
from medclip_dcl.training.step import TrainStep
from testing.tiny_models import pair_batch, tiny_dual_encoder, tiny_model_config

SMALLEST = tiny_model_config(kind="lse").model_copy(
    update={"image": ImageEncoderConfig(depths=(1,), widths=(8,), input_px=64)}
)


def losses(
    steps: int = 3, dropout: float = 0.1, model: ModelConfig | None = None, **settings: object
) -> tuple[list[float], dict]:
    """Train a tiny model; give its losses and its weights."""
    tree = {"global_batch": 6, "steps": 10, "learning_rate": 1e-2, "warmup_steps": 0}
    loop = TrainConfig.model_validate({**tree, **settings})
    encoder = tiny_dual_encoder(model).train()
    encoder.text.backbone.embeddings.dropout.p = dropout
    accelerator = Accelerator(cpu=True, mixed_precision=loop.precision)
    objective = ContrastiveObjective(ObjectiveConfig(), 0)
    step = TrainStep(accelerator, encoder, objective, loop, seed=0)
    found = []
    for number in range(steps):
        report = step(pair_batch(6, step=number), stop=False)
        assert report.output.loss.dtype == torch.float32
        found.append(report.output.loss.item())
    return found, encoder.state_dict()


@pytest.mark.parametrize("parts", ["text", "both"])
def test_activations_computed_twice_change_no_bit(parts: str) -> None:
    plain, kept = losses()
    again, weights = losses(gradient_checkpointing=parts)
    assert again == plain
    assert [name for name in kept if not torch.equal(kept[name], weights[name])] == []


def test_frozen_batch_norms_stay_frozen_under_checkpointing() -> None:
    plain, kept = losses(freeze_batchnorm=True)
    again, weights = losses(freeze_batchnorm=True, gradient_checkpointing="both")
    assert again == plain
    counters = [name for name in weights if name.endswith("num_batches_tracked")]
    assert counters
    assert all(weights[name] == kept[name] == 0 for name in counters)


def test_checkpointing_keeps_fewer_activations() -> None:
    def bytes_kept(**settings: object) -> int:
        sizes = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: (sizes.append(tensor.nbytes), tensor)[1], lambda tensor: tensor
        )
        with hooks:
            losses(steps=1, **settings)
        return sum(sizes)

    # The backward pass recomputes inside its own hooks: only what the forward kept is counted.
    assert bytes_kept(gradient_checkpointing="both") < 0.7 * bytes_kept()


def test_bf16_follows_float32_and_its_loss_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = losses(dropout=0.0, learning_rate=1e-4)
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})  # one precision a process, else
    half, _ = losses(dropout=0.0, learning_rate=1e-4, precision="bf16")
    assert half != plain
    assert half == pytest.approx(plain, rel=0.02)


def test_a_compiled_model_has_the_same_losses_and_keys() -> None:
    plain, kept = losses(dropout=0.0, steps=2, model=SMALLEST)
    compiled, weights = losses(dropout=0.0, steps=2, model=SMALLEST, compile_backend="aot_eager")
    assert compiled == pytest.approx(plain, rel=1e-4)
    assert weights.keys() == kept.keys()
