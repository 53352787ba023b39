"""Sections about trust: probabilities, groups of patients, other words for the same question."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.metrics import reliability
from medclip_dcl.reporting.charts import Labels, Line, draw_lines
from medclip_dcl.reporting.sources import Sources
from medclip_dcl.tables import read_table

View = dict[str, Any]

_LINES = 5
_LEAST_BIN = 5  # images of a bin that is drawn: fewer say nothing of a share


def describe_trust(sources: Sources) -> View | None:
    """Show how far the answers can be taken at their word.

    Returns:
        `reliability` chart and `probabilities` by finding; `groups` and `gaps` of patients;
        `paraphrases` by finding, each with its `pairs` of prompts (none in a private report);
        `absent` reasons, empty where there is none; None without results.
    """
    found = sources.get(results.ARTIFACT)
    if found is None:
        return None
    questions = results.read_figures(found[0])["questions"]
    names = ("probabilities", "subgroups", "paraphrases")
    return {
        "absent": {name: questions[name]["absent"] for name in names},
        "probabilities": questions["probabilities"]["groups"],
        "reliability": _reliability(sources),
        "least_images": _LEAST_BIN,
        "groups": _groups(questions["subgroups"]),
        "gaps": {
            name.partition(".")[2]: figure
            for name, figure in questions["subgroups"]["figures"].items()
        },
        "paraphrases": questions["paraphrases"]["groups"],
        "pairs": questions["paraphrases"]["pool"],
        "prompts": _prompts(sources),
    }


def _reliability(sources: Sources) -> str | None:
    table = read_table(sources.artifacts[results.ARTIFACT.name].path, results.SCORES)
    by_finding: dict[str, list[tuple[float, int]]] = {}
    for row in table.to_pylist():
        if row["truth"] is not None and row["probability"] is not None:
            by_finding.setdefault(row["finding"], []).append((row["probability"], row["truth"]))
    lines = []
    for name, pairs in list(by_finding.items())[:_LINES]:
        said, truth = np.array(pairs, dtype=np.float64).T
        bins = [item for item in reliability(said, truth == 1) if item.images >= _LEAST_BIN]
        lines.append(Line(name, [item.probability for item in bins], [item.share for item in bins]))
    labels = Labels(
        "Reliability: share of images with the finding by the probability that was said",
        "probability that was said",
        "share of images with the finding",
    )
    return draw_lines(lines, labels, diagonal=True) if lines else None


def _groups(outcome: Mapping[str, Any]) -> list[View]:
    return [
        {
            "trait": name.partition(": ")[0],
            "value": name.partition(": ")[2],
            "images": outcome["pool"][name],
            **figures,
        }
        for name, figures in outcome["groups"].items()
    ]


def _prompts(sources: Sources) -> dict[str, list[View]]:
    if sources.settings.private:
        return {}
    rows = read_table(sources.artifacts[results.ARTIFACT.name].path, results.PROMPTS).to_pylist()
    by_finding: dict[str, list[View]] = {}
    for row in rows:
        by_finding.setdefault(row["finding"], []).append(row)
    for pairs in by_finding.values():
        pairs.sort(key=lambda row: -(row["auc"] or 0))
    return by_finding
