"""Sections -> one HTML page that needs nothing but itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.text.language import language_warning

from . import preflight
from .outcomes import describe_eta, describe_results, describe_training, show_heatmaps
from .preflight import read_preflight, reading_warnings
from .sources import Sources, View, describe_data, describe_provenance

_FOLDER = Path(__file__).parent
_THIN_SPACE = "\u202f"


def render_report(sources: Sources) -> str:
    """Make the page: HTML with styles, charts and pictures inline.

    Sections without their artifact are left out.
    """
    check = sources.get(preflight.ARTIFACT)
    views = {
        "results": describe_results(sources),
        "data": describe_data(sources),
        "eta": describe_eta(sources),
        "training": describe_training(sources),
    }
    return render(
        {
            **views,
            "verdict": describe_verdict(views["results"], views["eta"], views["data"]),
            "name": sources.work.name,
            "is_generated": sources.is_generated,
            "is_private": sources.settings.private,
            "check": check and read_preflight(check[0]),
            "reports": (),
            "reading_warnings": check and reading_warnings(read_preflight(check[0])),
            "heatmaps": show_heatmaps(sources),
            "provenance": describe_provenance(sources),
        }
    )


def render_check(
    name: str,
    artifact: Artifact,
    reports: Sequence[Sequence[Mapping[str, Any]]] = (),
) -> str:
    """Make the page about a source alone, from its preflight: counts, and no ids.

    `reports` are lists of pieces: `text`, `section`, `reason` why it is left out, and what it
    `says`.
    """
    facts = {"digest": artifact.digest, "committed_at": artifact.origin["committed_at"]}
    check = read_preflight(artifact)
    view = facts | {"name": name, "check": check, "reports": reports}
    return render(view | {"reading_warnings": reading_warnings(check)}, "check_page.html")


def render(view: Mapping[str, Any], template: str = "page.html") -> str:
    """Fill one of this folder's templates, with the page's own styles."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "count": _count}
    style = Markup((_FOLDER / "page.css").read_text(encoding="utf-8"))  # noqa: S704 (our own file)
    return environment.get_template(template).render(view, style=style)


def _number(value: float | None, digits: int = 3) -> str:
    """Round to what can be read: 0.862, 12.3, 317, 4.1e-05."""
    if value is None:
        return "-"
    if value != 0 and abs(value) < 10**-digits:
        return f"{value:.2g}"
    return f"{value:.{digits if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"


def _count(value: int) -> str:
    return f"{value:,}".replace(",", _THIN_SPACE)


GOOD_AUC = 0.8
"""AUC from which a finding counts as found."""
LEAST_FALSE_NEGATIVES = 0.1
"""Expected false negatives of an anchor below which the correction changes nothing."""

_TILES = (
    "zero_shot.mean_auc",
    "grounding.cnr_signed",
    "reports.image_to_report.recall_at_10",
    "zero_shot.mean_balanced_accuracy_offset",
    "boxes.own_recall",
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
    aucs = {
        name: figures["auc"]["value"]
        for name, figures in outcome["groups"].items()
        if figures["auc"]["value"] is not None
    }
    if not aucs:
        return (
            f"No finding was scored: {outcome['absent'] or 'none has images with and without it'}."
        )
    good = sum(value >= GOOD_AUC for value in aucs.values())
    weakest = min(aucs, key=lambda name: aucs[name])
    words = f"Finds {good} of {len(aucs)} findings (AUC of at least {GOOD_AUC:.2f})"
    words += f"; the weakest is {weakest} with {aucs[weakest]:.2f}."
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
