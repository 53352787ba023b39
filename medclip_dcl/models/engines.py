"""Engines of the two encoders: PyTorch, or OpenVINO on a CPU.

    image.onnx          pixels -> unit vector of every region
    text.onnx           input_ids, attention_mask -> unit vector of every sentence

OpenVINO reads these graphs, which are exported once for a model and kept in this user's cache,
`$XDG_CACHE_HOME/medclip-dcl` or `~/.cache/medclip-dcl`, where nobody else may write: a graph next
to a package would be anybody's, and its digest is not the model's. OpenVINO is taken only after it
has answered like PyTorch; else the log says why, and PyTorch serves.
"""

import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from medclip_dcl.artifact import ArtifactType, make_fingerprint, open_if_current
from medclip_dcl.errors import ArtifactError, ConfigError
from medclip_dcl.files import cache_root
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.onnx_graphs import (
    ModelPart,
    Run,
    largest_difference,
    model_parts,
    write_graph,
)
from medclip_dcl.models.settings import InferenceConfig

LOGGER = logging.getLogger("medclip.engines")

TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-2}
"""Largest difference of an entry of a unit vector to PyTorch's in float32, by precision."""

_GRAPHS = ArtifactType("graphs", 1, "the engine openvino")
_PACKAGES = ("openvino", "onnx", "onnxscript")
_MOST_CHANGED = 0.01  # of a model's decisions, by bfloat16
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_OPENVINO_TYPES = {"float32": "f32", "bfloat16": "bf16"}


class TorchEngine:
    """The model as it is; in a reduced precision by autocast, which leaves vectors float32."""

    name: Literal["torch"] = "torch"

    def __init__(self, model: DualEncoder, precision: str = "float32") -> None:
        self.precision = precision
        self._model, self._dtype = model, _DTYPES.get(precision)

    def encode_images(
        self, pixels: Float[Tensor, "images 1 height width"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """As `DualEncoder` does."""
        with torch.autocast(pixels.device.type, self._dtype, enabled=self._dtype is not None):
            # Channels last is the layout that convolutions are fastest in, on CPU and GPU.
            return self._model.encode_images(pixels.contiguous(memory_format=torch.channels_last))

    def encode_sentences(
        self,
        input_ids: Int[Tensor, "texts tokens"],
        attention_mask: Int[Tensor, "texts tokens"],
    ) -> Float[Tensor, "texts dim"]:
        """As `DualEncoder` does."""
        with torch.autocast(input_ids.device.type, self._dtype, enabled=self._dtype is not None):
            return self._model.encode_sentences(input_ids, attention_mask)


class OpenVinoEngine:
    """A model's exported graphs, run by OpenVINO on the CPU."""

    name: Literal["openvino"] = "openvino"

    def __init__(self, folder: Path, precision: str) -> None:
        self.precision = precision
        self._image, self._text = (
            run_openvino(folder / f"{name}.onnx", precision) for name in ("image", "text")
        )

    def encode_images(
        self, pixels: Float[Tensor, "images 1 height width"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """As `DualEncoder` does."""
        return self._image(pixels)

    def encode_sentences(
        self,
        input_ids: Int[Tensor, "texts tokens"],
        attention_mask: Int[Tensor, "texts tokens"],
    ) -> Float[Tensor, "texts dim"]:
        """As `DualEncoder` does."""
        return self._text(input_ids, attention_mask)


Engine = TorchEngine | OpenVinoEngine
"""Runs a model's encoders, in evaluation mode and without gradients."""


@cache
def multiplies_bfloat16() -> bool:
    """Return whether this processor has products of bfloat16; False where Linux does not say so."""
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return False
    return not words.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})


def settle_inference(
    settings: InferenceConfig, changed: float | None = None, device: str = "cpu"
) -> InferenceConfig:
    """Say what `auto` is where bfloat16 changes that share of the decisions; None: float32."""
    if settings.precision != "auto":
        return settings
    keeps = changed is not None and changed <= _MOST_CHANGED
    reduced = keeps and device == "cpu" and multiplies_bfloat16()
    return settings.model_copy(update={"precision": "bfloat16" if reduced else "float32"})


def choose_engine(
    model: DualEncoder, settings: InferenceConfig, input_px: int, package: Path, digest: str
) -> Engine:
    """Choose who runs a model that is in evaluation mode on its device.

    Args:
        model: the model.
        settings: the engine and precision asked for.
        input_px: side of the model's input.
        package: its folder; one model is kept for each.
        digest: names the model.

    Raises:
        ConfigError: the engine asked for is not installed, or has not that precision.
    """
    precision, is_cpu = settings.precision, model.gamma.device.type == "cpu"
    if precision == "float16" and is_cpu:
        raise ConfigError("inference in float16 needs a GPU; set bfloat16 or float32 on a CPU")
    fast = _takes_openvino(settings, is_cpu=is_cpu)
    plain = TorchEngine(model)
    if not fast and precision == "float32":
        return plain
    parts = model_parts(model, input_px)
    if fast:
        try:
            with _graphs(parts, package, digest) as folder:
                engine = OpenVinoEngine(folder, precision)
                if _agrees(engine, parts):
                    return engine
        except Exception as error:  # noqa: BLE001 (no exporter knows every backbone; PyTorch does)
            LOGGER.warning("PyTorch runs the encoders: %s in an export", type(error).__name__)
    reduced = TorchEngine(model, precision)
    return reduced if precision != "float32" and _agrees(reduced, parts) else plain


@cache
def openvino_core() -> Any:
    """Give the one OpenVINO runtime of a process, which lives as long as the process.

    Each runtime gives the thread that makes it another stack for signals. Where several end in
    another order than they began, that stack is freed and stays in use, and the next signal, such
    as SIGTERM, ends the process with a segmentation fault (OpenVINO 2026.1).
    """
    return import_module("openvino").Core()


def run_openvino(file: Path, precision: str) -> Run:
    """Load a graph into OpenVINO, with as many threads as torch uses now."""
    compiled = openvino_core().compile_model(
        str(file),
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": _OPENVINO_TYPES[precision],
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "NUM_STREAMS": 1,
        },
    )
    request, turn = compiled.create_infer_request(), threading.Lock()

    def run(*inputs: Tensor) -> Tensor:
        with turn:  # a request holds the memory of one answer
            answer = request.infer([tensor.numpy() for tensor in inputs], share_inputs=True)
            return torch.from_numpy(answer[0].copy())

    return run


def _takes_openvino(settings: InferenceConfig, *, is_cpu: bool) -> bool:
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if settings.engine != "openvino":
        return settings.engine == "auto" and is_cpu and not missing
    if not is_cpu:
        raise ConfigError("openvino runs on a CPU here; set engine torch for a GPU")
    if missing:
        raise ConfigError(
            f"engine openvino needs {', '.join(missing)}; run pip install '.[openvino]' in the "
            "checkout"
        )
    return True


def _agrees(engine: Engine, parts: dict[str, ModelPart]) -> bool:
    """Compare an engine's answers with PyTorch's in float32; the log gets the one too far off."""
    limit = TOLERANCE[engine.precision]
    for name, run in (("image", engine.encode_images), ("text", engine.encode_sentences)):
        difference = largest_difference(run, parts[name])
        if not difference <= limit:  # NaN included
            LOGGER.warning(
                "%s in %s is not used: %s vectors differ from PyTorch's by %.2g, above %g",
                *(engine.name, engine.precision, name, difference, limit),
            )
            return False
    return True


@contextmanager
def _graphs(parts: dict[str, ModelPart], package: Path, digest: str) -> Iterator[Path]:
    """Give a folder with the graphs of both encoders while they are loaded."""
    from medclip_dcl.artifact_writer import write_artifact  # PyTorch needs no writer

    fingerprint = make_fingerprint(_GRAPHS, {"torch": torch.__version__}, {"model": digest})
    with ExitStack() as until_loaded:
        try:
            kept = _cache_folder(package)
            if open_if_current(kept, _GRAPHS, fingerprint) is None:
                with write_artifact(kept, _GRAPHS, fingerprint) as writer:
                    _export(parts, writer.directory)
                    writer.commit({})
        except (ArtifactError, OSError) as error:  # no home, a read-only one, or another one writes
            LOGGER.warning("graphs are not kept in the cache: %s", type(error).__name__)
            kept = Path(until_loaded.enter_context(tempfile.TemporaryDirectory()))
            _export(parts, kept)
        yield kept


def _cache_folder(package: Path) -> Path:
    """Give the folder of a package's graphs in the cache; OSError where others may write there."""
    place = os.fsencode(package.resolve())
    return cache_root() / f"graphs-{hashlib.sha256(place).hexdigest()[:32]}"


def _export(parts: dict[str, ModelPart], folder: Path) -> None:
    for name in ("image", "text"):
        write_graph(parts[name], folder / f"{name}.onnx")
