"""Sections about trust: probabilities, groups of patients, other words for the same question."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from medclip_dcl import model_package
from medclip_dcl.artifact import Artifact
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.metrics import reliability
from medclip_dcl.reporting.charts import Group, Labels, Line, draw_groups, draw_lines
from medclip_dcl.reporting.sources import Sources, spread
from medclip_dcl.retrieval import embeddings
from medclip_dcl.tables import read_table

View = dict[str, Any]

_LINES = 5
_LEAST_BIN = 5  # images of a bin that is drawn: fewer say nothing of a share
_PERPLEXITY = 30.0
_MAPPED = 250  # images, and as many sentences: more crowd the map
_NAMED = 4
_LEAST_MAPPED = 40


def describe_trust(sources: Sources) -> View | None:
    """Show how far the answers can be taken at their word.

    Args:
        sources: what the report is made from.

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


def draw_map(sources: Sources) -> str | None:
    """Draw images and sentences of the index in one plane.

    Args:
        sources: what the report is made from.

    Returns:
        A chart; None without an index of this model, or where it is small.

    Source: van der Maaten and Hinton 2008, by scikit-learn, on cosine distances.
    """
    found = sources.get(embeddings.ARTIFACT, model_package.ARTIFACT)
    if found is None or found[0].fingerprint["inputs"].get("model") != found[1].digest:
        return None
    pools = [_sampled(found[0], what) for what in ("pooled", "texts")]
    if min(len(vectors) for _, vectors in pools) < _LEAST_MAPPED:
        return None
    from sklearn.manifold import TSNE

    vectors = np.concatenate([vectors for _, vectors in pools])
    coordinates = TSNE(
        perplexity=_PERPLEXITY, metric="cosine", init="random", max_iter=500, random_state=0
    ).fit_transform(vectors)
    chosen, images = pools[0][0], len(pools[0][1])
    shown = read_table(found[0].path, embeddings.IMAGES, ["findings"])["findings"].to_pylist()
    names = [(shown[row] or ["nothing read"])[0] for row in chosen]
    often = sorted(set(names), key=lambda name: (-names.count(name), name))[:_NAMED]
    kind = np.array([name if name in often else "other" for name in names])
    groups = [
        Group(name, coordinates[:images][kind == name].astype(float), is_marked=False)
        for name in (*often, "other")
        if (kind == name).any()
    ]
    groups.append(Group("sentences", coordinates[images:].astype(float), is_marked=True))
    alt = "Images and sentences in the plane, near where the model finds them alike"
    return draw_groups(groups, Labels(alt, "", ""))


def _sampled(index: Artifact, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows spread evenly over the shards of one kind, and their vectors."""
    names = sorted(name for name in index.files if name.startswith(f"{what}-"))
    shards = [embeddings.map_array(index.file(name), np.float32) for name in names]
    ends = np.cumsum([len(shard) for shard in shards])
    total = int(ends[-1]) if len(ends) else 0
    chosen = np.array(spread(total, _MAPPED), dtype=np.int64)
    shard = np.searchsorted(ends, chosen, side="right")
    starts = np.concatenate([[0], ends])
    vectors = [shards[part][row - starts[part]] for part, row in zip(shard, chosen, strict=True)]
    return chosen, np.array(vectors)


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
