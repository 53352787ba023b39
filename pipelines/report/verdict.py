"""Verdict of a report: one sentence, four figures, and what should not be overlooked."""

from collections.abc import Mapping, Sequence
from typing import Any

from medclip_dcl.text.language import language_warning

View = dict[str, Any]

GOOD_AUC = 0.8
"""AUC from which a finding counts as found."""
LEAST_FALSE_NEGATIVES = 0.1
"""Expected false negatives of an anchor below which the correction changes nothing."""

_TILES = (
    "zero_shot.mean_auc",
    "grounding.cnr_signed",
    "gallery.recall_at_5",
    "reports.image_to_report.recall_at_10",
    "zero_shot.mean_balanced_accuracy_offset",
    "boxes.own_recall",
    "classes.mean_recall",
)
"""Headlines in the order in which the first four that were measured become tiles."""


def describe_verdict(
    results: Mapping[str, Any] | None,
    eta: Mapping[str, Any] | None,
    data: Mapping[str, Any] | None,
) -> View:
    """Sum up the views of a report's sections; a section that is missing adds nothing."""
    warnings = []
    if results is not None:
        warnings += _backwards(results["questions"]["zero_shot"]["groups"])
    if eta is not None and eta["expected"] < LEAST_FALSE_NEGATIVES:
        warnings.append(
            "The correction does next to nothing: of an anchor's N negatives "
            f"{eta['expected']:.2g} are expected to be false. See whether eta.a and eta.k fit the "
            "language model, or take a larger batch."
        )
    if data is not None and (warning := language_warning(data["languages"])):
        warnings.append(f"{warning}.")
    return {
        "sentence": None if results is None else _sentence(results["questions"]),
        "tiles": [] if results is None else _tiles(results["headlines"]),
        "warnings": warnings,
    }


def _sentence(questions: Mapping[str, Any]) -> str:
    outcome = questions["zero_shot"]
    found = {
        name: figures["auc"]["value"]
        for name, figures in outcome["groups"].items()
        if figures["auc"]["value"] is not None
    }
    if not found:
        return (
            f"No finding was scored: {outcome['absent'] or 'none has images with and without it'}."
        )
    good = sum(value >= GOOD_AUC for value in found.values())
    weakest = min(found, key=lambda name: found[name])
    words = f"Finds {good} of {len(found)} findings (AUC of at least {GOOD_AUC:.2f})"
    words += f"; the weakest is {weakest} with {found[weakest]:.2f}."
    contrast = questions["grounding"]["figures"].get("cnr_signed")
    if contrast and contrast["value"] is not None:
        where = _standing(contrast, questions["grounding"]["chance"].get("cnr_signed"))
        meanings = {"good": "point to", "bad": "point away from"}
        words += (
            f" Its heatmaps {meanings.get(where, 'do not clearly point to')} the marked places."
        )
    return words


def _backwards(groups: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} is read backwards: AUC {figures['auc']['value']:.3f}, surely below chance. Images "
        "that show it score lower than others; see whether its two prompts are exchanged."
        for name, figures in groups.items()
        if _standing(figures["auc"], 0.5) == "bad"
    ]


def _tiles(headlines: Sequence[Mapping[str, Any]]) -> list[View]:
    by_name = {line["name"]: line for line in headlines}
    shown = [by_name[name] for name in _TILES if name in by_name][:4]
    return [{**line, "standing": _standing(line["figure"], line["chance"])} for line in shown]


def _standing(figure: Mapping[str, Any], chance: float | None) -> str:
    # `good` or `bad` where the whole interval is above or below chance.
    if chance is None or figure["low"] is None:
        return ""
    return "good" if figure["low"] > chance else "bad" if figure["high"] < chance else ""
