"""Facts of a recipe: what its model and its data are, as trees of counts, settings and figures.

They hold no ids and no texts but those of the recipe itself.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from medclip_dcl.artifacts import (
    claims,
    eta_cache,
    manifest,
    prepared,
    published,
    results,
    sentences,
)
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.artifacts.published import Published, read_published
from medclip_dcl.artifacts.tables import read_table
from medclip_dcl.config.card import CardConfig
from medclip_dcl.report.sources import Sources

Facts = dict[str, Any]

NOTICE = "Research use only, not a medical device: no output may guide the care of a patient."

_FORMAT = 1
_RATHER_NOT = {"beta", "similarity_threshold", "keep_share", "sigmoid_bias", "negatives"}
DATA_KINDS = (manifest.KIND, prepared.KIND, sentences.KIND, claims.KIND, eta_cache.KIND)
"""What the data card draws on."""
KINDS = (*DATA_KINDS, published.KIND, results.KIND)
"""What both cards draw on."""


def model_facts(sources: Sources, card: CardConfig) -> Facts:
    """Gather what is known of a model.

    Args:
        sources: the recipe's artifacts, a model among them.
        card: words of its publisher.

    Returns:
        A JSON-serialisable tree; `evaluation` is None where the results are of another model,
        or there are none.

    Raises:
        ArtifactError: one is damaged.
    """
    artifact = sources.artifacts[published.KIND.name]
    model = read_published(artifact.path)
    return {
        "format_version": _FORMAT,
        "model": model.digest,
        "sealed_at": artifact.origin["sealed_at"],
        "notice": NOTICE,
        "intended_use": card.intended_use,
        "limits": [*card.limits, *model.card.get("limits", ())],
        "licence": card.licence,
        "data_terms": card.data,
        "architecture": _architecture(model),
        "training": model.card.get("training", {}),
        "data": model.card.get("data", {}),
        "eta": model.card.get("eta", {}),
        "prompts": model.card.get("prompts", []),
        "preprocessing": model.card.get("preprocessing", {}),
        "calibration": _calibration(model),
        "evaluation": _evaluation(sources, model.digest),
        "packages": artifact.origin["packages"],
        "training_seconds": artifact.origin["seconds"],
    }


def data_facts(sources: Sources, card: CardConfig) -> Facts:
    """Gather what is known of the data.

    Args:
        sources: the recipe's artifacts, a manifest among them.
        card: words of the publisher.

    Returns:
        A JSON-serialisable tree.

    Raises:
        ArtifactError: one is damaged.
    """
    listed = sources.artifacts[manifest.KIND.name]
    found = [sources.artifacts.get(kind.name) for kind in DATA_KINDS]
    stages = [item for item in found if item is not None]
    return {
        "format_version": _FORMAT,
        "digests": {item.kind: item.digest for item in stages},
        "terms": card.data,
        "source": listed.recipe["settings"].get("source", {}).get("kind", ""),
        "is_generated": sources.is_generated,
        "splits": _splits(listed),
        "labels": _labels(listed),
        "rejected": listed.summary.get("reasons", {}),
        "stages": {item.kind: _scalars(item.summary) for item in stages},
    }


def _architecture(model: Published) -> Facts:
    image, text = model.config.model.image, model.config.model.text
    objective = model.config.objective.model_dump(mode="json")
    grid = model.card.get("grid", {})
    return {
        "image encoder": f"ResNet, depths {list(image.depths)}, widths {list(image.widths)}",
        "input": f"{image.input_px} x {image.input_px} pixels",
        "regions": f"{grid.get('rows', '?')} x {grid.get('columns', '?')}",
        "text encoder": f"BERT, at most {text.max_tokens} word pieces",
        "similarity": json.dumps(model.config.model.similarity.model_dump(mode="json")),
        "objective": json.dumps({k: v for k, v in objective.items() if k not in _RATHER_NOT}),
        "eta": json.dumps(model.config.eta.model_dump(mode="json", include={"source", "a", "k"})),
    }


def _calibration(model: Published) -> list[Facts] | None:
    if model.calibration is None:
        return None
    return [item.model_dump(mode="json") for item in model.calibration.findings]


def _evaluation(sources: Sources, digest: str) -> Facts | None:
    artifact = sources.artifacts.get(results.KIND.name)
    tree = None if artifact is None else results.read_figures(artifact)
    if artifact is None or tree is None or tree["model"] != digest:
        return None
    figures = {}
    for headline in results.HEADLINES:
        figure = results.headline_figure(tree, headline)
        if figure is not None:
            chance = tree["questions"][headline.question]["chance"].get(headline.chance)
            figures[headline.title] = {**figure, "chance": chance}
    names = ("split", "films", "patients", "truth", "contaminated", "repeated_films")
    absent = {name: item["absent"] for name, item in tree["questions"].items() if item["absent"]}
    facts = {"results": artifact.digest, **{name: tree[name] for name in names}}
    return facts | {"figures": figures, "absent": absent}


def _splits(listed: Artifact) -> dict[str, Facts]:
    films = read_table(listed.path, manifest.IMAGES).to_pylist()
    reports = read_table(listed.path, manifest.REPORTS, ["split", "subject_id"]).to_pylist()
    found: dict[str, Facts] = {}
    for split in manifest.SPLITS:
        shown = [row for row in films if row["split"] == split]
        told = [row for row in reports if row["split"] == split]
        views = Counter(row["view"] or "not known" for row in shown)
        found[split] = {
            "films": len(shown),
            "reports": len(told),
            "patients": len({row["subject_id"] for row in (*shown, *told)}),
            "views": ", ".join(f"{view} {count:,}" for view, count in sorted(views.items())),
        }
    return found


def _labels(listed: Artifact) -> dict[str, dict[str, int]]:
    if manifest.STUDY_LABELS.file not in listed.files:
        return {}
    reports = read_table(listed.path, manifest.REPORTS, ["study_id", "split"]).to_pylist()
    training = {row["study_id"] for row in reports if row["split"] == "train"}
    rows = read_table(listed.path, manifest.STUDY_LABELS).to_pylist()
    rows = [row for row in rows if row["study_id"] in training]
    states = {"present": 1, "absent": 0, "uncertain": -1, "blank": None}
    return {
        name: {state: sum(row[name] == value for row in rows) for state, value in states.items()}
        for name in manifest.LABELS
        if rows
    }


def _scalars(summary: Mapping[str, Any]) -> Facts:
    return {name: value for name, value in summary.items() if isinstance(value, int | float | str)}
