import pytest

from medclip_dcl.errors import ConfigError
from medclip_dcl.training.logging import _plain, tracker_options
from medclip_dcl.training.settings import TrainConfig
from pipelines.config import Config


def test_without_trackers_accelerate_is_told_nothing(tmp_path) -> None:
    assert tracker_options(TrainConfig(), tmp_path) == {}
    asked = tracker_options(TrainConfig(trackers=("tensorboard",)), tmp_path)
    assert asked == {"log_with": ["tensorboard"], "project_dir": str(tmp_path / "trackers")}


def test_absent_packages_are_named(tmp_path) -> None:
    settings = TrainConfig(trackers=("tensorboard", "clearml", "comet_ml"))
    with pytest.raises(ConfigError, match=r"pip install clearml comet-ml$"):
        tracker_options(settings, tmp_path)


def test_trackers_learn_settings_and_no_path() -> None:
    tree = {"model": {"image": {"pretrained": "someone/weights.pth", "input_px": 32}}}
    config = Config.model_validate({"work": "someone", **tree})
    reported = _plain(config.model_dump(mode="json", include={"seed", "model", "train"}))
    assert reported["train.global_batch"] == 64
    assert "someone" not in str(reported)
