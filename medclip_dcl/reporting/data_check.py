"""The section about what a source holds and what is wrong with it."""

from typing import Any

from medclip_dcl.artifact import Artifact
from medclip_dcl.data import data_check
from medclip_dcl.reporting.sources import Sources

View = dict[str, Any]

_VERDICTS = (
    ("leaks", "max_leaks", "leaks between splits"),
    ("unusable_share", "max_unusable_share", "of the rows cannot be used"),
    ("duplicate_share", "max_duplicate_share", "of the images repeat another's picture"),
)
_KINDS = {
    "leak": "across a split",
    "unusable": "cannot be used",
    "duplicate": "repeated",
    "note": "worth knowing",
}


def describe_check(sources: Sources) -> View | None:
    """Show what the check of the source found; None without a preflight."""
    found = sources.get(data_check.ARTIFACT)
    return None if found is None else show_check(found[0])


def show_check(artifact: Artifact) -> View:
    """Lay out a preflight for the page: counts alone, no ids and no texts."""
    tree = data_check.read_preflight(artifact)
    return {
        "clean": tree["verdict"]["clean"],
        "verdict": _verdict(tree["verdict"]),
        "steps": _steps(tree["steps"]),
        "groups": [
            {"title": title, "kind": kind, "lines": [x for x in tree["lines"] if x["kind"] == kind]}
            for kind, title in _KINDS.items()
        ],
        "splits": tree["splits"],
        "source": tree["source"],
        "facts": _facts(tree),
        "duplicates": tree["duplicates"],
        "labels": _labels(tree["labels"]),
        "label_source": tree["labels"]["source"],
        "labelled": tree["labels"]["studies"],
    }


def _verdict(verdict: View) -> list[View]:
    return [
        {
            "meaning": meaning,
            "value": verdict[name],
            "limit": verdict[limit],
            "is_share": name.endswith("share"),
            "met": verdict[name] <= verdict[limit],
        }
        for name, limit, meaning in _VERDICTS
    ]


def _steps(steps: list[View]) -> list[View]:
    measure = "studies" if steps[0]["images"] is None else "images"
    whole = max(steps[0][measure], 1)
    return [step | {"width": round(100 * step[measure] / whole, 2)} for step in steps]


def _facts(tree: View) -> list[View]:
    images, text = tree["images"], tree["text"]
    known = images["known"]
    rows: list[tuple[str, Any, int]] = []  # name, count, of how many
    if images["looked"]:
        rows += [("images opened", images["opened"], images["looked"])]
        rows += [(f"stored as {name}", count, known) for name, count in images["formats"].items()]
        rows += [
            (f"{name} bits a pixel", count, known)
            for name, count in sorted(images["bits"].items(), key=lambda item: int(item[0]))
        ]
        rows += [("MONOCHROME1, turned round", images["inverted"], known)]
    total = sum(tree["encodings"].values())
    rows += [(f"report files, {name}", count, total) for name, count in tree["encodings"].items()]
    rows += [
        ("reports with a mask", text["masked_reports"], text["reports"]),
        ("sentences with a mask", text["masked_sentences"], text["sentences"]),
    ]
    pieces = text["sentences"] + sum(text["dropped"].values())
    rows += [(f"pieces dropped: {rule}", n, pieces) for rule, n in text["dropped"].items()]
    facts = [
        {"name": name, "value": value, "share": value / whole if whole else None}
        for name, value, whole in rows
    ]
    for side in ("heights", "widths"):
        if images[side]:
            least, middle, most = images[side]
            facts.append({"name": f"{side}, pixels", "span": f"{least} · {middle} · {most}"})
    return facts


def _labels(labels: View) -> list[View]:
    """Scale the answers of each finding to the studies, most often present first."""
    whole = max(labels["studies"], 1)
    rows = [
        {"name": name, **counts}
        | {
            f"{answer}_width": round(100 * counts[answer] / whole, 2)
            for answer in data_check.ANSWERS
        }
        for name, counts in labels["findings"].items()
    ]
    return sorted(rows, key=lambda row: -row["present"])
