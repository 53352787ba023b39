"""What a config will take, before anything is prepared and after."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor

from medclip_dcl.models.dual_encoder import DualEncoder
from pipelines import plan
from pipelines.__main__ import main
from pipelines.config import Config
from tests.support.corpus import write_config, write_corpus
from tests.support.tiny_models import tiny_text_config

PAPER = "configs/train/mimic_cxr.yaml"
TEXT = tiny_text_config()
Answers = dict[str, tuple[str, str]]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "work")


@pytest.fixture
def no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the step, most of a plan's time, where nothing is asked about it."""
    monkeypatch.setattr(plan, "measure_step", lambda *_: plan.StepCost(1, 1, 1, 1, 1, None))


def answers(capsys: Capture, config_file: Path | str, *more: str) -> tuple[int, Answers]:
    """Exit code, and state and words by question."""
    code = main(["plan", "--config", str(config_file), *more])
    lines = capsys.readouterr().out.splitlines()
    return code, {line[6:20].strip(): (line[:6].strip(), line[20:]) for line in lines}


@pytest.mark.usefixtures("no_step")
def test_a_recipe_without_data_is_planned_and_says_what_it_cannot_know(
    capsys, monkeypatch, tmp_path
):
    for name in ("CXR_BERT", "IMAGENET"):
        monkeypatch.delenv(name, raising=False)
    words = (PAPER, "--seconds", "0", "--set", f"work={tmp_path / 'work'}")
    code, found = answers(capsys, *words)
    assert code == 0
    assert found["steps"][0] == found["disk"][0] == found["hours"][0] == "note"
    assert "give --studies" in found["steps"][1]
    assert "prepared" in found["disk"][1]
    assert "CXR_BERT" in found["text encoder"][1]
    assert "${IMAGENET}, which is not set; export IMAGENET" in found["image encoder"][1]
    _, found = answers(capsys, *words, "--set", "model.image.pretrained=${WORK}/image_weights")
    assert "text encoder" in found
    assert "image encoder" not in found  # the run learns its weights before


def test_numbers_that_are_given_give_passes_hours_and_bytes(capsys, tmp_path, monkeypatch):
    cost = plan.StepCost(1, 1, 1, 1, 1, 320.0)
    monkeypatch.setattr(plan, "measure_step", lambda *_: cost)
    given = ["--studies", "6400", "--images", "1000", "--set", "train.processes=2"]
    more = ["--set", f"work={tmp_path / 'work'}", "--set", "train.steps=36000"]
    code, found = answers(capsys, PAPER, *given, *more)
    assert code == 0
    assert "360.0 passes over 6400 training studies" in found["steps"][1]  # 100 steps a pass
    assert found["hours"][0] == "ok"
    assert found["hours"][1].startswith("1 at 320 images/s, measured here, in each of 2 processes")
    assert "prepared 0.262 GB" in found["disk"][1]  # 1000 * 512**2


def test_what_earlier_jobs_made_is_read(capsys: Capture, corpus: Path, tmp_path: Path) -> None:
    config_file = write_config(tmp_path / "config.yaml", corpus)
    code, found = answers(capsys, config_file, "--seconds", "0.2")
    assert code == 0
    assert "4.0 passes over 24 training studies" in found["steps"][1]  # 12 steps of 3 a pass
    assert found["hours"][0] == "ok"
    assert "measured here" in found["hours"][1]
    assert "text encoder" not in found
    assert found["disk"][0] == "ok"


def test_more_than_the_machine_has_is_a_fault(capsys, tmp_path, monkeypatch):
    cost = plan.StepCost(1, 10**14, 1, 1, 1, None)
    monkeypatch.setattr(plan, "measure_step", lambda *_: cost)
    more = ["--images", "10000000000", "--studies", "9", "--set", f"work={tmp_path}"]
    code, found = answers(capsys, PAPER, *more)
    faults = {name for name, (state, _) in found.items() if state == "fault"}
    assert (code, faults) == (2, {"memory", "disk", "steps"})


@pytest.mark.parametrize(
    ("product", "state", "words"),
    [(256.0, "ok", "A card, bf16, 6 GB of 8 GB free"), (255.0, "fault", "a matrix product is wr")],
)
def test_each_gpu_is_asked_for_a_product(monkeypatch, product, state, words):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for name, answer in {
        "is_available": True, "device_count": 1, "get_device_name": "A card",
        "is_bf16_supported": True, "mem_get_info": (6 * 10**9, 8 * 10**9),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    full = torch.full
    monkeypatch.setattr(torch, "ones", lambda *shape, device: full(shape, (product / 256) ** 0.5))
    (found,) = plan.check_device()
    assert (found.question, found.state) == ("cuda:0", state)
    assert words in found.words


def test_without_a_gpu_the_remedy_is_named_where_torch_could_use_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for built, words in ((None, "everything runs on the CPU"), ("13.0", "a driver for CUDA 13.0")):
        monkeypatch.setattr(torch.version, "cuda", built)
        (found,) = islice(plan.check_device(), 2)
        assert found.state == "note"
        assert words in found.words


def make_config(**train: object) -> Config:
    image = {"depths": [1, 1], "widths": [8, 16], "input_px": 32}
    model = {"image": image, "text": {"max_tokens": 16}, "similarity": {"dim": 16}}
    tree = {"model": model, "images": {"size_px": 40}, "train": {"global_batch": 8, **train}}
    return Config.model_validate({"work": "unused", **tree})


def held_by_the_graph(root: Tensor, weights: set[int]) -> int:
    """Bytes of every storage that the graph behind a tensor refers to, by walking through it."""
    found: dict[int, int] = {}
    waiting, seen = [root.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        values = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
        values += getattr(node, "saved_tensors", ())
        for value in values:
            for item in value if isinstance(value, list | tuple) else [value]:
                if isinstance(item, Tensor):
                    storage = item.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    return sum(size for storage_id, size in found.items() if storage_id not in weights)


def test_bytes_are_those_of_a_real_model_and_of_the_graph_of_a_real_pass() -> None:
    config = make_config()
    encoder = DualEncoder(config.model, TEXT).train()
    found = plan.measure_step(config, TEXT, 0)
    numbers = sum(item.numel() for item in encoder.parameters())
    buffers = sum(item.numel() * item.element_size() for item in encoder.buffers())
    assert (found.parameters, found.trained) == (numbers, 4 * numbers)
    assert found.weights == 4 * numbers + buffers
    assert found.regions == 4 * 4
    pixels, ids = torch.zeros(8, 1, 32, 32), torch.ones(8, 16, dtype=torch.int64)
    regions, sentences = encoder(pixels, ids, torch.ones_like(ids))
    scores = encoder.score(regions, sentences)
    weights = {item.untyped_storage().data_ptr() for item in encoder.parameters()}
    held = held_by_the_graph(scores, weights)
    assert held > 100_000
    assert found.activations == pytest.approx(held, rel=0.05)


def test_processes_chunks_half_precision_and_frozen_encoders_need_less() -> None:
    plain = plan.measure_step(make_config(), TEXT, 0).activations
    four = plan.measure_step(make_config(processes=4), TEXT, 0).activations
    assert plain / 4 <= four < plain / 3  # each scores its images with all sentences
    chunked = make_config(global_batch=80, chunk=8, freeze_batchnorm=True)
    assert plan.measure_step(chunked, TEXT, 0).activations == pytest.approx(plain, rel=0.05)
    assert plan.measure_step(make_config(precision="bf16"), TEXT, 0).activations < plain
    config = make_config(frozen=["image"])
    frozen = sum(item.numel() for item in DualEncoder(config.model, TEXT).image.parameters())
    found = plan.measure_step(config, TEXT, 0)
    assert found.trained == 4 * (found.parameters - frozen)
