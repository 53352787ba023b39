"""Engines of finished networks: PyTorch on any device, OpenVINO on a CPU.

OpenVINO's graphs are converted from torch modules once for a model and kept in this user's cache,
`$XDG_CACHE_HOME/medclip-dcl` or `~/.cache/medclip-dcl`, where nobody else may write: a graph next
to a package would be anybody's, and its digest is not the model's. OpenVINO is taken only after it
has answered like PyTorch; else the log gives the reason, and PyTorch runs.
"""

import hashlib
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from medclip_dcl.core.artifact import ArtifactType, make_fingerprint, open_if_current
from medclip_dcl.core.errors import ArtifactError, ConfigError
from medclip_dcl.core.files import cache_root
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.image_encoder import MEAN, SPREAD
from medclip_dcl.models.settings import InferenceConfig

LOGGER = logging.getLogger("medclip.engines")

TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-2}
"""Largest difference of an entry of a unit vector to PyTorch's in float32, by precision."""

_GRAPHS = ArtifactType("graphs", 2, "the engine openvino")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_OPENVINO_TYPES = {"float32": "f32", "bfloat16": "bf16"}

Run = Callable[..., Tensor]  # inputs in the module's order -> its output; without gradients


@dataclass(frozen=True)
class Part:
    """A module in evaluation mode, and inputs to convert it with and to compare engines on."""

    module: nn.Module
    cases: tuple[tuple[Tensor, ...], ...]
    """An axis that is as long in all cases has a fixed length in the graph."""
    length: float = 1.0
    """Of its vectors, which a difference is measured by: BioViL's regions keep theirs."""


@dataclass(frozen=True)
class Engine:
    """Runs a model's encoders, with the inputs and outputs of `DualEncoder`'s methods."""

    name: Literal["torch", "openvino"]
    precision: str
    encode_images: Run
    encode_sentences: Run


def choose_engine(
    model: DualEncoder, settings: InferenceConfig, input_px: int, package: Path, digest: str
) -> Engine:
    """Choose who runs a model that is in evaluation mode on its device.

    `input_px` is the side of its input; graphs of one model, which the digest names, are kept for
    each folder `package`. ConfigError: the engine asked for is not here, or has not that precision.
    """
    precision, is_cpu = settings.precision, model.gamma.device.type == "cpu"
    if precision == "float16" and is_cpu:
        raise ConfigError("inference in float16 needs a GPU; set bfloat16 or float32 on a CPU")
    if settings.engine == "openvino" and not (is_cpu and has_openvino()):
        remedy = "run pip install '.[fast]' in the checkout" if is_cpu else "it runs on a CPU here"
        raise ConfigError(f"engine openvino cannot be used: {remedy}, or set engine torch")
    plain, fast = _torch_engine(model), settings.engine != "torch" and is_cpu and has_openvino()
    if not fast and precision == "float32":
        return plain
    limit, parts = TOLERANCE[precision], encoder_parts(model, input_px, input_px)
    if fast and (runs := load_openvino(parts, precision, limit, digest, package)):
        return Engine("openvino", precision, runs["image"], runs["text"])
    reduced = _torch_engine(model, precision)
    runs = {"image": reduced.encode_images, "text": reduced.encode_sentences}
    return reduced if _agrees(f"torch in {precision}", runs, parts, limit) else plain


def has_openvino() -> bool:
    """Whether OpenVINO is installed."""
    return find_spec("openvino") is not None


def load_openvino(
    parts: Mapping[str, Part], precision: str, limit: float, digest: str, owner: Path | None
) -> dict[str, Run] | None:
    """Compile modules, on the CPU in float32, by OpenVINO; `run_openvino` of each.

    `precision` is that of products, `limit` the largest difference of an output to PyTorch's,
    `digest` names the weights, and `owner` is the model's folder, which the graphs are kept for;
    None: they are not kept. None, with a line in the log, where OpenVINO cannot run one of them or
    answers otherwise.
    """
    try:
        with _graphs(parts, digest, owner) as folder:
            runs = {name: run_openvino(folder / f"{name}.xml", precision) for name in parts}
    except Exception as error:  # noqa: BLE001 (no converter knows every network; PyTorch does)
        LOGGER.warning("OpenVINO cannot run this model (%s): PyTorch does", type(error).__name__)
        return None
    return runs if _agrees(f"openvino in {precision}", runs, parts, limit) else None


@cache
def openvino_core() -> Any:
    """Return the one OpenVINO runtime of a process, which lives as long as the process.

    Each runtime gives the thread that makes it another stack for signals. Where several end in
    another order than they began, that stack is freed and stays in use, and the next signal, such
    as SIGTERM, ends the process with a segmentation fault (OpenVINO 2026.1).
    """
    return import_module("openvino").Core()


def run_openvino(file: Path, precision: str) -> Run:
    """Load a graph into OpenVINO, with as many threads as torch uses now."""
    kind, threads = _OPENVINO_TYPES[precision], torch.get_num_threads()
    options = {"INFERENCE_PRECISION_HINT": kind, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    request = openvino_core().compile_model(file, "CPU", options).create_infer_request()
    turn = threading.Lock()

    def run(*inputs: Tensor) -> Tensor:
        with turn:  # a request holds the memory of one answer
            answer = request.infer([tensor.numpy() for tensor in inputs], share_inputs=True)
            return torch.from_numpy(answer[0].copy())

    return run


@torch.no_grad()
def largest_difference(run: Run, part: Part) -> float:
    """Measure how far an engine's outputs are from PyTorch's, at most, over all cases."""
    worst = [(run(*case) - part.module(*case)).abs().max() for case in part.cases]
    return float(torch.stack(worst).max()) / part.length  # NaN where one is


def encoder_parts(model: DualEncoder, height_px: int, width_px: int) -> dict[str, Part]:
    """Return the two encoders of a model in evaluation mode, `image` and `text`."""
    device, vocabulary = model.gamma.device, int(model.text.backbone.config.vocab_size)
    images = tuple((_images(count, height_px, width_px).to(device),) for count in (2, 1, 3))
    texts = tuple(_tokens(vocabulary, *size).to(device) for size in ((2, 6), (1, 3), (3, 8)))
    length = 1.0
    if model.similarity.kind == "biovil":
        with torch.no_grad():
            length = max(1.0, float(model.encode_images(*images[0]).norm(dim=-1).max()))
    return {
        "image": Part(Method(model, model.encode_images), images, length),
        "text": Part(Method(model, model.encode_sentences), tuple(map(tuple, texts))),
    }


class Method(nn.Module):
    """A method of a model in evaluation mode as a module, as converters ask for."""

    def __init__(self, model: nn.Module, method: Run) -> None:
        super().__init__()
        self.model, self.forward = model, method
        self.training = False


def _torch_engine(model: DualEncoder, precision: str = "float32") -> Engine:
    # Reduced precision is by autocast, which leaves vectors float32.
    device, dtype = model.gamma.device.type, _DTYPES.get(precision)

    def encode_images(pixels: Tensor) -> Tensor:
        with torch.autocast(device, dtype, enabled=dtype is not None):
            # Channels last is the layout that convolutions are fastest in, on CPU and GPU.
            return model.encode_images(pixels.contiguous(memory_format=torch.channels_last))

    def encode_sentences(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        with torch.autocast(device, dtype, enabled=dtype is not None):
            return model.encode_sentences(input_ids, attention_mask)

    return Engine("torch", precision, encode_images, encode_sentences)


def _agrees(engine: str, runs: Mapping[str, Run], parts: Mapping[str, Part], limit: float) -> bool:
    for name, part in parts.items():
        worst = largest_difference(runs[name], part)
        if not worst <= limit:  # NaN included
            text = "%s is not used: %s outputs differ from PyTorch's by %.2g, above %g"
            LOGGER.warning(text, engine, name, worst, limit)
            return False
    return True


@contextmanager
def _graphs(parts: Mapping[str, Part], digest: str, owner: Path | None) -> Iterator[Path]:
    # A folder with the graphs, while they are loaded.
    from medclip_dcl.core.artifact_writer import write_artifact  # PyTorch needs no writer

    settings = {"torch": torch.__version__, "openvino": version("openvino")}
    fingerprint = make_fingerprint(_GRAPHS, settings, {"model": digest})
    if owner is not None:
        try:
            place = hashlib.sha256(os.fsencode(owner.resolve())).hexdigest()[:32]
            folder = cache_root() / f"graphs-{place}"  # OSError where others may write there
            if open_if_current(folder, _GRAPHS, fingerprint) is None:
                with write_artifact(folder, _GRAPHS, fingerprint) as writer:
                    _write(parts, writer.directory)
                    writer.commit({})
        except (ArtifactError, OSError) as error:  # no home, a read-only one, or another one writes
            LOGGER.warning("graphs are not kept in the cache: %s", type(error).__name__)
        else:
            yield folder
            return
    with tempfile.TemporaryDirectory() as scratch:
        _write(parts, Path(scratch))
        yield Path(scratch)


def _write(parts: Mapping[str, Part], folder: Path) -> None:
    openvino: Any = import_module("openvino")
    for name, part in parts.items():
        for module in part.module.modules():
            if isinstance(module, PreTrainedModel):
                module.loss_type = "ForMaskedLM"  # tracing reads all fields: None is warned of
        shapes = []
        for tensors in zip(*part.cases, strict=True):
            axes = zip(*(tensor.shape for tensor in tensors), strict=True)
            shapes.append([axis[0] if len({*axis}) == 1 else -1 for axis in axes])
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tracing; the cases show what it has fixed
            warnings.filterwarnings("error", "Using len")  # a fixed length can end the process
            graph = openvino.convert_model(part.module, example_input=part.cases[0], input=shapes)
        openvino.save_model(graph, folder / f"{name}.xml", compress_to_fp16=False)


def _images(count: int, height: int, width: int) -> Tensor:
    # Prepared images as a model is given them, -2 to 2, no two alike: noise, slopes, two halves.
    noise = torch.rand(height, width, generator=torch.Generator().manual_seed(count))
    slope = torch.linspace(0, 1, height)[:, None] * torch.linspace(0, 1, width)
    halves = (torch.linspace(0, 1, width) > 0.5).float().expand(height, width)
    kinds = (noise, slope, slope.sqrt(), halves)
    grey = torch.stack([kinds[(count + item) % len(kinds)] for item in range(count)])
    return grey.mul(255).round().div(255).sub(MEAN).div(SPREAD).unsqueeze(1)


def _tokens(vocabulary: int, texts: int, tokens: int) -> Tensor:
    # Word pieces, any will do, and the mask; the last sentence is the shortest.
    ids = torch.arange(texts * tokens).mul(7919).remainder(vocabulary).view(texts, tokens)
    mask = torch.ones_like(ids)
    mask[-1, tokens // 2 :] = 0
    return torch.stack([ids, mask])
