"""How a masked language model is run, and how much of it at a time.

The fast way on a CPU is an ONNX graph of BERT that computes one masked position per row, on
ONNX Runtime's float32 kernels, which pack each weight matrix once for the processor. On
processors whose wide vector units torch's own matrix products leave idle this is twice as
fast; elsewhere the trimmed graph alone is worth it. OpenVINO runs the same graph in bfloat16,
for those who ask. The packages are optional; without them, or on a GPU, `PlainEngine` runs the
model as transformers does.

The graph does exactly what scoring asks for, and less than the model:

    layer 1      queries, keys and values are computed once per sentence, and once for a
                 mask at each position; rows gather theirs from both
    last layer   asked positions alone; its key and value matrices meet the asked query
                 and the summed states, never the states of a whole row
    head         asked positions alone
    padding      none: rows are of one length, so there is no attention mask

Weights stay outside the graph, in the model's own memory, until the runtime packs them.

Axes
    states    word pieces of distinct sentences, then a mask at each position
    rows      masked copies
    length    word pieces of a row
    width     of the model; heads * head width
    vocab     the vocabulary

Source: Devlin et al. 2019; the shortcuts are exact, and ours.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from medclip_dcl.likelihood.masked_lm import Engine, MaskedCopies, PlainEngine, is_bert
from medclip_dcl.models.openvino_core import openvino_core

_ACTIVATIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("Gelu", {}),
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
}  # activations that a graph can hold -> operator and its attributes

_OPSET = 20
_RUNTIME = "com.microsoft"  # ONNX Runtime's own operators
_FORMAT = 9  # of the file; the first that may hold opset 20
_WIDEST_SUM = 1024  # longer inner products are slower: a row no longer fits the nearest cache


@dataclass(frozen=True)
class BertGraph:
    """A graph and its weights.

    Inputs: `states` (states, width), embedded; `index` (rows, length), the state at each
    place of each row; `asked` (rows), the asked place of each row, counted through all
    rows; `target` (rows, 1), the asked piece. Output: `log_probs` (rows, 1), nats.
    """

    model: bytes
    """The serialised graph, its large weights left out."""
    weights: Mapping[str, NDArray[np.float32]]
    """The weights that were left out, by name."""


def build_graph(model: BertForMaskedLM) -> BertGraph:
    """Write the trimmed graph, in float32, of a model on the CPU.

    Its weights share the model's memory where their layout allows.
    """
    graph = _Writer(model)
    states, asked = "states", "asked"
    layers: list[Any] = list(model.bert.encoder.layer)
    for number, layer in enumerate(layers):
        if number == len(layers) - 1:
            context, residual = graph.last_attention(layer, states, number, asked)
        else:
            context, residual = graph.attention(layer, states, number)
        attended = graph.add_and_norm(layer.attention.output, context, residual)
        states = graph.feed_forward(layer, attended)
    return graph.finish(graph.head(states))


class _Writer:
    """Adds nodes to one graph; every method returns the name of its output."""

    def __init__(self, model: BertForMaskedLM) -> None:
        self._onnx = import_module("onnx")
        self._helper = import_module("onnx.helper")
        self._model: Any = model
        config = model.config
        self._width = int(config.hidden_size)
        self._heads = int(config.num_attention_heads)
        self._epsilon = float(config.layer_norm_eps)
        self._activation = _ACTIVATIONS[config.hidden_act]
        self._nodes: list[Any] = []
        self._small: dict[str, Any] = {}
        self._weights: dict[str, NDArray[np.float32]] = {}
        rows_length = self._node("Shape", ["index"])
        self._per_row = self._node("Concat", [rows_length, self._integers([self._width])], axis=0)

    def attention(self, layer: Any, states: str, number: int) -> tuple[str, str]:
        """Attend over whole rows; the first layer is shared among the copies of a sentence."""
        own = layer.attention.self
        parts = [
            self._linear(states, own.query.weight, own.query.bias),
            self._linear(states, own.key.weight, own.key.bias),
            self._linear(states, own.value.weight, own.value.bias),
            states,
        ]
        if number == 0:
            # Copies of a sentence differ at their masks alone, and nothing has mixed
            # positions yet: project each state once, then gather rows of projections.
            indices = self._reshape("index", [-1])
            parts = [self._node("Gather", [part, indices], axis=0) for part in parts]
        rows = [self._node("Reshape", [part, self._per_row]) for part in parts[:3]]
        context = self._node(
            "MultiHeadAttention", rows, domain=_RUNTIME, num_heads=self._heads, scale=own.scaling
        )  # in blocks: shares of a long row are never held as a whole
        return self._reshape(context, [-1, self._width]), parts[3]

    def last_attention(self, layer: Any, states: str, number: int, asked: str) -> tuple[str, str]:
        """Attend from the asked positions alone."""
        # Keys are K x + b. A query's product with b is the same for all of a row and falls
        # out of the softmax, and q K x is (q K) x; shares sum to 1, so the values' bias is
        # added once, and V meets the sum of states instead of each.
        own = layer.attention.self
        if number == 0:
            indices = self._reshape("index", [-1])
            states = self._node("Gather", [states, indices], axis=0)
        residual = self._node("Gather", [states, asked], axis=0)  # (rows, width)
        query = self._linear(residual, own.query.weight, own.query.bias)
        heads = (self._heads, -1, self._width)
        key = self._weight(own.key.weight.view(heads))  # (heads, head width, width)
        value = self._weight(own.value.weight.view(heads).transpose(1, 2))
        whole = self._node("Reshape", [states, self._per_row])  # (rows, length, width)
        by_head = self._transpose(self._reshape(query, [0, self._heads, -1]), [1, 0, 2])
        reach = self._transpose(self._node("MatMul", [by_head, key]), [1, 0, 2])
        logits = self._node("MatMul", [reach, self._transpose(whole, [0, 2, 1])])
        scale = self._constant(np.array(own.scaling, np.float32))
        shares = self._node(
            "Softmax", [self._node("Mul", [logits, scale])], axis=-1
        )  # (rows, heads, length)
        summed = self._transpose(self._node("MatMul", [shares, whole]), [1, 0, 2])
        context = self._transpose(self._node("MatMul", [summed, value]), [1, 0, 2])
        flat = self._reshape(context, [-1, self._width])
        return self._node("Add", [flat, self._weight(own.value.bias)]), residual

    def add_and_norm(self, output: Any, x: str, residual: str) -> str:
        """Project, add what was before, normalise."""
        projected = self._linear(x, output.dense.weight, output.dense.bias)
        return self._norm(self._node("Add", [projected, residual]), output.LayerNorm)

    def feed_forward(self, layer: Any, x: str) -> str:
        """Run the two wide layers in slices of their inner width, and sum these."""
        inner, outer = layer.intermediate.dense, layer.output.dense
        slices = -(-inner.out_features // _WIDEST_SUM)
        total = self._weight(outer.bias)  # each slice's Gemm adds to it: no pass of its own
        for up, bias, down in zip(
            inner.weight.chunk(slices),
            inner.bias.chunk(slices),
            outer.weight.chunk(slices, 1),
            strict=True,
        ):
            raised = self._activate(self._linear(x, up, bias))
            total = self._gemm(raised, down, total)
        return self._norm(self._node("Add", [total, x]), layer.output.LayerNorm)

    def head(self, x: str) -> str:
        """Log-probability of the asked piece."""
        predictions = self._model.cls.predictions
        transform = predictions.transform
        x = self._activate(self._linear(x, transform.dense.weight, transform.dense.bias))
        x = self._norm(x, transform.LayerNorm)
        # The decoder's bias is one more column of its matrix: to add it to all logits
        # would be another pass over them, the largest array of all.
        one = self._constant(np.array(1, np.float32))
        wider = self._node("Pad", [x, self._integers([0, 0, 0, 1]), one])
        matrix = torch.cat([predictions.decoder.weight, predictions.bias[:, None]], 1)
        logits = self._gemm(wider, matrix)
        log_probs = self._node("LogSoftmax", [logits], axis=-1)
        return self._node("GatherElements", [log_probs, "target"], axis=1)

    def finish(self, output: str) -> BertGraph:
        """Close the graph."""
        helper, kinds = self._helper, self._onnx.TensorProto
        inputs = [
            helper.make_tensor_value_info("states", kinds.FLOAT, ["states", self._width]),
            helper.make_tensor_value_info("index", kinds.INT64, ["rows", "length"]),
            helper.make_tensor_value_info("asked", kinds.INT64, ["rows"]),
            helper.make_tensor_value_info("target", kinds.INT64, ["rows", 1]),
        ]
        result = helper.make_tensor_value_info("log_probs", kinds.FLOAT, ["rows", 1])
        self._nodes.append(helper.make_node("Identity", [output], ["log_probs"]))
        tensors = [
            self._onnx.numpy_helper.from_array(array, name) for name, array in self._small.items()
        ]
        tensors += [self._outside(name, array) for name, array in self._weights.items()]
        graph = helper.make_graph(self._nodes, "pll", inputs, [result], tensors)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_RUNTIME, 1)]
        whole = helper.make_model(graph, opset_imports=opsets, ir_version=_FORMAT)
        return BertGraph(whole.SerializeToString(), self._weights)

    def _outside(self, name: str, array: NDArray[np.float32]) -> Any:
        """Declare a weight that is given to the runtime apart from the graph."""
        kinds = self._onnx.TensorProto
        tensor = kinds(name=name, data_type=kinds.FLOAT, dims=array.shape)
        tensor.data_location = kinds.EXTERNAL
        # a protobuf holds 2 GB at most; the runtime finds the array by its name
        tensor.external_data.add(key="location", value="next to the graph")
        return tensor

    def _linear(self, x: str, weight: Tensor, bias: Tensor) -> str:
        return self._gemm(x, weight, self._weight(bias))

    def _gemm(self, x: str, weight: Tensor, *added: str) -> str:
        return self._node("Gemm", [x, self._weight(weight), *added], transB=1)

    def _norm(self, x: str, norm: nn.LayerNorm) -> str:
        scale, shift = self._weight(norm.weight), self._weight(norm.bias)
        return self._node("LayerNormalization", [x, scale, shift], axis=-1, epsilon=self._epsilon)

    def _activate(self, x: str) -> str:
        operator, attributes = self._activation
        return self._node(operator, [x], **attributes)

    def _transpose(self, x: str, order: Sequence[int]) -> str:
        return self._node("Transpose", [x], perm=order)

    def _reshape(self, x: str, shape: Sequence[int]) -> str:
        return self._node("Reshape", [x, self._integers(shape)])

    def _integers(self, values: Sequence[int]) -> str:
        return self._constant(np.array(values, np.int64))

    def _constant(self, array: NDArray[Any]) -> str:
        name = f"{array.dtype}_{'_'.join(map(str, array.ravel().tolist()))}"
        self._small[name] = array
        return name

    def _weight(self, tensor: Tensor | nn.Parameter) -> str:
        name = f"weight_{len(self._weights)}"
        self._weights[name] = tensor.detach().float().contiguous().numpy()
        return name

    def _node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(operator, inputs, [name], name, **attributes))
        return name


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
    if model.config.hidden_act not in _ACTIVATIONS:
        return f"the activation {model.config.hidden_act!r} is none of {', '.join(_ACTIVATIONS)}"
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
