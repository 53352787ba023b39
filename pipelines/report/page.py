"""Sections -> one HTML page that needs nothing but itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from medclip_dcl.core.artifact import Artifact

from . import preflight
from .cases import show_cases
from .corpus import describe_data, show_examples
from .correction import audit_negatives, describe_eta
from .outcomes import (
    describe_results,
    describe_training,
    show_gallery_answers,
    show_heatmaps,
)
from .preflight import read_preflight, reading_warnings
from .sources import Sources, describe_provenance
from .verdict import describe_verdict

_FOLDER = Path(__file__).parent
_THIN_SPACE = "\u202f"


def render_report(sources: Sources) -> str:
    """Make the page: HTML with styles, charts and pictures inline.

    Sections without their artifact are left out.
    """
    check = sources.get(preflight.ARTIFACT)
    found = {
        "results": describe_results(sources),
        "data": describe_data(sources),
        "eta": describe_eta(sources),
        "training": describe_training(sources),
    }
    return render(
        {
            **found,
            "verdict": describe_verdict(found["results"], found["eta"], found["data"]),
            "name": sources.work.name,
            "is_generated": sources.is_generated,
            "is_private": sources.settings.private,
            "check": check and read_preflight(check[0]),
            "doubles": (),
            "reports": (),
            "reading_warnings": check and reading_warnings(read_preflight(check[0])),
            "examples": show_examples(sources),
            "audit": audit_negatives(sources),
            "heatmaps": show_heatmaps(sources),
            "gallery": show_gallery_answers(sources),
            "cases": show_cases(sources),
            "provenance": describe_provenance(sources),
        }
    )


def render_check(
    name: str,
    artifact: Artifact,
    doubles: Sequence[Mapping[str, Any]] = (),
    reports: Sequence[Sequence[Mapping[str, Any]]] = (),
) -> str:
    """Make the page about a source alone, from its preflight: counts, and no ids.

    `doubles` are pictures that several images share: `uri`, `images` and `patients`. `reports` are
    lists of pieces: `text`, `section`, `reason` why it is left out, and what it `says`.
    """
    facts = {"digest": artifact.digest, "committed_at": artifact.origin["committed_at"]}
    check = read_preflight(artifact)
    view = facts | {"name": name, "check": check, "doubles": doubles, "reports": reports}
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
