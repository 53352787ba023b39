"""Facts of a recipe: what its model and its data are, as trees of counts, settings and figures.

They hold no ids and no texts but those of the recipe itself.

Model card and data card: Markdown made from facts alone.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from medclip_dcl import model_package
from medclip_dcl.artifact import Artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.sources.records import SPLITS
from medclip_dcl.evaluation import results
from medclip_dcl.likelihood import eta
from medclip_dcl.model_package import SavedModel, read_model_package
from medclip_dcl.reporting.settings import CardConfig
from medclip_dcl.reporting.sources import Sources
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.lexicon import LABELS

Facts = dict[str, Any]

NOTICE = "Research use only, not a medical device: no output may guide the care of a patient."

_FORMAT = 1
_RATHER_NOT = {"beta", "similarity_threshold", "keep_share", "sigmoid_bias", "negatives"}
DATA_KINDS = (
    manifest.ARTIFACT,
    prepared.ARTIFACT,
    sentences.ARTIFACT,
    labels.ARTIFACT,
    eta.ARTIFACT,
)
"""What the data card draws on."""
KINDS = (*DATA_KINDS, model_package.ARTIFACT, results.ARTIFACT)
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
    artifact = sources.artifacts[model_package.ARTIFACT.name]
    model = read_model_package(artifact.path)
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
    listed = sources.artifacts[manifest.ARTIFACT.name]
    found = [sources.artifacts.get(kind.name) for kind in DATA_KINDS]
    stages = [item for item in found if item is not None]
    return {
        "format_version": _FORMAT,
        "digests": {item.kind: item.digest for item in stages},
        "terms": card.data,
        "source": listed.fingerprint["settings"].get("source", {}).get("kind", ""),
        "is_generated": sources.is_generated,
        "splits": _splits(listed),
        "labels": _labels(listed),
        "rejected": listed.summary.get("reasons", {}),
        "stages": {item.kind: _scalars(item.summary) for item in stages},
    }


def _architecture(model: SavedModel) -> Facts:
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


def _calibration(model: SavedModel) -> list[Facts] | None:
    if model.calibration is None:
        return None
    return [item.model_dump(mode="json") for item in model.calibration.findings]


def _evaluation(sources: Sources, digest: str) -> Facts | None:
    artifact = sources.artifacts.get(results.ARTIFACT.name)
    tree = None if artifact is None else results.read_figures(artifact)
    if artifact is None or tree is None or tree["model"] != digest:
        return None
    figures = {}
    for headline in results.HEADLINES:
        figure = results.headline_figure(tree, headline)
        if figure is not None:
            chance = tree["questions"][headline.question]["chance"].get(headline.chance)
            figures[headline.title] = {**figure, "chance": chance}
    names = ("split", "images", "patients", "truth", "contaminated", "repeated_images")
    absent = {name: item["absent"] for name, item in tree["questions"].items() if item["absent"]}
    facts = {"results": artifact.digest, **{name: tree[name] for name in names}}
    return facts | {"figures": figures, "absent": absent}


def _splits(listed: Artifact) -> dict[str, Facts]:
    images = read_table(listed.path, manifest.IMAGES).to_pylist()
    reports = read_table(listed.path, manifest.REPORTS, ["split", "subject_id"]).to_pylist()
    found: dict[str, Facts] = {}
    for split in SPLITS:
        shown = [row for row in images if row["split"] == split]
        reported = [row for row in reports if row["split"] == split]
        views = Counter(row["view"] or "not known" for row in shown)
        found[split] = {
            "images": len(shown),
            "reports": len(reported),
            "patients": len({row["subject_id"] for row in (*shown, *reported)}),
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
        for name in LABELS
        if rows
    }


def _scalars(summary: Mapping[str, Any]) -> Facts:
    return {name: value for name, value in summary.items() if isinstance(value, int | float | str)}


_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


def model_card(facts: Facts) -> str:
    """Write the model card.

    Args:
        facts: from `model_facts`.

    Returns:
        Markdown with the metadata that model hubs read.
    """
    training, data = facts["training"], facts["data"]
    return _document(
        [
            *_front(facts["licence"]),
            "# Image-text model of chest radiographs",
            f"**{facts['notice']}**",
            *_part("Intended use", [facts["intended_use"]]),
            *_part("Limits", [_bullets(facts["limits"])]),
            *_part("Licence", [facts["licence"], facts["data_terms"]]),
            *_part(
                "The model",
                [_table(("", ""), facts["architecture"].items()), f"Digest: `{facts['model']}`."],
            ),
            *_part(
                "How it was made",
                [
                    f"{training.get('steps', 0):,} steps with "
                    f"{training.get('global_batch', 0):,} pairs each, from "
                    f"{data.get('studies', 0):,} studies of {data.get('patients', 0):,} patients; "
                    f"{facts['training_seconds']:,.0f} seconds; sealed {facts['committed_at']}. "
                    "Images are prepared as "
                    f"`{json.dumps(facts['preprocessing'], sort_keys=True)}`.",
                    _table(
                        ("input", "digest"),
                        (
                            (name, f"`{text[:16]}`")
                            for name, text in data.get("digests", {}).items()
                        ),
                    ),
                ],
            ),
            *_part("What it reached", _reached(facts["evaluation"])),
            *_part("Probabilities", _probabilities(facts["calibration"])),
            *_part("Prompts", [_prompts(facts["prompts"])]),
            *_part("Packages", [_table(("package", "version"), facts["packages"].items())]),
        ]
    )


def data_card(facts: Facts) -> str:
    """Write the data card.

    Args:
        facts: from `data_facts`.

    Returns:
        Markdown.
    """
    kind = "Generated studies; no patient has ever been filmed for them. " * facts["is_generated"]
    splits = [
        (name, *(f"{row[part]:,}" for part in ("images", "reports", "patients")), row["views"])
        for name, row in facts["splits"].items()
    ]
    labels = [(name, *map(str, row.values())) for name, row in facts["labels"].items()]
    stages = [
        (stage.replace("_", " "), name.replace("_", " "), str(value))
        for stage, summary in facts["stages"].items()
        for name, value in summary.items()
    ]
    return _document(
        [
            "# Images and reports that the model was made from",
            f"{kind}Source: `{facts['source']}`. {facts['terms'] or 'Terms: not stated.'}",
            *_part(
                "Splits, by patient",
                [_table(("split", "images", "reports", "patients", "views"), splits)],
            ),
            *_part(
                "Labels of training studies",
                [
                    _table(("label", "present", "absent", "uncertain", "blank"), labels)
                    if labels
                    else "The source has none."
                ],
            ),
            *_part(
                "Left out",
                [
                    _table(("reason", "images or studies"), facts["rejected"].items())
                    if facts["rejected"]
                    else "Nothing."
                ],
            ),
            *_part("Stages", [_table(("stage", "count", "value"), stages)]),
            *_part("Digests", [_table(("artifact", "digest"), facts["digests"].items())]),
        ]
    )


def _front(licence: str) -> list[str]:
    is_identifier = _SPDX.fullmatch(licence) is not None
    license_lines = [f"license: {licence.lower()}"] if is_identifier else ["license: other"]
    return [
        "\n".join(
            [
                "---",
                *license_lines,
                "library_name: medclip-dcl",
                "pipeline_tag: zero-shot-image-classification",
                "tags: [chest-x-ray, radiology, image-text, research-only]",
                "---",
            ]
        )
    ]


def _reached(evaluation: Facts | None) -> list[str]:
    if evaluation is None:
        return ["It has not been evaluated."]
    rows = [
        (title, _shown(figure), "-" if figure["chance"] is None else f"{figure['chance']:.3f}")
        for title, figure in evaluation["figures"].items()
    ]
    known = evaluation["contaminated"]
    seen = "nobody knows how many" if known is None else f"{known:,}"
    return [
        f"On {evaluation['images']:,} images of {evaluation['patients']:,} patients of the "
        f"{evaluation['split']} split, {seen} of them trained on; truth: {evaluation['truth']}. "
        "Intervals are 95 %, over patients.",
        _table(("figure", "value", "chance"), rows),
        _bullets(f"{name}: not asked, {why}" for name, why in evaluation["absent"].items()),
    ]


def _shown(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return f"undefined: {figure['reason']}"
    if figure["low"] is None:
        return f"{figure['value']:.3f}"
    return f"{figure['value']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


def _probabilities(calibration: list[Facts] | None) -> list[str]:
    if calibration is None:
        return ["Scores compare prompts; no calibration was fitted."]
    rows = [
        (
            item["finding"],
            f"{item['images_with']:,} / {item['images_without']:,}",
            item["reason"] or "calibrated",
        )
        for item in calibration
    ]
    return [
        "Fitted on validation images; they hold where a finding is as common as among those.",
        _table(("finding", "images with / without", "probability"), rows),
    ]


def _prompts(prompts: list[Facts]) -> str:
    rows = [
        (item["name"], *("; ".join(item[s]) for s in ("positive", "negative"))) for item in prompts
    ]
    return _table(("finding", "positive", "negative"), rows)


def _part(title: str, paragraphs: list[str]) -> list[str]:
    return [f"## {title}", *(text for text in paragraphs if text)]


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in lines)


def _cell(value: Any) -> str:
    return str(value).replace("|", r"\|").replace("\n", " ")


def _document(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
