"""Model card and data card: facts as trees, and Markdown made from the facts alone.

They hold counts, settings and figures; no ids, and no texts but those of the config itself.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCard, DatasetCardData, ModelCard, ModelCardData

from medclip_dcl.core.artifact import Artifact, read_object
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest, prepared
from medclip_dcl.evaluation import results
from medclip_dcl.inference import model_package
from medclip_dcl.inference.model_package import SavedModel, read_model_package
from medclip_dcl.likelihood import eta
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.training.config import read_training_config

from .preflight import CardConfig
from .sources import Sources, count_splits

Facts = dict[str, Any]

NOTICE = "Research use only, not a medical device: no output may guide the care of a patient."

_FORMAT = 1
_FOLDER = Path(__file__).parent
_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")

DATA_KINDS = (
    *(manifest.ARTIFACT, prepared.ARTIFACT),
    *(sentences.ARTIFACT, labels.ARTIFACT, eta.ARTIFACT),
)
"""What the data card draws on."""

KINDS = (*DATA_KINDS, model_package.ARTIFACT, results.ARTIFACT)
"""What the cards draw on."""


def model_facts(sources: Sources, card: CardConfig) -> Facts:
    """Gather what is known of a model as plain values; no `evaluation` without its results."""
    artifact = sources.artifacts[model_package.ARTIFACT.name]
    model = read_model_package(artifact.path)
    offsets = model_package.read_offsets(artifact.path)
    return {
        "format_version": _FORMAT,
        "model": model.digest,
        "committed_at": artifact.origin["committed_at"],
        "notice": NOTICE,
        "intended_use": card.intended_use,
        "limits": [*card.limits, *model.card.get("limits", ())],
        "licence": card.licence,
        "data_terms": card.data,
        "architecture": _architecture(model),
        **{name: model.card.get(name, {}) for name in ("training", "data", "eta")},
        "prompts": model.card.get("prompts", []),
        "preprocessing": model.card.get("preprocessing", {}),
        "calibration": None
        if model.calibration is None
        else [item.model_dump(mode="json") for item in model.calibration.findings],
        "offsets": None if offsets is None else offsets.model_dump(mode="json"),
        "evaluation": _evaluation(sources, model.digest),
        "packages": artifact.origin["packages"],
        "training_seconds": artifact.origin["seconds"],
    }


def data_facts(sources: Sources, card: CardConfig) -> Facts:
    """Gather what is known of the data as plain values."""
    listed = sources.artifacts[manifest.ARTIFACT.name]
    stages = [sources.artifacts[kind.name] for kind in DATA_KINDS if kind.name in sources.artifacts]
    return {
        "format_version": _FORMAT,
        "digests": {item.kind: item.digest for item in stages},
        "terms": card.data,
        "source": listed.fingerprint["settings"].get("source", {}).get("kind", ""),
        "is_generated": sources.is_generated,
        "splits": count_splits(listed),
        "by_patient": listed.summary.get("splits_by_patient", True),
        "dataset": read_object(listed, manifest.DATASET, manifest.ARTIFACT)
        if manifest.DATASET in listed.files
        else {},
        "labels": _labels(listed),
        "rejected": listed.summary.get("reasons", {}),
        "stages": {item.kind: _scalars(item.summary) for item in stages},
    }


def _architecture(model: SavedModel) -> Facts:
    image, text = model.config.model.image, model.config.model.text
    grid = model.card.get("grid", {})
    resnet = f"ResNet, depths {list(image.depths)}, widths {list(image.widths)}"
    return {
        "image encoder": json.dumps(image.backbone) if image.backbone else resnet,
        "input": f"{image.input_px} x {image.input_px} pixels",
        "regions": f"{grid.get('rows', '?')} x {grid.get('columns', '?')}",
        "text encoder": f"{_text_kind(model)}, at most {text.max_tokens} word pieces",
        "similarity": json.dumps(model.config.model.similarity.model_dump(mode="json")),
        **_training(model),
    }


def _text_kind(model: SavedModel) -> str:
    tree = json.loads((model.path / model_package.TEXT / "config.json").read_text("utf-8"))
    kind = tree.get("model_type", "bert")
    return "BERT" if kind == "bert" else str(kind)


def _training(model: SavedModel) -> Facts:
    trained = read_training_config(model.path)
    if trained is None:
        facts = {name: value for name, value in model.card["source"].items() if name != "files"}
        return {"adopted from": json.dumps(facts), "score": json.dumps(model.card["score"])}
    used = model.card.get("eta", {}).get("summary", {})
    eta = {name: used[name] for name in ("source", "a", "k") if name in used}
    objective = trained.objective.public_settings()
    return {"objective": json.dumps(objective), "eta": json.dumps(eta)}


def _evaluation(sources: Sources, digest: str) -> Facts | None:
    artifact = sources.artifacts.get(results.ARTIFACT.name)
    tree = None if artifact is None else results.read_figures(artifact)
    if artifact is None or tree is None or tree["model"] != digest:
        return None
    figures = {
        headline.title: {**figure, "chance": headline.chance_of(tree)}
        for headline in results.headlines_of(tree)
        if (figure := headline.figure_of(tree)) is not None
    }
    names = ("split", "images", "patients", "truth", "contaminated", "repeated_images")
    absent = {name: item["absent"] for name, item in tree["questions"].items() if item["absent"]}
    facts = {"results": artifact.digest, **{name: tree[name] for name in names}}
    warnings = [item["message"] for item in tree["warnings"]]
    decisions = {
        title: tree["questions"][question]["groups"]
        for question, title in results.DECISION_QUESTIONS.items()
        if tree["questions"][question]["groups"]
    }
    return facts | {
        "figures": figures,
        "decisions": decisions,
        "decision_figures": results.DECISION_FIGURES,
        "absent": absent,
        "warnings": warnings,
    }


def _labels(listed: Artifact) -> dict[str, dict[str, int]]:
    table = manifest.read_labels(listed)
    reports = read_table(listed.path, manifest.REPORTS, ["study_id", "split"]).to_pylist()
    training = {row["study_id"] for row in reports if row["split"] == "train"}
    rows = [row for row in table.to_pylist() if row["study_id"] in training]
    states = {"present": 1, "absent": 0, "uncertain": -1, "blank": None}
    return {
        name: {state: sum(row[name] == value for row in rows) for state, value in states.items()}
        for name in manifest.label_names(table)
        if rows
    }


def _scalars(summary: Mapping[str, Any]) -> Facts:
    return {name: value for name, value in summary.items() if isinstance(value, int | float | str)}


def model_card(facts: Facts) -> str:
    """Write the model card: Markdown that begins with the metadata that model hubs read."""
    data = ModelCardData(
        license=_licence(facts["licence"]),
        library_name="medclip-dcl",
        pipeline_tag="zero-shot-image-classification",
        tags=["chest-x-ray", "radiology", "image-text", "research-only"],
    )
    template = str(_FOLDER / "model_card.jinja")
    return f"{ModelCard.from_template(data, template, **facts)}\n"


def data_card(facts: Facts) -> str:
    """Write the data card in the same way."""
    data = DatasetCardData(license=_licence(facts["terms"]), tags=["chest-x-ray", "radiology"])
    template = str(_FOLDER / "data_card.jinja")
    return f"{DatasetCard.from_template(data, template, **facts)}\n"


def _licence(words: str) -> str:
    """Hubs take an SPDX identifier; words of one's own are `other`."""
    return words.lower() if _SPDX.fullmatch(words) else "other"
