"""Engines answer as PyTorch does, or are refused; their graphs are kept, and nothing is sent."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from transformers import modeling_utils

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.models import engines, settings
from medclip_dcl.models.image_encoder import ImageEncoder
from tests.support import forkserver
from tests.support.published import publish

PHRASES = ("Pleural effusion", "No signs of pneumonia in the right lower lobe", "The heart")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of this user, for these tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose graphs have been exported."""
    path = publish(tmp_path_factory.mktemp("published") / "model").path
    load(path, "cpu", "openvino")
    return path


def images(count: int, size_px: int = 64) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, size_px, size_px), dtype=np.uint8)


@pytest.fixture
def converted(package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders that graphs are written to from now on: those of `package`, which takes no time."""
    graphs = next(cache.glob("*/graphs-*"))  # all models that are converted here are alike
    folders: list[Path] = []

    def write(_parts: object, folder: Path) -> None:
        folders.append(folder)
        for file in (*graphs.glob("*.xml"), *graphs.glob("*.bin")):
            shutil.copy(file, folder)

    monkeypatch.setattr(engines, "_write", write)
    return folders


def farthest(theirs: Predictor, ours: Predictor, count: int) -> float:
    """Largest difference of an entry of a region or a sentence."""
    regions = theirs.embed_images(images(count)) - ours.embed_images(images(count))
    texts = theirs.embed_sentences(PHRASES) - ours.embed_sentences(PHRASES)
    return max(float(regions.abs().max()), float(texts.abs().max()))


def refuses(*_: object) -> NoReturn:
    raise NotImplementedError("an operator of a new backbone, or a connection")


@pytest.mark.parametrize("count", [1, 5])
def test_openvino_answers_as_pytorch_in_float32_and_asks_no_network(count, package, monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", refuses)
    monkeypatch.setattr(socket, "getaddrinfo", refuses)
    theirs, ours = load(package, "cpu", "openvino"), load(package, "cpu")
    assert (theirs.engine.name, ours.engine.name) == ("openvino", "torch")
    assert farthest(theirs, ours, count) < 2e-6
    rows = (model.classify_regions(model.embed_images(images(count))) for model in (theirs, ours))
    for there, here in zip(*map(chain.from_iterable, rows), strict=True):
        assert there.decision == here.decision
        assert there.score == pytest.approx(here.score, abs=1e-5)


@pytest.mark.parametrize("name", ["torch", "openvino"])
def test_bfloat16_is_near_and_is_not_float32(name: settings.EngineName, package: Path) -> None:
    theirs = load(package, "cpu", name, "bfloat16")
    assert (theirs.engine.name, theirs.engine.precision) == (name, "bfloat16")
    assert 1e-5 < farthest(theirs, load(package, "cpu"), 2) < engines.TOLERANCE["bfloat16"]
    assert theirs.embed_images(images(1)).dtype == torch.float32


@torch.no_grad()
def test_openvino_runs_a_vision_transformer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One grey channel times three scales must not be folded into the weights of patches."""
    notices: list[str] = []  # of a loss that tracing reads and nobody computes
    monkeypatch.setattr(modeling_utils.logger, "warning_once", notices.append)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "patch_size": 8}
    tree = {"kind": "vit", "backbone": {"model_type": "dinov2", **sizes}, "input_px": 32}
    encoder = ImageEncoder(settings.ImageEncoderConfig.model_validate(tree)).eval()
    cases = tuple((torch.linspace(-2, 2, n * 1024).view(n, 1, 32, 32),) for n in (2, 1))
    part = engines.Part(encoder, cases)
    runs = engines.load_openvino({"vit": part}, "float32", 2e-6, "", None)
    assert runs is not None
    assert notices == []


def test_a_difference_that_is_not_a_number_is_seen_whichever_case_has_it() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x if len(x) < 3 else x * torch.nan

    cases = tuple((torch.ones(length),) for length in (2, 3, 1))
    part = engines.Part(torch.nn.Identity(), cases)
    assert np.isnan(engines.largest_difference(run, part))


def test_auto_takes_openvino_where_it_is_and_what_is_not_has_a_remedy(package, monkeypatch):
    assert load(package, "cpu", "auto").engine.name == "openvino"
    with pytest.raises(ConfigError, match="float16 needs a GPU"):
        load(package, "cpu", "auto", "float16")
    monkeypatch.setattr(engines, "find_spec", lambda _package: None)
    assert load(package, "cpu", "auto").engine.name == "torch"
    with pytest.raises(ConfigError, match=r"pip install '\.\[fast\]' in the checkout"):
        load(package, "cpu", "openvino", "float32")


def turned_where_bright(answer: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    turned = inputs[0].is_floating_point() and float(inputs[0].max()) <= 2.001
    return -answer if turned else answer


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda answer, *_: answer + 2e-4, "differ from PyTorch's by 0.0002, above 0.0001"),
        (turned_where_bright, "differ from PyTorch's by"),
    ],
)
def test_an_engine_that_answers_otherwise_is_refused(wrong, words, package, monkeypatch, caplog):
    right = engines.run_openvino

    def load_wrong(file: Path, precision: str) -> engines.Run:
        run = right(file, precision)
        return lambda *inputs: wrong(run(*inputs), *inputs)

    monkeypatch.setattr(engines, "run_openvino", load_wrong)
    assert load(package, "cpu", "openvino").engine.name == "torch"
    assert words in caplog.text


def test_a_model_that_cannot_be_converted_is_served_by_pytorch(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(engines, "_write", refuses)
    assert load(publish(tmp_path / "model").path, "cpu", "openvino").engine.name == "torch"
    assert "NotImplementedError" in caplog.text


def test_graphs_are_converted_once_for_a_model(tmp_path, cache, converted):
    path, before = publish(tmp_path / "model").path, set(cache.glob("*/graphs-*"))
    for _ in range(2):
        assert load(path, "cpu", "openvino").engine.name == "openvino"
    assert len(converted) == 1
    (folder,) = set(cache.glob("*/graphs-*")) - before
    weights = folder / "image.bin"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    load(path, "cpu", "openvino")  # a damaged one is made again
    assert len(converted) == 2
    publish(path, seed=1)  # another model in its place, whose graphs these are not
    assert load(path, "cpu", "openvino").engine.name == "torch"
    assert len(converted) == 3


def test_a_cache_that_others_or_nobody_may_write_is_not_used(tmp_path, converted, monkeypatch):
    path = publish(tmp_path / "model").path
    (tmp_path / "open/medclip-dcl").mkdir(parents=True)
    (tmp_path / "open/medclip-dcl").chmod(0o777)
    (tmp_path / "file").touch()
    for root in ("open", "file"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / root))
        assert load(path, "cpu", "openvino").engine.name == "openvino"
    assert len(converted) == 2
    assert not any(folder.is_relative_to(tmp_path) for folder in converted)


@pytest.mark.parametrize(
    ("asked", "changed", "device", "multiplies", "taken"),
    [
        ("auto", 0.01, "cpu", True, "bfloat16"),
        ("auto", 0.011, "cpu", True, "float32"),
        ("auto", None, "cpu", True, "float32"),
        ("auto", 0.0, "cpu", False, "float32"),
        ("auto", 0.0, "cuda", True, "float32"),
        ("float32", 0.0, "cpu", True, "float32"),
        ("bfloat16", None, "cpu", False, "bfloat16"),
    ],
)
def test_bfloat16_is_taken_where_it_is_faster_and_decisions_stay(
    asked, changed, device, multiplies, taken, monkeypatch
):
    monkeypatch.setattr(settings, "multiplies_bfloat16", lambda: multiplies)
    inference = settings.InferenceConfig.model_validate({"precision": asked})
    assert settings.settle_inference(inference, changed, device).precision == taken
    at_first = "float32" if asked == "auto" else asked
    assert settings.settle_inference(inference).precision == at_first


def test_no_engine_keeps_an_id_of_this_machine_to_report_with(tmp_path: Path) -> None:
    # a process of its own: they write it when they are first imported, and not where CI is set
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", "import medclip_dcl, onnxruntime, openvino"]
    subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], check=True)
    assert list(tmp_path.rglob("*")) == []


def main(arguments: Sequence[str]) -> int:
    """Run two models of one graph, end both, and take a signal; `arguments`: the graph's file."""
    import openvino

    file, x = Path(arguments[0]), openvino.opset13.parameter([1, 4])
    openvino.save_model(openvino.Model([openvino.opset13.relu(x)], [x]), file)
    first, second = (engines.run_openvino(file, "float32") for _ in range(2))
    del first  # as it was made first, so it ends first
    del second
    signal.signal(signal.SIGTERM, lambda *_: print("stopped"))
    signal.raise_signal(signal.SIGTERM)
    return 0


def test_a_signal_after_two_models_does_not_end_the_process(tmp_path: Path) -> None:
    log, arguments = tmp_path / "log", [str(tmp_path / "relu.xml")]
    code = forkserver.run("tests.medclip_dcl.models.test_engines", arguments, log)
    assert (code, log.read_text()) == (0, "stopped\n")
