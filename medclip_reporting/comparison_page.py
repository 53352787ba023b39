"""A page about two sides of a comparison: figures, curves, and images on which they differ.

Curves and images are those of each side's first run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sklearn.metrics import roc_curve

from medclip_dcl.artifact import open_artifact
from medclip_dcl.data import prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import ArtifactMissing
from medclip_dcl.evaluation import results
from medclip_dcl.tables import read_table
from medclip_dcl.training.logging import read_metrics
from medclip_reporting.charts import Labels, Series, draw_lines
from medclip_reporting.comparison import Difference, describe_difference
from medclip_reporting.corpus import show_image
from medclip_reporting.page import render

View = dict[str, Any]

_IMAGES = 8
_FINDINGS = 6
_LOSSES = {  # those that objectives have in common
    "uncorrected_loss": "InfoNCE of the training batches",
    "validation_loss": "Validation",
}


def render_comparison(
    names: tuple[str, str],
    runs: tuple[Sequence[Path], Sequence[Path]],
    differences: Mapping[str, Difference],
    summary: str,
    *,
    private: bool = False,
) -> str:
    """Make the page: HTML that needs nothing but itself.

    Args:
        names: what the sides are called.
        runs: folders of results, at least one a side.
        differences: figure -> what `compare_sides` found.
        summary: the verdict in words.
        private: leave out pictures.
    """
    folders = [side[0] for side in runs]
    scores = [read_table(folder, results.SCORES).to_pylist() for folder in folders]
    titles = {item.name: item.title for item in results.HEADLINES}
    rows = [
        {
            "name": titles.get(name, name.replace("_", " ").replace(".", ", ")),
            "difference": item,
            "verdict": describe_difference(name, item),
        }
        for name, item in differences.items()
    ]
    view = {
        "names": names,
        "counts": [len(side) for side in runs],
        "summary": summary,
        "rows": rows,
        "decides": min(map(len, runs)) > 1,  # one run a side has no interval and no verdict
        "losses": _losses(names, folders),
        "roc": _roc(names, scores),
        "images": [] if private else _disagreements(folders[0].parent, scores),
    }
    return render(view, "comparison.html")


def _losses(names: tuple[str, str], folders: Sequence[Path]) -> list[View]:
    logs = [read_metrics(folder.parent / "checkpoints") for folder in folders]
    charts = []
    for key, title in _LOSSES.items():
        drawn = []
        for name, log in zip(names, logs, strict=True):
            points = [(line["step"], line[key]) for line in log if line.get(key) is not None]
            if points:
                drawn.append(Series(name, *zip(*points, strict=True)))
        if drawn:
            picture = draw_lines(drawn, Labels(f"{title} of both runs", "step", "loss, nats"))
            charts.append({"title": title, "picture": picture})
    return charts


def _roc(names: tuple[str, str], scores: Sequence[Sequence[View]]) -> list[View]:
    charts = []
    for finding in list(dict.fromkeys(row["finding"] for row in scores[0]))[:_FINDINGS]:
        drawn = []
        for name, rows in zip(names, scores, strict=True):
            known = [row for row in rows if row["finding"] == finding and row["truth"] is not None]
            truth = [row["truth"] for row in known]
            if len(set(truth)) == 2:
                false, true, _ = roc_curve(truth, [row["margin"] for row in known])
                drawn.append(Series(name, [*false], [*true]))
        if drawn:
            labels = Labels(f"ROC of {finding}", "false positive rate", "true positive rate")
            picture = draw_lines(drawn, labels, diagonal=True)
            charts.append({"title": finding, "picture": picture})
    return charts


def _disagreements(work: Path, scores: Sequence[Sequence[View]]) -> list[View]:
    # Images of known truth that the runs decide differently, the surest first.
    pairs = [
        (a, b)
        for a, b in zip(*(sorted(rows, key=_case) for rows in scores), strict=True)
        if a["truth"] is not None and _is_present(a) != _is_present(b)
    ]
    pairs.sort(key=lambda pair: (-abs(pair[0]["score"] - pair[1]["score"]), _case(pair[0])))
    try:
        artifact = open_artifact(prepared.ARTIFACT.at(work), prepared.ARTIFACT, verify=False)
    except ArtifactMissing:
        return []
    images = PreparedImages(artifact)
    return [
        show_image(images, pair[0]["image_id"], [])
        | {
            "finding": pair[0]["finding"],
            "truth": bool(pair[0]["truth"]),
            "answers": [{"score": row["score"], "is_present": _is_present(row)} for row in pair],
        }
        for pair in pairs
        if pair[0]["image_id"] in images.row_of
    ][:_IMAGES]


def _case(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["finding"], row["image_id"]


def _is_present(row: Mapping[str, Any]) -> bool:
    return bool(row["margin"] > (row["offset"] or 0))
