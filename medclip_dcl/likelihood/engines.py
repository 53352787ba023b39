"""Engines that run a masked language model, and how much of it at a time.

The fast way on a CPU is an ONNX graph of BERT (see `bert_graph`), on ONNX Runtime's float32
kernels, which pack each weight matrix once for the processor. On processors whose wide vector units
torch's own matrix products leave idle this is twice as fast; elsewhere the trimmed graph alone is
worth it. OpenVINO runs the same graph in bfloat16, for those who ask. The packages are optional;
without them, or on a GPU, `PlainEngine` runs the model as transformers does.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import BertForMaskedLM, PreTrainedModel

from medclip_dcl.errors import ScoreError
from medclip_dcl.likelihood.bert_graph import ACTIVATIONS, BertGraph, build_graph
from medclip_dcl.likelihood.masked_lm import Engine, MaskedCopies, PlainEngine, is_bert
from medclip_dcl.models.engines import openvino_core

LOGGER = logging.getLogger("medclip.likelihood")

EngineName = Literal["auto", "onnxruntime", "openvino", "plain"]

_Run = Callable[[dict[str, NDArray[Any]]], NDArray[np.float32]]


def _start_onnxruntime(graph: BertGraph, threads: int) -> _Run:
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # it keeps a plan for every shape that was seen
    options.enable_cpu_mem_arena = False  # it keeps the largest of all shapes
    options.log_severity_level = 3  # errors
    values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in graph.weights.values()]
    options.add_external_initializers(list(graph.weights), values)
    session: Any = runtime.InferenceSession(
        graph.model, options, providers=["CPUExecutionProvider"]
    )
    return lambda feed: cast("NDArray[np.float32]", session.run(None, feed)[0])


def _start_openvino(graph: BertGraph, threads: int) -> _Run:
    onnx = import_module("onnx")
    whole = onnx.load_from_string(graph.model)
    for tensor in whole.graph.initializer:
        if tensor.name in graph.weights:  # OpenVINO would look for a file
            array = graph.weights[tensor.name]
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    options = {
        "INFERENCE_PRECISION_HINT": "bf16",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    core = openvino_core()
    compiled = core.compile_model(core.read_model(whole.SerializeToString()), "CPU", options)
    request = compiled.create_infer_request()
    return lambda feed: np.array(request.infer(feed)[0])  # a copy: the next pass writes there


class BertGraphEngine:
    """Runs BERT's trimmed graph on the CPU, for a model in eval mode whenever it scores.

    Weights are packed when it is made, in addition to the model's own: a model that is
    trained further needs another engine.
    """

    def __init__(self, model: BertForMaskedLM, name: EngineName, threads: int) -> None:
        graph = build_graph(model)
        start = _start_openvino if name == "openvino" else _start_onnxruntime
        self._run = start(graph, threads)
        self._embeddings: Any = model.bert.embeddings

    def log_probs(self, copies: MaskedCopies) -> Float[Tensor, " rows"]:
        """Score as `Engine` says."""
        rows, length = copies.hidden.shape
        states, index = self._states(copies)
        feed = {
            "states": states.flatten(0, 1).float(),
            "index": index,
            "asked": torch.arange(rows) * length + copies.position,
            "target": copies.targets()[:, None],
        }
        return torch.from_numpy(self._run({name: item.numpy() for name, item in feed.items()}))[
            :, 0
        ]

    def _states(
        self, copies: MaskedCopies
    ) -> tuple[Float[Tensor, "inputs length width"], Int[Tensor, "rows length"]]:
        # Embed the sentences and one row of masks, or the copies where these are fewer.
        rows, length = copies.hidden.shape
        column = torch.arange(length)
        if rows <= len(copies.ids):
            index = torch.arange(rows)[:, None] * length + column
            return self._embeddings(input_ids=copies.masked()), index
        masks = torch.full((1, length), copies.mask_id)
        states = self._embeddings(input_ids=torch.cat([copies.ids, masks]))
        own = copies.sentence[:, None] * length + column
        return states, torch.where(copies.hidden, len(copies.ids) * length + column, own)


CPU_BUDGET = 1024
"""Word pieces in one forward pass on a CPU; more are no faster, and take more memory."""

_SHORTEST = 8  # word pieces that a row counts at least: short rows cost their logits
_WIDE = 256  # word pieces of a row whose attention takes as much memory as all else

_PACKAGES: Mapping[EngineName, tuple[str, ...]] = {
    "onnxruntime": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "openvino"),
}
_MOST_BUDGET = 1 << 16  # word pieces; a GPU is busy long before
_LEAST_BUDGET = 1 << 10
_LAYERS = {"BertLMPredictionHead", "Embedding", "LayerNorm", "Linear"}  # that hold BERT's weights
_SHARE_OF_FREE = 0.25  # of a GPU's free memory; its allocator keeps blocks of several shapes


def prepare_engine(
    model: PreTrainedModel, name: EngineName = "auto", threads: int | None = None
) -> Engine:
    """Make a model ready to score, with the weights as they are now.

    `onnxruntime`: the fast way, for BERT in float32 on a CPU; `openvino`: for BERT in bfloat16 on a
    CPU that multiplies in it, with sums and inputs in bfloat16 as well; `plain`: any model on any
    device, as transformers runs it; `auto`: the fast way where the model and the installed packages
    allow it, else the plain one, with a line in the log that says why. `threads`: of one forward
    pass of the fast way; None: as many as torch uses now.

    Raises:
        ScoreError: `onnxruntime` or `openvino` is asked for and cannot be had.
    """
    found = resolve_engine(model, name)
    if found == "plain":
        return PlainEngine(model)
    return BertGraphEngine(cast(BertForMaskedLM, model), found, threads or torch.get_num_threads())


def resolve_engine(model: PreTrainedModel, name: EngineName = "auto") -> EngineName:
    """Find the engine that `prepare_engine` takes: `onnxruntime`, `openvino` or `plain`.

    Raises:
        ScoreError: the engine that is asked for cannot be had.
    """
    if name == "plain":
        return "plain"
    fast = name
    if name == "auto":
        rough = next(model.parameters()).dtype == torch.bfloat16
        fast = "openvino" if rough else "onnxruntime"
    reason = _obstacle(model, fast)
    if not reason:
        return fast
    if name != "auto":
        raise ScoreError(f"the engine {name!r} cannot be used: {reason}; set 'auto'")
    LOGGER.info("scoring as transformers does, not on a graph: %s", reason)
    return "plain"


def find_budget(model: PreTrainedModel) -> int:
    """Find how many word pieces one forward pass should hold on the model's device.

    On a GPU that is a power of two which fits its free memory: a little more or less of it gives
    the same batches.
    """
    device = next(model.parameters()).device
    if device.type != "cuda":
        return CPU_BUDGET
    free, _ = torch.cuda.mem_get_info(device)
    return budget_that_fits(free, model)


def rows_within(token_budget: int, length: int) -> int:
    """Find how many rows of a length one forward pass should hold: at least 1."""
    # A long row counts more than its word pieces, for its attention, so that the memory of a
    # pass hardly depends on the length of the sentences.
    cost = max(_SHORTEST, length + length * length // _WIDE)
    return max(1, token_budget // cost)


def budget_that_fits(free_bytes: int, model: PreTrainedModel) -> int:
    """Find the largest budget, a power of two, that leaves most of a GPU's free memory alone."""
    config = model.config
    width = int(getattr(config, "hidden_size", 768))
    inner = int(getattr(config, "intermediate_size", 4 * width))
    logits = 3 * int(config.vocab_size) / _SHORTEST  # of a row: raw, float32, normalised
    piece_bytes = 4 * (8 * width + 2 * inner + logits)
    fits = _SHARE_OF_FREE * free_bytes / piece_bytes
    return max(_LEAST_BUDGET, min(_MOST_BUDGET, 1 << max(0, int(fits).bit_length() - 1)))


def _obstacle(model: PreTrainedModel, name: EngineName) -> str:
    # What keeps a model from a fast way; empty where nothing does.
    missing = [package for package in _PACKAGES[name] if find_spec(package) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    if not is_bert(model):
        return f"{type(model).__name__} is not BertForMaskedLM"
    dtype = torch.bfloat16 if name == "openvino" else torch.float32
    if any(weight.device.type != "cpu" or weight.dtype != dtype for weight in model.parameters()):
        return f"weights are not {str(dtype).removeprefix('torch.')} on the CPU"
    if model.config.hidden_act not in ACTIVATIONS:
        return f"the activation {model.config.hidden_act!r} is none of {', '.join(ACTIVATIONS)}"
    owners = {type(module).__name__ for module in model.modules() if _owns_weights(module)}
    if owners - _LAYERS:
        return f"the model holds weights in {sorted(owners - _LAYERS)}"
    if name == "openvino" and "BF16" not in _capabilities():
        return "this processor does not multiply in bfloat16"
    return ""


def _capabilities() -> Sequence[str]:
    found: Sequence[str] = openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return found


def _owns_weights(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None
