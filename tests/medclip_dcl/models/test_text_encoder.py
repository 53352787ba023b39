from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import BertForMaskedLM

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.models.text_encoder import TextEncoder, load_text_weights
from tests.support.tiny_models import random_tokens, tiny_text_config


def text_encoder() -> TextEncoder:
    return TextEncoder(tiny_text_config(), dim=8).eval()


def test_the_first_state_is_projected_and_padding_does_not_change_it():
    encoder = text_encoder()
    ids, mask = random_tokens(3)
    states = encoder.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(encoder(ids, mask)[1], encoder.projection(states[1, 0]))
    ids, mask = random_tokens(4, tokens=7)
    padded = encoder(functional.pad(ids, (0, 5), value=17), functional.pad(mask, (0, 5)))
    torch.testing.assert_close(padded, encoder(ids, mask), atol=1e-6, rtol=1e-5)


def test_a_language_model_in_cxr_bert_s_layout_fills_every_weight_of_bert(tmp_path):
    source = BertForMaskedLM(tiny_text_config()).eval()
    source.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    names = ("dense_to_hidden.weight", "LayerNorm.bias", "dense_to_output.bias")
    head = {f"cls_projection_head.{name}": torch.zeros(4) for name in names}
    save_file(load_file(file) | head, file, metadata={"format": "pt"})
    encoder = text_encoder()
    projection = encoder.projection.weight.clone()
    report = load_text_weights(encoder, tmp_path)
    given = dict(zip(("input_ids", "attention_mask"), random_tokens(3), strict=True))
    torch.testing.assert_close(encoder.backbone(**given)[0], source.bert(**given)[0])
    assert torch.equal(encoder.projection.weight, projection)
    assert report.missing == ()
    assert len(report.matched) == len(encoder.backbone.state_dict())
    assert set(head) <= set(report.unexpected)
    assert all(key.startswith("cls") for key in report.unexpected)


def test_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    save_file({"visual.conv.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="matches 0 of"):
        load_text_weights(text_encoder(), tmp_path)
