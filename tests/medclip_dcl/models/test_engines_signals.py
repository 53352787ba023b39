"""Processes that have used OpenVINO still take a signal."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

USED = """
import signal, sys
from pathlib import Path
from onnx import TensorProto, helper, save
from medclip_dcl.models.engines import run_openvino

def value(name):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])

relu = helper.make_node("Relu", ["x"], ["y"])
file = Path(sys.argv[1])
opset = [helper.make_opsetid("", 17)]
graph = helper.make_graph([relu], "relu", [value("x")], [value("y")])
save(helper.make_model(graph, opset_imports=opset, ir_version=8), file)
first, second = (run_openvino(file, "float32") for _ in range(2))
del first  # as it was made first, so it ends first
del second
signal.signal(signal.SIGTERM, lambda *_: print("stopped"))
signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_after_two_models_does_not_end_the_process(tmp_path: Path) -> None:
    for package in ("openvino", "onnx"):
        pytest.importorskip(package)
    command = [sys.executable, "-X", "faulthandler", "-c", USED, str(tmp_path / "relu.onnx")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
