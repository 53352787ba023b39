"""Who runs the two encoders: PyTorch, or on a CPU ONNX Runtime or OpenVINO.

    image.onnx          pixels -> unit vector of every region
    text.onnx           input_ids, attention_mask -> unit vector of every sentence

Both libraries read these graphs, which are exported once for a model and kept in this user's cache,
`$XDG_CACHE_HOME/medclip-dcl` or `~/.cache/medclip-dcl`, where nobody else may write: a graph next
to a package would be anybody's, and its digest is not the model's. An engine is taken only after it
has answered like PyTorch; else the log says why, and PyTorch serves.
"""

import hashlib
import logging
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from medclip_dcl.artifact import ArtifactType, make_fingerprint, open_artifact
from medclip_dcl.errors import ArtifactError, ConfigError
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.onnx_graphs import (
    ONNX_PACKAGES,
    ModelPart,
    Run,
    largest_difference,
    model_parts,
    write_graph,
)
from medclip_dcl.models.openvino_core import openvino_core
from medclip_dcl.models.settings import EngineName, InferenceConfig

LOGGER = logging.getLogger("medclip.engines")

TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-2}
"""Largest difference of an entry of a unit vector to PyTorch's in float32, by precision."""

_GRAPHS = ArtifactType("graphs", 1, "an engine other than torch")
_PACKAGES = {"onnxruntime": ONNX_PACKAGES, "openvino": ("openvino", "onnx", "onnxscript")}
_EXTRAS = {"onnxruntime": "onnx", "openvino": "openvino"}
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


class GraphEngine:
    """A model's exported graphs, run by a library of their own on the CPU."""

    def __init__(
        self, name: Literal["onnxruntime", "openvino"], precision: str, image: Run, text: Run
    ) -> None:
        self.name, self.precision = name, precision
        self._image, self._text = image, text

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


Engine = TorchEngine | GraphEngine
"""Runs a model's encoders, in evaluation mode and without gradients."""


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
    names = _candidates(settings, is_cpu=is_cpu)
    plain = TorchEngine(model)
    if not names and precision == "float32":
        return plain
    parts = model_parts(model, input_px)
    if names:
        try:
            with _graphs(parts, package, digest) as folder:
                for name in names:
                    engine = _built(name, precision, folder)
                    if _agrees(engine, parts):
                        return engine
        except Exception as error:  # noqa: BLE001 (no exporter knows every backbone; PyTorch does)
            LOGGER.warning("PyTorch runs the encoders: %s in an export", type(error).__name__)
    reduced = TorchEngine(model, precision)
    return reduced if precision != "float32" and _agrees(reduced, parts) else plain


def run_onnxruntime(file: Path) -> Run:
    """Load a graph into ONNX Runtime, with as many threads as torch uses now."""
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def run(*inputs: Tensor) -> Tensor:
        given = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run(None, given)[0])

    return run


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


def _candidates(settings: InferenceConfig, *, is_cpu: bool) -> list[EngineName]:
    """List who may run the model before PyTorch, the fastest first."""
    if settings.engine == "torch" or (settings.engine == "auto" and not is_cpu):
        return []
    if settings.engine == "auto":
        names: tuple[EngineName, ...] = ("openvino", "onnxruntime")
        able = names if settings.precision == "float32" else names[:1]
        return [name for name in able if not _missing(name)]
    if not is_cpu:
        raise ConfigError(f"{settings.engine} runs on a CPU here; set engine torch for a GPU")
    if missing := _missing(settings.engine):
        raise ConfigError(
            f"engine {settings.engine} needs {', '.join(missing)}; "
            f"run pip install '.[{_EXTRAS[settings.engine]}]' in the checkout"
        )
    if settings.engine == "onnxruntime" and settings.precision != "float32":
        raise ConfigError(
            f"onnxruntime has no {settings.precision} on a CPU; set engine openvino or torch"
        )
    return [settings.engine]


def _missing(name: EngineName) -> list[str]:
    return [package for package in _PACKAGES[name] if find_spec(package) is None]


def _built(name: EngineName, precision: str, folder: Path) -> GraphEngine:
    files = (folder / "image.onnx", folder / "text.onnx")
    if name == "openvino":
        image, text = (run_openvino(file, precision) for file in files)
        return GraphEngine("openvino", precision, image, text)
    image, text = map(run_onnxruntime, files)
    return GraphEngine("onnxruntime", precision, image, text)


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
            if not _holds(kept, fingerprint):
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
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = (Path(given) if given else Path.home() / ".cache") / "medclip-dcl"
    except RuntimeError as error:
        raise FileNotFoundError("no home is known") from error
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{root} may be written to by others")
    place = os.fsencode(package.resolve())
    return root / f"graphs-{hashlib.sha256(place).hexdigest()[:32]}"


def _holds(folder: Path, fingerprint: dict[str, Any]) -> bool:
    try:
        return open_artifact(folder, _GRAPHS).fingerprint == fingerprint
    except (ArtifactError, OSError):
        return False


def _export(parts: dict[str, ModelPart], folder: Path) -> None:
    for name in ("image", "text"):
        write_graph(parts[name], folder / f"{name}.onnx")
