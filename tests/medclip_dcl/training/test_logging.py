import json

import pytest

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.training.logging import FILE, MetricsLog, _plain, read_metrics, tracker_options
from medclip_dcl.training.settings import TrainConfig
from pipelines.config import Config


def test_lines_after_the_checkpoint_and_a_line_cut_short_by_a_kill_are_dropped(tmp_path):
    with MetricsLog(tmp_path, 0) as log:
        for step in range(1, 6):
            log.write({"step": step, "loss": 1 / step})
    with MetricsLog(tmp_path, 3) as log:
        assert log.last == {"step": 3, "loss": 1 / 3}
    assert read_metrics(tmp_path) == [{"step": step, "loss": 1 / step} for step in (1, 2, 3)]
    whole = json.dumps({"step": 1, "loss": 2.0})
    (tmp_path / FILE).write_text(f'{whole}\n{{"step": 2, "lo')
    with MetricsLog(tmp_path, 2) as log:
        log.write({"step": 2, "loss": 1.5})
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}]


def test_trackers_learn_settings_and_no_path_and_absent_packages_are_named(tmp_path):
    tree = {"model": {"image": {"pretrained": "someone/weights.pth", "input_px": 32}}}
    config = Config.model_validate({"work": "someone", **tree})
    reported = _plain(config.model_dump(mode="json", include={"seed", "model", "train"}))
    assert reported["train.global_batch"] == 64
    assert "someone" not in str(reported)
    settings = TrainConfig(trackers=("tensorboard", "clearml", "comet_ml"))
    with pytest.raises(ConfigError, match=r"pip install clearml comet-ml$"):
        tracker_options(settings, tmp_path)
