"""The least time that exact scores take: multiplications that no sharing avoids, at the best rate.

Everything that copies of a sentence have in common is counted once, and everything that
nobody asks for not at all; adding, normalising and looking up cost nothing here.
"""

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import BertConfig

ROWS = 512


def operations(config: BertConfig, pieces: int) -> float:
    """Count the floating point operations of the matrix products for one sentence.

    The input has two pieces more than are scored.
    """
    d, f, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    n, length, layers = pieces, pieces + 2, config.num_hidden_layers
    after_attention = d * d + 2 * d * f
    attention = 2 * length * d  # of one place: logits and sums
    first = 3 * d * d * (length + n) + n * length * (attention + after_attention)
    inner = n * length * (3 * d * d + attention + after_attention)
    last = n * (3 * d * d + 2 * length * heads * d + after_attention)
    head = n * (d * d + d * config.vocab_size)
    return 2.0 * (first + (layers - 2) * inner + last + head)


def kernels(width: int) -> dict[str, Callable[[], float]]:
    """Make the matrix products whose rate bounds everyone, at the model's width.

    Each multiplies for about 20 ms and returns operations per CPU second.
    """
    rates: dict[str, Callable[[], float]] = {}
    for inputs, outputs in ((width, width), (width, 4 * width), (4 * width, width)):
        x, weight, bias = (
            torch.randn(ROWS, inputs),
            torch.randn(outputs, inputs),
            torch.randn(outputs),
        )
        work = 2.0 * ROWS * inputs * outputs
        shape = f"{ROWS} x {inputs} x {outputs}"
        rates[f"torch {shape}"] = _rate(partial(F.linear, x, weight, bias), work)
        rates[f"onnxruntime {shape}"] = _rate(_onnx_product(x, weight, bias), work)
    return rates


def _rate(product: Callable[[], Any], work: float) -> Callable[[], float]:
    repeats = max(1, int(2e9 / work))

    def measure() -> float:
        product()
        start = time.process_time()
        for _ in range(repeats):
            product()
        return repeats * work / (time.process_time() - start)

    return measure


def _onnx_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Callable[[], Any]:
    """The same product with its weight packed beforehand, its output buffer bound."""
    onnx, runtime = import_module("onnx"), import_module("onnxruntime")
    helper, real = import_module("onnx.helper"), onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)],
        "product",
        [helper.make_tensor_value_info("x", real, list(x.shape))],
        [helper.make_tensor_value_info("y", real, [len(x), len(weight)])],
        [onnx.numpy_helper.from_array(t.numpy(), n) for t, n in ((weight, "w"), (bias, "b"))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", runtime.OrtValue.ortvalue_from_numpy(x.numpy()))
    result = runtime.OrtValue.ortvalue_from_numpy(np.zeros((len(x), len(weight)), np.float32))
    binding.bind_ortvalue_output("y", result)
    return lambda: session.run_with_iobinding(binding)
