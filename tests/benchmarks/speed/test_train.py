"""The loop and the bare step that it is measured against do the same work."""

import pytest

from benchmarks.speed.train import BareStep, TrainFixture, make_fixture, run_loop
from medclip_dcl.training.logging import read_metrics
from tests.support.corpus import write_corpus


@pytest.fixture(scope="module")
def train_fixture(tmp_path_factory: pytest.TempPathFactory) -> TrainFixture:
    work = write_corpus(tmp_path_factory.mktemp("images") / "work", size_px=40, dropout=0.0)
    return make_fixture(work, batch=4, input_px=32)


def test_the_bare_step_has_the_loss_of_the_loop_s_first_step(train_fixture, tmp_path):
    run_loop(train_fixture, tmp_path / "run", 1)
    bare = BareStep(train_fixture)
    batch = bare.batch
    regions, sentences = bare.encoder(bare.pixels, batch.input_ids, batch.attention_mask)
    loss = bare.objective(bare.encoder, regions, sentences, batch).loss
    (line,) = read_metrics(tmp_path / "run")
    assert line["loss"] == pytest.approx(loss.item(), rel=1e-5)
    before = bare.encoder.gamma.item()
    bare()
    assert bare.encoder.gamma.item() != before
