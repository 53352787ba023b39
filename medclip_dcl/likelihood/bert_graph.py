"""Trimmed graph of BERT, in ONNX, that computes one masked position per row.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import BertForMaskedLM

ACTIVATIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
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
        self._activation = ACTIVATIONS[config.hidden_act]
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
