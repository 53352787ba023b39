"""The fit of a and k to the corpus: its record, its picture, its section of the page."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from medclip_dcl.errors import ArtifactCorrupt
from medclip_dcl.likelihood import scoring
from medclip_dcl.reporting.charts import Labels, Line, draw_points
from medclip_dcl.reporting.sources import Sources

View = dict[str, Any]

FOLDER, CALIBRATION = "calibration", "calibration.json"
"""Where `calibrate_eta` leaves its record, in the recipe's folder."""

_NAMES = {"fitted": "fitted", "paper": "paper", "constant": "constant"}


def describe_calibration(sources: Sources) -> View | None:
    """Show what `calibrate_eta` found.

    Args:
        sources: what the report is made from.

    Returns:
        `picture`; `rows` of name, a, k, interval and the factor by which eta is off; the
        `record`; `is_stale`; None where the command has not been run.

    Raises:
        ArtifactCorrupt: the record cannot be read.
    """
    try:
        text = (sources.work / FOLDER / CALIBRATION).read_text(encoding="utf-8")
    except OSError:
        return None
    try:
        return _view(json.loads(text), sources)
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactCorrupt("the calibration is damaged; rerun calibrate_eta") from error


def _view(record: Mapping[str, Any], sources: Sources) -> View:
    scored = sources.artifacts.get(scoring.ARTIFACT.name)
    lines = {
        "fitted": record["fitted"],
        "paper": record["paper"],
        "constant": {"a": record["constant"], "k": 0.0},
    }
    rows = [
        {
            "name": _NAMES[name],
            "a": line["a"],
            "k": line["k"],
            "interval": record["interval"] if name == "fitted" else None,
            "factor": math.exp(record["log_errors"][name]),
        }
        for name, line in lines.items()
    ]
    return {
        "picture": draw_calibration(record),
        "rows": rows,
        "record": record,
        "is_stale": scored is None or scored.digest != record["likelihoods"],
    }


def draw_calibration(record: Mapping[str, Any]) -> Markup:
    """Draw the sentences by likelihood and class probability, and what each line makes of them.

    Args:
        record: what `calibrate_eta` wrote.

    Returns:
        An SVG element.
    """
    points = np.array(record["points"], dtype=np.float64).reshape(-1, 2)
    pll_nats, share = points[:, 0], points[:, 1]
    x = np.linspace(float(pll_nats.min(initial=-1.0)), 0.0, 200)
    least = float(share.min(initial=record["cap"])) / 3

    def line(name: str, a: float, k: float) -> Line:
        y = np.minimum(a * np.exp(k * x), record["cap"])
        seen = y >= least
        return Line(name, x[seen].tolist(), y[seen].tolist())

    fitted, paper = record["fitted"], record["paper"]
    lines = [
        line("fitted", fitted["a"], fitted["k"]),
        line("paper", paper["a"], paper["k"]),
        line("best constant", record["constant"], 0.0),
    ]
    labels = Labels(
        "Class probability of each sentence against its pseudo-log-likelihood, with fitted lines",
        "pseudo-log-likelihood, nats",
        "class probability",
    )
    return draw_points(pll_nats, share, labels, log_y=True, lines=lines)
