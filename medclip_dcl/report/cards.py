"""Model card and data card: Markdown made from facts alone."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from medclip_dcl.report.card_facts import Facts

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
                    f"{facts['training_seconds']:,.0f} seconds; sealed {facts['sealed_at']}. "
                    "Films are prepared as "
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
        (name, *(f"{row[part]:,}" for part in ("films", "reports", "patients")), row["views"])
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
            "# Films and reports that the model was made from",
            f"{kind}Source: `{facts['source']}`. {facts['terms'] or 'Terms: not stated.'}",
            *_part(
                "Splits, by patient",
                [_table(("split", "films", "reports", "patients", "views"), splits)],
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
                    _table(("reason", "films or studies"), facts["rejected"].items())
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
        f"On {evaluation['films']:,} films of {evaluation['patients']:,} patients of the "
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
            f"{item['films_with']:,} / {item['films_without']:,}",
            item["reason"] or "calibrated",
        )
        for item in calibration
    ]
    return [
        "Fitted on validation films; they hold where a finding is as common as among those.",
        _table(("finding", "films with / without", "probability"), rows),
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
