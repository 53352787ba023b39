"""The one OpenVINO runtime of a process."""

from functools import cache
from importlib import import_module
from typing import Any


@cache
def openvino_core() -> Any:
    """Give the runtime, which lives as long as the process.

    Each runtime gives the thread that makes it another stack for signals. Where several end in
    another order than they began, that stack is freed and stays in use, and the next signal, such
    as SIGTERM, ends the process with a segmentation fault (OpenVINO 2026.1).
    """
    return import_module("openvino").Core()
