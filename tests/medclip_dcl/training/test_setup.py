"""The setup of a run: what a split holds, what is warned of, and a start at a low rate."""

from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator

from medclip_dcl.models.settings import ModelConfig
from medclip_dcl.training.checkpoint import CheckpointStore, Snapshot
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.launch import start_accelerator
from medclip_dcl.training.settings import TrainConfig
from medclip_dcl.training.setup import TrainInputs, TrainSetup, set_up, slow_start
from medclip_dcl.training.trainer import run
from pipelines.config import load_config
from pipelines.job import Job
from tests.support.corpus import ETA, write_config


def prepare(work: Path, **sections: dict[str, Any]) -> tuple[TrainSetup, list[dict[str, Any]]]:
    config = load_config(write_config(work / "config.yaml", work, **sections))
    inputs = TrainInputs(**Job("train", config, work).open_inputs().values)
    facts: list[dict[str, Any]] = []
    setup = set_up(
        TrainingConfig.of(config), inputs, Accelerator(cpu=True), lambda **f: facts.append(f)
    )
    return setup, facts


def test_the_training_split_alone_is_trained_on(work: Path) -> None:
    setup, facts = prepare(work)
    corpus, dataset, _ = setup.data
    assert len(corpus.study_ids) == 24
    assert dataset.batch(0).eta.tolist() == pytest.approx([ETA] * 8)
    assert setup.hooks.validate is None
    assert any(fact.get("weights") == "text" for fact in facts)


def test_validation_is_the_same_at_every_start_and_warned_of_where_it_is_one_small_batch(work):
    settings = {"global_batch": 12, "validate_every_steps": 2, "validate_images": 0}
    setup, facts = prepare(work, train=settings)
    assert [len(batch.eta) for batch in setup.hooks.validate.batches] == [8]
    warnings = [str(fact["warning"]) for fact in facts if "warning" in fact]
    assert any("of batches of 8, with 7 negatives in place of 11" in text for text in warnings)
    settings = {"validate_every_steps": 2, "validate_images": 0}
    first, again = (prepare(work, train=settings)[0].hooks.validate.batches for _ in range(2))
    assert [batch.study_ids for batch in first] == [batch.study_ids for batch in again]
    assert (first[0].crops == again[0].crops).all()


def test_another_number_of_processes_goes_on_and_says_what_differs(work, tmp_path):
    setup, facts = prepare(work, train={"steps": 4})
    store = CheckpointStore(tmp_path / "checkpoints", {"of": "this run"})
    with store.locked():
        store.save(Snapshot(2, setup.encoder.state_dict(), {}, {"launches": [[0, 2]]}))
        result = run(
            setup.data,
            setup.encoder,
            setup.objective,
            setup.hooks,
            settings=setup.config.train,
            seed=0,
            accelerator=Accelerator(cpu=True),
            store=store,
        )
    assert result.finished
    assert result.state.resumed_with() == {"resumed_with": [{"from_step": 2, "processes": 1}]}
    (warning,) = [fact["warning"] for fact in facts if "another number" in fact.get("warning", "")]
    assert "not bit-equal" in warning


@pytest.mark.parametrize(
    ("train", "is_warned"),
    [
        ({"learning_rate": 1e-5}, True),
        ({"learning_rate": 1e-4}, False),
        ({"learning_rate": 1e-3, "text_learning_rate": 9e-5}, False),
        ({"learning_rate": 1e-5, "frozen": ["text"]}, True),
        ({"learning_rate": 1e-5, "frozen": ["image"]}, False),  # it never learns
    ],
)
def test_a_random_image_encoder_at_a_low_rate_is_warned_of(train, is_warned):
    settings = TrainConfig.model_validate(train)
    assert bool(slow_start(ModelConfig(), settings)) == is_warned
    pretrained = ModelConfig.model_validate({"image": {"pretrained": "resnet.safetensors"}})
    assert slow_start(pretrained, settings) == ""


@pytest.mark.parametrize(("workers", "processes", "threads"), [(6, 1, 6), (6, 2, 3), (1, 4, 1)])
def test_the_processes_of_a_machine_share_its_workers(monkeypatch, workers, processes, threads):
    given: list[int] = []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setattr("torch.set_num_threads", given.append)
    start_accelerator(TrainConfig(), workers)
    assert given == [threads]
