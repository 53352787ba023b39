"""Engines answer as PyTorch does, or are refused; their graphs are kept, and nothing is sent."""

import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch

from medclip_dcl.artifact import make_fingerprint, open_artifact
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.data.images import open_image
from medclip_dcl.errors import ConfigError
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.model_package import ARTIFACT
from medclip_dcl.models import engines
from medclip_dcl.models.engines import settle_inference
from medclip_dcl.models.image_encoder import ImageEncoder
from medclip_dcl.models.onnx_graphs import model_parts
from medclip_dcl.models.settings import (
    EngineName,
    ImageEncoderConfig,
    InferenceConfig,
    Precision,
)
from testing import forkserver
from testing.published import publish
from testing.service import png, running

PHRASES = ("Pleural effusion", "No signs of pneumonia in the right lower lobe", "The heart")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


def copy_graphs(package: Path, folder: Path) -> None:
    """Put the graphs of a model where they would have been exported to."""
    for file in engines._cache_folder(package).glob("*.onnx"):
        shutil.copy(file, folder)


def farthest(theirs: Predictor, ours: Predictor, count: int) -> tuple[float, float]:
    """Largest difference of a region's entry and of a sentence's."""
    regions = theirs.embed_images(images(count)) - ours.embed_images(images(count))
    texts = theirs.embed_sentences(PHRASES) - ours.embed_sentences(PHRASES)
    return float(regions.abs().max()), float(texts.abs().max())


@pytest.mark.filterwarnings("default")  # of the libraries, not ours
@pytest.mark.parametrize("count", [1, 5])
def test_openvino_answers_as_pytorch_in_float32(count: int, package: Path) -> None:
    theirs, ours = load(package, "cpu", "openvino"), load(package, "cpu")
    assert (theirs.engine.name, ours.engine.name) == ("openvino", "torch")
    assert max(farthest(theirs, ours, count)) < 2e-6
    here, there = (
        [item for row in model.classify_regions(model.embed_images(images(count))) for item in row]
        for model in (theirs, ours)
    )
    assert [item.is_present for item in here] == [item.is_present for item in there]
    assert [item.score for item in here] == pytest.approx([i.score for i in there], abs=1e-5)


@pytest.mark.parametrize("name", ["torch", "openvino"])
def test_bfloat16_is_near_and_is_not_float32(name: EngineName, package: Path) -> None:
    pytest.importorskip(name)
    theirs, ours = load(package, "cpu", name, "bfloat16"), load(package, "cpu")
    assert (theirs.engine.name, theirs.engine.precision) == (name, "bfloat16")
    away = max(farthest(theirs, ours, 2))
    assert 1e-5 < away < engines.TOLERANCE["bfloat16"]
    assert theirs.embed_images(images(1)).dtype == torch.float32


@pytest.mark.filterwarnings("ignore")  # of tracing, which is quicker than our export
@torch.no_grad()
def test_openvino_runs_a_vision_transformer() -> None:
    """One grey channel times three scales must not be folded into the weights of patches."""
    openvino = pytest.importorskip("openvino")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "patch_size": 8}
    tree = {"kind": "vit", "backbone": {"model_type": "dinov2", **sizes}, "input_px": 32}
    encoder = ImageEncoder(ImageEncoderConfig.model_validate(tree)).eval()
    pixels = torch.linspace(-2, 2, 2048).view(2, 1, 32, 32)
    graph = openvino.convert_model(encoder, example_input=pixels, input=[2, 1, 32, 32])
    run = openvino.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    (answer,) = run([pixels.numpy()]).values()
    np.testing.assert_allclose(answer, encoder(pixels), atol=2e-6)


def test_auto_takes_openvino_where_it_is_installed(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(package, "cpu", "auto").engine.name == "openvino"
    monkeypatch.setattr(engines, "find_spec", lambda _package: None)
    assert load(package, "cpu", "auto").engine.name == "torch"


def test_an_engine_that_answers_otherwise_is_refused_and_pytorch_serves(
    package: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = engines.run_openvino

    def wrong(file: Path, precision: str) -> engines.Run:
        run = right(file, precision)
        return lambda *inputs: run(*inputs) + 2e-4

    monkeypatch.setattr(engines, "run_openvino", wrong)
    with caplog.at_level(logging.WARNING):
        assert load(package, "cpu", "openvino").engine.name == "torch"
    assert "differ from PyTorch's by 0.0002, above 0.0001" in caplog.text


def test_a_model_that_cannot_be_exported_is_served_by_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: object) -> NoReturn:
        raise NotImplementedError("an operator of a new backbone")

    monkeypatch.setattr(engines, "write_graph", refuses)
    with caplog.at_level(logging.WARNING):
        assert load(publish(tmp_path / "model").path, "cpu", "openvino").engine.name == "torch"
    assert "NotImplementedError" in caplog.text


def test_graphs_are_exported_once_for_a_model(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = publish(tmp_path / "model").path
    exported: list[Path] = []

    def export(_parts: object, folder: Path) -> None:
        exported.append(folder)
        copy_graphs(package, folder)

    monkeypatch.setattr(engines, "_export", export)
    for _ in range(2):
        assert load(path, "cpu", "openvino").engine.name == "openvino"
    assert len(exported) == 1
    graph = engines._cache_folder(path) / "image.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")
    load(path, "cpu", "openvino")  # a damaged one is made again
    assert len(exported) == 2
    publish(path, seed=1)  # another model in its place, whose graphs these are not
    assert load(path, "cpu", "openvino").engine.name == "torch"
    assert len(exported) == 3


def test_a_cache_that_cannot_be_kept_or_is_open_to_others_is_done_without(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = publish(tmp_path / "model").path
    graphs = engines._cache_folder(package)
    exported: list[Path] = []

    def export(_parts: object, folder: Path) -> None:
        exported.append(folder)
        for file in graphs.glob("*.onnx"):
            shutil.copy(file, folder)

    monkeypatch.setattr(engines, "_export", export)
    (tmp_path / "open/medclip-dcl").mkdir(parents=True)
    (tmp_path / "open/medclip-dcl").chmod(0o777)
    (tmp_path / "file").touch()
    for root in ("open", "file"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / root))
        assert load(path, "cpu", "openvino").engine.name == "openvino"
    assert len(exported) == 2
    assert not any(folder.is_relative_to(tmp_path) for folder in exported)


def test_graphs_next_to_a_package_are_not_read(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = publish(tmp_path / "model").path
    digest = open_artifact(path, ARTIFACT).digest
    settings = {"torch": torch.__version__}
    fingerprint = make_fingerprint(engines._GRAPHS, settings, {"model": digest})
    with write_artifact(tmp_path / "model.graphs", engines._GRAPHS, fingerprint) as writer:
        for name in ("image", "text"):
            (writer.directory / f"{name}.onnx").write_bytes(b"anybody's")
        writer.commit({})
    read: list[Path] = []
    run = engines.run_openvino

    def record(file: Path, precision: str) -> engines.Run:
        read.append(file)
        return run(file, precision)

    monkeypatch.setattr(engines, "run_openvino", record)
    monkeypatch.setattr(engines, "_export", lambda _parts, folder: copy_graphs(package, folder))
    assert load(path, "cpu", "openvino").engine.name == "openvino"
    assert not any(file.is_relative_to(tmp_path / "model.graphs") for file in read)


def test_engines_are_compared_on_several_images_as_a_model_sees_them(package: Path) -> None:
    model = load(package, "cpu").model
    images = [image for (case,) in model_parts(model, 64)["image"].cases for image in case]
    assert len(images) >= 6
    assert all(-2 <= image.min() < image.max() <= 2 for image in images)
    kinds = {round(float(image.diff(dim=-1).abs().mean()), 4) for image in images}
    assert len(kinds) >= 4


def test_an_engine_that_turns_round_what_is_bright_is_refused(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = engines.run_openvino

    def wrong(file: Path, precision: str) -> engines.Run:
        run = right(file, precision)

        def answer(*inputs: torch.Tensor) -> torch.Tensor:
            turned = inputs[0].is_floating_point() and float(inputs[0].max()) <= 2.001
            return -run(*inputs) if turned else run(*inputs)

        return answer

    monkeypatch.setattr(engines, "run_openvino", wrong)
    assert load(package, "cpu", "openvino").engine.name == "torch"


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
    asked: str, changed: float | None, device: str, multiplies: bool, taken: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(engines, "multiplies_bfloat16", lambda: multiplies)
    settings = InferenceConfig.model_validate({"precision": asked})
    assert settle_inference(settings, changed, device).precision == taken
    assert settle_inference(settings).precision == ("float32" if asked == "auto" else asked)


@pytest.mark.parametrize(
    ("name", "precision", "reason"),
    [
        ("auto", "float16", "float16 needs a GPU"),
        ("openvino", "float32", "pip install '\\.\\[openvino\\]' in the checkout"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_remedy(
    name: EngineName,
    precision: Precision,
    reason: str,
    package: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if precision == "float32":
        monkeypatch.setattr(engines, "find_spec", lambda _package: None)
    with pytest.raises(ConfigError, match=reason):
        load(package, "cpu", name, precision)


@pytest.mark.filterwarnings("default")
def test_openvino_asks_no_network(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")

    def refuses(*_: object) -> NoReturn:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuses)
    monkeypatch.setattr(socket, "getaddrinfo", refuses)
    assert load(package, "cpu", "openvino").embed_images(images(1)).isfinite().all()


def test_the_service_answers_alike_and_names_its_engine(package: Path) -> None:
    with running(package.parent, engine="openvino", index="") as service:
        with service.client() as client:
            facts = client.get("/model").json()
            answer = client.post("/classify", files={"image": ("image", png())}).json()
        (line,) = [line for line in service.lines() if line["event"] == "engine"]
    assert (facts["engine"], facts["precision"]) == ("openvino", "float32")
    assert (line["engine"], line["precision"]) == ("openvino", "float32")
    expected = load(package, "cpu").classify(open_image(png()))
    found = [item["score"] for item in answer["findings"]]
    np.testing.assert_allclose(found, [item.score for item in expected], atol=1e-5)


def test_no_engine_keeps_an_id_of_this_machine_to_report_with(tmp_path: Path) -> None:
    for name in ("onnxruntime", "openvino"):
        pytest.importorskip(name)
    # a process of its own: they write it when they are first imported, and not where CI is set
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", "import medclip_dcl, onnxruntime, openvino"]
    subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], check=True)
    assert list(tmp_path.rglob("*")) == []


def test_a_signal_after_two_models_does_not_end_the_process(tmp_path: Path) -> None:
    for package in ("openvino", "onnx"):
        pytest.importorskip(package)
    log = tmp_path / "log"
    code = forkserver.run("testing.two_models", [str(tmp_path / "relu.onnx")], log)
    assert (code, log.read_text()) == (0, "stopped\n")
