"""A process in which two models of OpenVINO end in another order than they began."""

import signal
from collections.abc import Sequence
from pathlib import Path

from onnx import TensorProto, ValueInfoProto, helper, save

from medclip_dcl.models.engines import run_openvino


def main(arguments: Sequence[str]) -> int:
    """Run two models of one graph, end both, and take a signal; `arguments`: the graph's file."""

    def value(name: str) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])

    file = Path(arguments[0])
    relu = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([relu], "relu", [value("x")], [value("y")])
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), file)
    first, second = (run_openvino(file, "float32") for _ in range(2))
    del first  # as it was made first, so it ends first
    del second
    signal.signal(signal.SIGTERM, lambda *_: print("stopped"))
    signal.raise_signal(signal.SIGTERM)
    return 0
