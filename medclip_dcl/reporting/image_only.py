"""The section about the image-only experiment: classes, probes, and the map of features."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from markupsafe import Markup

from medclip_dcl.artifact import Artifact
from medclip_dcl.image_only import artifacts
from medclip_dcl.image_only.artifacts import ImageClass, ImageSet, read_image_model
from medclip_dcl.reporting.charts import Group, Labels, draw_groups
from medclip_dcl.reporting.learning import draw_training
from medclip_dcl.reporting.sources import Sources
from medclip_dcl.tables import read_table

View = dict[str, Any]

_MEANS = ("accuracy", "accuracy_whole", "accuracy_thinned")


def describe_images(sources: Sources) -> View | None:
    """Show what images alone have taught.

    Args:
        sources: what the report is made from.

    Returns:
        `set` and `classes`, and where they exist the `model` with its charts, the probes by
        share of the labels with `chance`, and the `map`; None without an image set.
    """
    found = sources.get(artifacts.IMAGE_SET)
    if found is None:
        return None
    classes = ImageSet(found[0]).classes
    images = sum(item.train for item in classes)
    return {
        "set": found[0].summary,
        "classes": [{**vars(item), "share": item.train / images} for item in classes],
        "model": _describe_model(sources),
        **_describe_probe(sources, classes),
    }


def _describe_model(sources: Sources) -> View | None:
    found = sources.get(artifacts.IMAGE_MODEL)
    if found is None:
        return None
    model = read_image_model(found[0].path)
    return {
        "digest": model.digest,
        "objective": model.config.objective.model_dump(),
        "views": model.config.views.model_dump(),
        "training": model.card["training"],
        **draw_training(sources),
    }


def _describe_probe(sources: Sources, classes: Sequence[ImageClass]) -> View:
    found = sources.get(artifacts.PROBE)
    if found is None:
        return {"probes": [], "chance": 1 / len(classes), "map": None}
    rows = read_table(found[0].path, artifacts.PROBES).to_pylist()
    cells = dict.fromkeys((row["fraction"], row["encoder"]) for row in rows)
    probes = []
    for fraction, encoder in sorted(cells, key=lambda cell: cell[0]):
        mine = [row for row in rows if (row["fraction"], row["encoder"]) == (fraction, encoder)]
        means = {name: fmean(row[name] for row in mine) for name in _MEANS}
        facts = {"fraction": fraction, "encoder": encoder, "labels": mine[0]["labels"]}
        probes.append({**facts, "draws": len(mine), **means})
    return {"probes": probes, "chance": 1 / len(classes), "map": _draw_map(found[0], classes)}


def _draw_map(artifact: Artifact, classes: Sequence[ImageClass]) -> Markup | None:
    table = read_table(artifact.path, artifacts.MAP)
    if not len(table):
        return None
    label, x, y = (table[name].to_numpy() for name in ("label", "x", "y"))
    groups = [
        Group(item.name, np.stack([x, y], axis=1)[label == index], item.is_thinned)
        for index, item in enumerate(classes)
    ]
    alt = "Test images in the plane, near where their features are alike; one sign for each class"
    return draw_groups(groups, Labels(alt, "", ""))
