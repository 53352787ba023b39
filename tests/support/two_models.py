"""A process in which two models of OpenVINO end in another order than they began."""

import signal
from collections.abc import Sequence
from pathlib import Path

import openvino
from openvino import opset13

from medclip_dcl.models.engines import run_openvino


def main(arguments: Sequence[str]) -> int:
    """Run two models of one graph, end both, and take a signal; `arguments`: the graph's file."""
    file = Path(arguments[0])
    x = opset13.parameter([1, 4])
    openvino.save_model(openvino.Model([opset13.relu(x)], [x]), file)
    first, second = (run_openvino(file, "float32") for _ in range(2))
    del first  # as it was made first, so it ends first
    del second
    signal.signal(signal.SIGTERM, lambda *_: print("stopped"))
    signal.raise_signal(signal.SIGTERM)
    return 0
