"""The trimmed graph gives the whole model's answers, whatever its activation and width."""

import pytest
import torch
from transformers import BertForMaskedLM

from medclip_dcl.likelihood.engines import prepare_engine
from testing.bert import copies, tiny_bert, whole_model


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "gelu_pytorch_tanh"])
def test_every_activation_of_the_graph_is_the_models(activation):
    config = tiny_bert().config
    config.hidden_act = activation
    torch.manual_seed(3)
    model = BertForMaskedLM(config).train(False)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    engine = prepare_engine(model, "onnxruntime", 1)
    with torch.inference_mode():
        got = engine.log_probs(copies())
    assert got.tolist() == pytest.approx(whole_model(model, copies()).tolist(), abs=2e-5)


def test_wide_layers_are_summed_in_slices_of_any_size():
    config = tiny_bert().config
    config.intermediate_size = 1500
    torch.manual_seed(4)
    model = BertForMaskedLM(config).train(False)
    engine = prepare_engine(model, "onnxruntime", 1)
    with torch.inference_mode():
        got = engine.log_probs(copies())
    assert got.tolist() == pytest.approx(whole_model(model, copies()).tolist(), abs=2e-5)
