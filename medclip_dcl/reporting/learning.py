"""The section about training: losses, and what the correction did to them."""

from collections.abc import Sequence
from typing import Any

from medclip_dcl import model_package
from medclip_dcl.model_package import read_model_package
from medclip_dcl.reporting.charts import Labels, Line, draw_lines
from medclip_dcl.reporting.sources import Sources
from medclip_dcl.training.logging import read_metrics

View = dict[str, Any]

_LOSSES = {
    "loss": "corrected loss",
    "uncorrected_loss": "same batches, uncorrected (InfoNCE)",
    "validation_loss": "validation",
}
_GAUGES = {"frac_floor": "anchors on the floor", "mean_eta": "mean eta"}
_CHECKPOINTS = "checkpoints"


def describe_training(sources: Sources) -> View | None:
    """Show how training went.

    Returns:
        Charts `losses` and `gauges` (None where the log is gone) and the model's `card`
        with its `objective`; None without a model.
    """
    found = sources.get(model_package.ARTIFACT)
    if found is None:
        return None
    model = read_model_package(found[0].path)
    return {
        "digest": model.digest,
        "card": model.card,
        "objective": model.config.objective.model_dump(),
        "seconds": found[0].origin["seconds"],
        **draw_training(sources),
    }


def draw_training(sources: Sources) -> View:
    """Draw the metrics log.

    Returns:
        Charts `losses` and `gauges`; None where the log is gone.
    """
    lines = read_metrics(sources.work / _CHECKPOINTS)
    return {
        "losses": _chart(lines, _LOSSES, Labels("Training losses by step", "step", "loss, nats")),
        "gauges": _chart(
            lines,
            _GAUGES,
            Labels("Share of anchors on the floor and mean eta by step", "step", "share"),
        ),
    }


def _chart(lines: Sequence[View], names: dict[str, str], labels: Labels) -> str | None:
    drawn = []
    for name, title in names.items():
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if len(points) > 1:
            steps, values = zip(*points, strict=True)
            drawn.append(Line(title, steps, values))
    return draw_lines(drawn, labels) if drawn else None
