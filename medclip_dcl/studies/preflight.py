"""What a source holds step by step, and what in it is wrong: counts and ids, no texts.

Codes of what is found are those of `selection.REASONS`, of `reasons.REASONS`, and `CODES`.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from medclip_dcl.config.check import CheckConfig
from medclip_dcl.studies import reasons, selection
from medclip_dcl.studies.records import Film, RawStudies
from medclip_dcl.studies.selection import Selection

Row = dict[str, Any]

UNUSABLE, DUPLICATE, LEAK, NOTE = "unusable", "duplicate", "leak", "note"

CODES: dict[str, tuple[str, str]] = {
    "two_splits": (LEAK, "the source puts one patient's films in several splits"),
    "boxed_training": (LEAK, "the source puts a patient with boxes, who is evaluated, in train"),
    "trained_patient": (LEAK, "the model beside it was trained on this evaluated patient"),
    "pixels_across_splits": (LEAK, "the same picture lies in another split"),
    "same_pixels": (DUPLICATE, "an earlier film is the same picture, pixel by pixel"),
    "constant": (UNUSABLE, "all pixels are equal"),
    "film_without_report": (NOTE, "the film is left out because its report is"),
    "no_sentence": (NOTE, "no sentence of the report is left once it is split"),
    "same_text": (NOTE, "an earlier report says the same, word by word"),
    "monochrome1": (NOTE, "the film is stored with low values bright, and is turned round"),
}
"""Code -> kind and meaning, beyond the reasons of manifest and gate."""


class Found(NamedTuple):
    """One thing that was found: its code, on which id, and what it repeats."""

    code: str
    id: str
    other: str = ""


@dataclass(frozen=True)
class Belonging:
    """To whom films and studies belong, and in which split the manifest puts them."""

    subject_of: Mapping[str, str]
    split_of: Mapping[str, str]


def count_steps(
    raw: RawStudies, chosen: Selection, usable: Collection[str], refused: Collection[str]
) -> list[Row]:
    """Count what is left after each step.

    Args:
        raw: all rows of the source.
        chosen: what can be used of them.
        usable: studies with a usable sentence.
        refused: films that do not open.

    Returns:
        Per step `name`, `films` (None where the source has none), `studies`, `patients`.
    """
    if not raw.has_films:
        subjects = {study.study_id: study.subject_id for study in raw.studies}
        steps = {"in the source": subjects, "with text": chosen.subjects}
        steps["with usable sentences"] = {s: p for s, p in chosen.subjects.items() if s in usable}
        return [
            {"name": name, "films": None, "studies": len(kept), "patients": len(set(kept.values()))}
            for name, kept in steps.items()
        ]
    lost: dict[str, set[str]] = defaultdict(set)
    for item in chosen.rejects:
        lost[item.reason].add(item.id)
    films = list({film.image_id: film for film in raw.films}.values())
    views = set[str]().union(*(lost[reason] for reason in selection.VIEW_REASONS))
    frontal = [film for film in films if film.image_id not in views]
    absent = lost["missing_image"] | lost["pointer_file"]
    steps_of: dict[str, Sequence[Film]] = {
        "in the source": films,
        "frontal": frontal,
        "with a file": [film for film in frontal if film.image_id not in absent],
    }
    kept = chosen.films
    if raw.has_reports:
        steps_of["with text"] = kept
        kept = [film for film in kept if film.study_id in usable]
        steps_of["with usable sentences"] = kept
    steps_of["that opens"] = [film for film in kept if film.image_id not in refused]
    return [_step(name, part) for name, part in steps_of.items()]


def name_rejects(raw: RawStudies, chosen: Selection) -> list[Found]:
    """Name what the manifest leaves out; a film that goes with its report is named so.

    Args:
        raw: all rows of the source.
        chosen: what can be used of them.

    Returns:
        What was found.
    """
    study_of = {film.image_id: film.study_id for film in raw.films}
    blamed = {item.id for item in chosen.rejects if item.reason != "no_report"}
    return [
        Found("film_without_report", item.id)
        if item.reason == "no_report"
        and item.id in study_of
        and (study_of[item.id] != item.id or item.id in blamed)
        else Found(item.reason, item.id)
        for item in chosen.rejects
    ]


def find_repeats(keys: Mapping[str, str]) -> list[list[str]]:
    """Find what has the same key.

    Args:
        keys: id -> key; an empty key stands for nothing.

    Returns:
        Groups of two or more ids, each in order.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for item in sorted(keys):
        if keys[item]:
            groups[keys[item]].append(item)
    return [group for group in groups.values() if len(group) > 1]


def count_repeats(groups: Iterable[Sequence[str]], of: Belonging) -> dict[str, int]:
    """Count repeats.

    Args:
        groups: from `find_repeats`.
        of: to whom the ids belong.

    Returns:
        `groups`; `extra`, members beyond the first of each; and groups `across_patients`
        and `across_splits`.
    """
    found = list(groups)
    return {
        "groups": len(found),
        "extra": sum(len(group) - 1 for group in found),
        "across_patients": sum(len({of.subject_of[i] for i in group}) > 1 for group in found),
        "across_splits": sum(len({of.split_of[i] for i in group}) > 1 for group in found),
    }


def name_repeats(code: str, groups: Iterable[Sequence[str]]) -> list[Found]:
    """Name every member of a group but the first.

    Args:
        code: what they repeat.
        groups: from `find_repeats`.

    Returns:
        What was found.
    """
    return [Found(code, item, group[0]) for group in groups for item in group[1:]]


def across_splits(groups: Iterable[Sequence[str]], of: Belonging) -> list[Found]:
    """Name films whose picture lies in a split further from training, too.

    Args:
        groups: from `find_repeats`.
        of: to whom the ids belong.

    Returns:
        One for every film of such a group but the first, with a film of another split.
    """
    found = []
    for group in groups:
        for item in group[1:]:
            others = [other for other in group if of.split_of[other] != of.split_of[item]]
            if others:
                found.append(Found("pixels_across_splits", item, others[0]))
    return found


def find_leaks(splits: Mapping[str, Collection[str]], evaluated: Collection[str]) -> list[Found]:
    """Find patients whom the source puts on both sides of a split.

    Args:
        splits: patient -> every split that the source names for a film.
        evaluated: patients of the box table.

    Returns:
        What was found; `build_manifest` mends both kinds.
    """
    both = [Found("two_splits", who) for who, named in sorted(splits.items()) if len(named) > 1]
    boxed = [who for who in sorted(evaluated) if "train" in splits.get(who, ())]
    return both + [Found("boxed_training", who) for who in boxed]


def describe_films(rows: Sequence[Mapping[str, Any]]) -> Row:
    """Count what films are.

    Args:
        rows: rows of `artifacts.preflight.FILMS`.

    Returns:
        Films `looked` at, `opened`, `known` (their header or the gate told what they are),
        `inverted`; counts per format and per bit depth; least, middle and greatest height
        and width, pixels.
    """
    known = [row for row in rows if row["source"]]
    heights, widths = (sorted(row[name] for row in known) for name in ("height_px", "width_px"))
    return {
        "looked": len(rows),
        "opened": sum(row["opened"] for row in rows),
        "refused": sum(row["opened"] and row["code"] != "" for row in rows),
        "known": len(known),
        "inverted": sum(row["inverted"] for row in known),
        "formats": _counted(row["source"] for row in known),
        "bits": _counted(str(row["bits_stored"]) for row in known),
        "heights": [heights[0], heights[len(heights) // 2], heights[-1]] if known else [],
        "widths": [widths[0], widths[len(widths) // 2], widths[-1]] if known else [],
    }


def make_lines(found: Sequence[Found], of: Mapping[str, int], total: int) -> list[Row]:
    """Sum up what was found, gravest kind first.

    Args:
        found: everything.
        of: code -> how many were looked at.
        total: how many were looked at for every other code.

    Returns:
        Per code `code`, `kind`, `count` of distinct ids, `of` and `meaning`.
    """
    ids: dict[str, set[str]] = defaultdict(set)
    for item in found:
        ids[item.code].add(item.id)
    rows = [
        {
            "code": code,
            "kind": kind_of(code),
            "count": len(named),
            "of": of.get(code, total),
            "meaning": _meaning(code),
        }
        for code, named in ids.items()
    ]
    order = [LEAK, UNUSABLE, DUPLICATE, NOTE]
    return sorted(rows, key=lambda row: (order.index(row["kind"]), -row["count"], row["code"]))


def judge(chosen: Selection, films: Row, found: Sequence[Found], allowed: CheckConfig) -> Row:
    """Hold what was found against what is allowed.

    Args:
        chosen: what can be used of the source.
        films: from `describe_films`.
        found: everything.
        allowed: thresholds.

    Returns:
        `unusable_share` (rows lost by the manifest, and opened films of the rest that are refused),
        `duplicate_share`, `leaks`, their limits, and `clean`.
    """
    lost = chosen.lost / chosen.candidates if chosen.candidates else 1.0
    opened = films["opened"]
    refused = films["refused"] / opened if opened else 0.0
    repeats = sum(item.code == "same_pixels" for item in found)
    unusable = round(lost + (1 - lost) * refused, 6)
    duplicate = round(repeats / opened, 6) if opened else 0.0
    leaks = len({item for item in found if kind_of(item.code) == LEAK})
    return {
        "unusable_share": unusable,
        "max_unusable_share": allowed.max_unusable_share,
        "duplicate_share": duplicate,
        "max_duplicate_share": allowed.max_duplicate_share,
        "leaks": leaks,
        "max_leaks": allowed.max_leaks,
        "clean": unusable <= allowed.max_unusable_share
        and duplicate <= allowed.max_duplicate_share
        and leaks <= allowed.max_leaks,
    }


def kind_of(code: str) -> str:
    """Give the kind of a code.

    Args:
        code: a reason of manifest or gate, or a key of `CODES`.

    Returns:
        `leak`, `unusable`, `duplicate` or `note`.
    """
    if code in CODES:
        return CODES[code][0]
    return NOTE if code in selection.VIEW_REASONS else UNUSABLE


def _meaning(code: str) -> str:
    if code in CODES:
        return CODES[code][1]
    return selection.REASONS.get(code) or reasons.REASONS.get(code, "")


def _step(name: str, films: Sequence[Film]) -> Row:
    return {
        "name": name,
        "films": len(films),
        "studies": len({film.study_id for film in films}),
        "patients": len({film.subject_id for film in films}),
    }


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())
