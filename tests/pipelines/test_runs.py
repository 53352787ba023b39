"""Runs side by side: their threads, their GPUs, and which go on.

That a killed run goes on where it was is tested with the table, which runs in the same way.
"""

import json
import os
from pathlib import Path

import pytest

from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.errors import ArtifactMissing
from medclip_dcl.evaluation import results
from medclip_dcl.training import checkpoint, logging
from pipelines.config import load_config
from pipelines.job import Job
from pipelines.runs import NOTE, Run, Runs, _do_run_of_parent, best_points, visible_devices

ROOT = Path(__file__).parents[2]


def test_a_run_alone_keeps_the_config_s_threads_and_one_of_many_has_one(tmp_path):
    job = Job(
        "sweep", load_config(ROOT / "configs/table1.yaml", ["train.torch_threads=3"]), tmp_path
    )
    alone, one_of_two = (
        Runs(job, tmp_path, ["eta.a"], processes=count).plan("a=0.1", 0, {"eta.a": 0.1})
        for count in (1, 2)
    )
    assert alone.settings["train"]["torch_threads"] == 3
    assert one_of_two.settings["train"]["torch_threads"] == 1
    assert alone.digest == one_of_two.digest


def test_runs_go_over_the_visible_gpus(tmp_path, monkeypatch):
    assert visible_devices(3, None) == ["0", "1", "2"]
    assert visible_devices(2, "4,GPU-1f") == ["4", "GPU-1f"]
    assert visible_devices(0, None) == visible_devices(0, "") == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    run = Run("a=0.1", 0, tmp_path, {"evaluate": {"adapter": {}}}, "digest", tmp_path)
    with pytest.raises(SystemExit):  # its folder has no config: the first stage refuses it
        _do_run_of_parent(run, "6")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6"


def test_the_best_points_by_hand():
    scores = {"a": 0.8, "b": 0.9, "c": 0.9, "d": 0.7}
    assert best_points(scores, 1) == ["b"]  # of equals the earlier one
    assert best_points(scores, 3) == ["b", "c", "a"]


def test_a_run_is_done_once_its_note_names_its_settings_and_its_results_are_there(tmp_path):
    run = Run("a", 0, tmp_path, {}, "digest", tmp_path)
    assert run.note() is None
    (tmp_path / NOTE).write_text(json.dumps({"digest": "digest", "wall_s": 2.0}))
    assert run.note() is None  # its results are not committed
    with write_artifact(results.ARTIFACT.at(tmp_path), results.ARTIFACT, {}) as writer:
        writer.commit({})
    assert run.costs() == {"wall_s": 2.0}
    other = Run("a", 0, tmp_path, {}, "another digest", tmp_path)
    assert (other.note(), other.costs()) == (None, {})


def test_a_run_is_judged_by_its_best_validation_and_one_without_is_named(tmp_path):
    run = Run("a", 0, tmp_path, {}, "digest", tmp_path)
    lines = [{"step": 1, "loss": 2.0}, {"step": 2, "auc": 0.7}, {"step": 4, "auc": 0.6}]
    log = checkpoint.ARTIFACT.at(tmp_path)
    log.mkdir()
    (log / logging.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run.judged("auc") == 0.7
    with pytest.raises(ArtifactMissing, match="has no cnr in its log; delete it and run again"):
        run.judged("cnr")
