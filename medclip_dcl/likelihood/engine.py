"""Which way a masked language model is run, and how much of it at a time."""

import logging
from importlib.util import find_spec
from typing import Literal, cast

import torch
from torch import nn
from transformers import BertForMaskedLM, PreTrainedModel

from medclip_dcl.errors import ScoreError
from medclip_dcl.likelihood.bert_graph import ACTIVATIONS
from medclip_dcl.likelihood.masked_rows import Engine, PlainEngine, is_bert
from medclip_dcl.likelihood.onnx_engine import OnnxEngine

LOGGER = logging.getLogger("medclip.likelihood")

EngineName = Literal["auto", "onnxruntime", "plain"]

CPU_BUDGET = 1024
"""Word pieces in one forward pass on a CPU; more are no faster, and take more memory."""

_SHORTEST = 8  # word pieces that a row counts at least: short rows cost their logits
_WIDE = 256  # word pieces of a row whose attention takes as much memory as all else

_PACKAGES = ("onnx", "onnxruntime")
_MOST_BUDGET = 1 << 16  # word pieces; a GPU is busy long before
_LEAST_BUDGET = 1 << 10
_LAYERS = {"BertLMPredictionHead", "Embedding", "LayerNorm", "Linear"}  # that hold BERT's weights
_SHARE_OF_FREE = 0.25  # of a GPU's free memory; its allocator keeps blocks of several shapes


def prepare_engine(
    model: PreTrainedModel, name: EngineName = "auto", threads: int | None = None
) -> Engine:
    """Make a model ready to score.

    Args:
        model: a masked language model.
        name: `onnxruntime`: the fast way, for BERT in float32 on a CPU; `plain`: any
            model on any device, as transformers runs it; `auto`: the fast way where the
            model and the installed packages allow it, else the plain one, with a line
            in the log that says why.
        threads: threads of one forward pass of the fast way; None: as many as torch
            uses now.

    Returns:
        The engine. It holds the weights as they are now.

    Raises:
        ScoreError: `onnxruntime` is asked for and cannot be had.
    """
    if resolve_engine(model, name) == "plain":
        return PlainEngine(model)
    return OnnxEngine(cast(BertForMaskedLM, model), threads or torch.get_num_threads())


def resolve_engine(model: PreTrainedModel, name: EngineName = "auto") -> EngineName:
    """Say which engine `prepare_engine` would take.

    Args:
        model: a masked language model.
        name: as in `prepare_engine`.

    Returns:
        `onnxruntime` or `plain`.

    Raises:
        ScoreError: `onnxruntime` is asked for and cannot be had.
    """
    if name == "plain":
        return "plain"
    reason = _obstacle(model)
    if not reason:
        return "onnxruntime"
    if name == "onnxruntime":
        raise ScoreError(f"the engine 'onnxruntime' cannot be used: {reason}; set 'auto'")
    LOGGER.info("scoring as transformers does, not on ONNX Runtime: %s", reason)
    return "plain"


def find_budget(model: PreTrainedModel) -> int:
    """Find how many word pieces one forward pass should hold.

    Args:
        model: the model, on the device on which it scores.

    Returns:
        `CPU_BUDGET` on a CPU. On a GPU a power of two that fits its free memory, so that
        a little more or less of it gives the same batches.
    """
    device = next(model.parameters()).device
    if device.type != "cuda":
        return CPU_BUDGET
    free, _ = torch.cuda.mem_get_info(device)
    return budget_that_fits(free, model)


def rows_within(token_budget: int, length: int) -> int:
    """Find how many rows one forward pass should hold.

    A long row counts more than its word pieces, for its attention, so that the memory of
    a pass hardly depends on the length of the sentences.

    Args:
        token_budget: word pieces in one forward pass.
        length: word pieces of a row.

    Returns:
        Rows; at least 1, and never more word pieces than the budget where there are more.
    """
    cost = max(_SHORTEST, length + length * length // _WIDE)
    return max(1, token_budget // cost)


def budget_that_fits(free_bytes: int, model: PreTrainedModel) -> int:
    """Find the largest budget that leaves most of a GPU's free memory alone.

    Args:
        free_bytes: free memory.
        model: the model; its widths tell what a word piece takes.

    Returns:
        Word pieces in one forward pass, a power of two in [1024, 65536].
    """
    config = model.config
    width = int(getattr(config, "hidden_size", 768))
    inner = int(getattr(config, "intermediate_size", 4 * width))
    logits = 3 * int(config.vocab_size) / _SHORTEST  # of a row: raw, float32, normalised
    piece_bytes = 4 * (8 * width + 2 * inner + logits)
    fits = _SHARE_OF_FREE * free_bytes / piece_bytes
    return max(_LEAST_BUDGET, min(_MOST_BUDGET, 1 << max(0, int(fits).bit_length() - 1)))


def _obstacle(model: PreTrainedModel) -> str:
    """Say what keeps a model from the fast way; empty where nothing does."""
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    if not is_bert(model):
        return f"{type(model).__name__} is not BertForMaskedLM"
    weights = list(model.parameters())
    if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in weights):
        return "weights are not float32 on the CPU"
    if model.config.hidden_act not in ACTIVATIONS:
        return f"the activation {model.config.hidden_act!r} is none of {', '.join(ACTIVATIONS)}"
    owners = {type(module).__name__ for module in model.modules() if _owns_weights(module)}
    if owners - _LAYERS:
        return f"the model holds weights in {sorted(owners - _LAYERS)}"
    return ""


def _owns_weights(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None
