"""The debiased loss in the Hugging Face Trainer, with towers of transformers.

    python examples/hf_trainer.py [--steps 20] [--output runs/hf_trainer]

The towers are small and their data are drawn, so that it runs anywhere in seconds. For real work,
give `VisionTextDualEncoderModel.from_vision_text_pretrained` your two checkpoints, and a data set
whose items have `pixel_values`, `input_ids` and `eta`.
"""

import argparse
import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    Trainer,
    TrainingArguments,
    VisionTextDualEncoderConfig,
    VisionTextDualEncoderModel,
    ViTConfig,
)

from medclip_dcl import debiased_contrastive_loss

CLASSES, SIZE, WORDS = 8, 32, 6


class DrawnPairs(Dataset):
    """Images of one of eight stripes, and texts whose words name the stripe."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        kind = index % CLASSES
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, SIZE, SIZE, generator=generator)
        image[:, :, kind * SIZE // CLASSES : (kind + 1) * SIZE // CLASSES] += 2
        words = torch.full((WORDS,), 10 + kind)
        return {"pixel_values": image, "input_ids": words, "eta": torch.tensor(1 / CLASSES)}


class DebiasedTrainer(Trainer):
    """A Trainer whose loss corrects each text by its `eta`."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any
    ) -> Any:
        """Texts are the anchors; `logits_per_text` already has the learned scale."""
        eta = inputs.pop("eta")
        outputs = model(**inputs)
        gamma = (self.accelerator.unwrap_model(model).logit_scale.exp()).sqrt()
        loss = debiased_contrastive_loss(outputs.logits_per_text, None, eta, gamma)
        return (loss, outputs) if return_outputs else loss


def main() -> list[float]:
    """Train, and give the losses that the Trainer logged."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", default="")
    options = parser.parse_args()
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = ViTConfig(image_size=SIZE, patch_size=8, intermediate_size=64, **small)
    text = BertConfig(vocab_size=32, intermediate_size=64, **small)
    config = VisionTextDualEncoderConfig.from_vision_text_configs(vision, text, projection_dim=16)
    with tempfile.TemporaryDirectory() as folder:
        trainer = DebiasedTrainer(
            model=VisionTextDualEncoderModel(config),
            args=TrainingArguments(
                output_dir=options.output or folder,
                max_steps=options.steps,
                per_device_train_batch_size=32,
                learning_rate=3e-3,
                logging_steps=max(1, options.steps // 4),
                remove_unused_columns=False,  # or the Trainer drops `eta`
                report_to=[],
                save_strategy="no" if not options.output else "steps",
                disable_tqdm=True,
            ),
            train_dataset=DrawnPairs(),
        )
        trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


if __name__ == "__main__":
    main()
