"""The two models that are served: random weights take as long as learned ones."""

from pathlib import Path

from benchmarks.fixtures.published import publish
from medclip_dcl.config import Config, load_config
from medclip_dcl.model_package import ARTIFACT

DEMO = Path("configs/demo.yaml")


def publish_paper_size(folder: Path, kind: str = "resnet18") -> Path:
    """Publish a ResNet at 480 px with a grid of 15 x 15; ResNet-18 is the model of the paper."""
    config = {"work": "unused", "model": {"image": {"kind": kind}}}
    publish(ARTIFACT.at(folder), config=Config.model_validate(config))
    return folder


def publish_demo_size(folder: Path) -> Path:
    """Publish a model of the demo's size."""
    publish(ARTIFACT.at(folder), config=load_config(DEMO))
    return folder
