"""Reading of claims against the labels of real reports (Open-i), and its speed.

The labels are people's (Demner-Fushman et al. 2016), per report: NIH's 14 findings, and
`normal`. The reports are halved by a hash of their ids. Rules and words are written on
the errors in the development half alone, the only one that is read unless `--held-out` asks
for the other. A finding is read at the level of our own concepts, which are as fine as
the labels, and once more as CheXpert's names, where mass and nodule are one and a
nodular opacity or an infection counts. Reports that nobody indexed have no label, which the
labels count as nothing found; the mean is given without them as well.

Ways of speaking that those reports lack, such as limits of technique, indications and
things removed, are in a table of sentences by kind (tests/medclip_dcl/text/labeler).
Sentences of `medclip_dcl.synthetic` come with their meaning, and no rule was written on them.
"""

import argparse
import csv
import functools
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import precision_recall_fscore_support

from benchmarks.record import finish, judge
from medclip_dcl.synthetic.reports import TYPES, Statement, draw_findings, draw_report
from medclip_dcl.text.labeler.labels import (
    Reading,
    ReportLabels,
    read_claims,
    read_report,
    report_labels_of,
)
from medclip_dcl.text.labeler.lexicon import MIDLINE
from medclip_dcl.text.labeler.phrases import Polarity

_SAME = ("Atelectasis", "Cardiomegaly", "Effusion", "Mass", "Pneumonia", "Pneumothorax")
_SAME += ("Consolidation", "Edema", "Emphysema", "Fibrosis", "Hernia")
CONCEPTS_OF = {name: {name} for name in _SAME} | {
    "Infiltration": {"Infiltrate"},
    "Nodule": {"Nodule", "Calcified Nodule"},
    "Pleural_Thickening": {"Pleural Thickening"},
}
"""Name in the labels -> our concepts."""

CONCEPTS_OF_HEADING = {
    "Airspace Disease": {"Opacity"},
    "Cardiomegaly": {"Cardiomegaly"},
    "Cicatrix": {"Opacity"},
    "Consolidation": {"Consolidation"},
    "Density": {"Opacity", "Nodular Opacity"},
    "Fractures, Bone": {"Fracture"},
    "Infiltrate": {"Infiltrate"},
    "Mass": {"Mass"},
    "Nodule": {"Nodule", "Nodular Opacity"},
    "Opacity": {"Opacity", "Nodular Opacity"},
    "Pleural Effusion": {"Effusion"},
    "Pneumonia": {"Pneumonia"},
    "Pneumothorax": {"Pneumothorax"},
    "Pulmonary Atelectasis": {"Atelectasis"},
    "Pulmonary Edema": {"Edema"},
    "Thickening": {"Pleural Thickening"},
}
"""Heading of the indexers -> our concepts. They name place and size: `Opacity/lung/base/left`."""

SIDES = {"left": {"left"}, "right": {"right"}, "bilateral": {"left", "right"}}
"""The indexers' word -> ours."""

_SAME_FINDING = ("Atelectasis", "Cardiomegaly", "Pneumonia", "Pneumothorax", "Consolidation")
FINDING_OF = {name: (name,) for name in (*_SAME_FINDING, "Edema")} | {
    "Pleural Effusion": ("Effusion",),
    "Lung Lesion": ("Mass", "Nodule"),
    "Pleural Other": ("Pleural_Thickening",),
}
"""CheXpert's name -> names in the labels; the other four have no counterpart there."""

SHORT = {
    "Atelectasis": "ate",
    "Cardiomegaly": "car",
    "Consolidation": "con",
    "Edema": "ede",
    "Enlarged Cardiomediastinum": "ecm",
    "Fracture": "fra",
    "Lung Lesion": "les",
    "Lung Opacity": "opa",
    "Pleural Effusion": "eff",
    "Pleural Other": "plo",
    "Pneumonia": "pna",
    "Pneumothorax": "ptx",
    "Support Devices": "dev",
}
"""Finding -> its name in the table of sentences."""

SENTENCES = Path(__file__).parents[2] / "tests/medclip_dcl/text/labeler/sentences.csv"
GENERATED_STUDIES = 1500
FEWEST_POSITIVES = 20
BARS = {"macro_f1": ">= 0.80", "macro_f1 concepts held out": ">= 0.94"}

Pairs = Sequence[tuple[Set[str], Set[str]]]


class Score(NamedTuple):
    """How well a finding is read over reports."""

    positives: int
    precision: float
    recall: float
    f1: float

    def __str__(self) -> str:
        return f"{self.positives:9d}{self.precision:11.3f}{self.recall:8.3f}{self.f1:6.3f}"


def is_development(report: dict[str, Any]) -> bool:
    """Whether a report is of the half that rules may be written on."""
    return hashlib.sha256(str(report["uid"]).encode()).digest()[0] < 128


def text_of(report: dict[str, Any]) -> str:
    return "\n\n".join(filter(None, (report["findings"], report["impression"])))


def concepts_found(reading: Reading) -> Set[str]:
    """The names of the labels that a report's mentions assert, and `normal`."""
    asserted = {item.concept for item in reading.mentions if item.polarity is Polarity.ASSERTED}
    names = {name for name, concepts in CONCEPTS_OF.items() if concepts & asserted}
    return names | {"normal"} if report_labels_of([reading]).normal else names


def findings_found(reading: Reading) -> Set[str]:
    return report_labels_of([reading]).asserted.keys()


def labels_of(report: dict[str, Any]) -> Set[str]:
    return {name for name, value in report["gold"].items() if value}


def findings_of(report: dict[str, Any]) -> Set[str]:
    return {name for name, parts in FINDING_OF.items() if labels_of(report) & set(parts)}


def score(found: np.ndarray, true: np.ndarray) -> Score:
    *shares, _ = precision_recall_fscore_support(true, found, average="binary", zero_division=0.0)
    return Score(int(true.sum()), *map(float, shares))


def holds(sides: Iterable[Set[str]], names: Sequence[str]) -> np.ndarray:
    """Whether each set holds each name, (sets, names)."""
    return np.array([[name in side for name in names] for side in sides])


def score_names(pairs: Pairs, names: Sequence[str]) -> dict[str, Score]:
    """Score each name over pairs of what was found and what is true."""
    found, true = (holds(sides, names) for sides in zip(*pairs, strict=True))
    return {name: score(found[:, at], true[:, at]) for at, name in enumerate(names)}


def macro_f1(scores: dict[str, Score], judged: Sequence[str]) -> float:
    return sum(scores[name].f1 for name in judged) / len(judged)


def notation(claims: ReportLabels) -> set[str]:
    """`+eff:lr` asserted on both sides, `-eff` negated, `?eff` hedged, `normal`."""
    said = {f"-{SHORT[name]}" for name in claims.negated}
    said |= {f"?{SHORT[name]}" for name in claims.uncertain}
    for name, sides in claims.asserted.items():
        letters = "".join(sorted(side[0] for side in sides))
        said.add(f"+{SHORT[name]}:{letters}" if letters else f"+{SHORT[name]}")
    return said | ({"normal"} if claims.normal else set())


def measure_kinds() -> dict[str, float]:
    """Print how many sentences of each kind are read as the table expects, claims and sides.

    Rules were written for the part `rules`; `fresh` was composed afterwards and tuned on never.
    """
    total, right = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in csv.DictReader(SENTENCES.read_text(encoding="utf-8").splitlines()):
        is_right = notation(read_claims(row["sentence"])) == set(row["claims"].split())
        for kind in (row["kind"], "all kinds"):
            total[kind, row["part"]] += 1
            right[kind, row["part"]] += is_right
    print(f"\n{'sentences by kind':30}{'rules':>16}{'fresh':>16}")
    for kind in dict.fromkeys(kind for kind, _ in total):
        cells = (f"{right[kind, part]} of {total[kind, part]}" for part in ("rules", "fresh"))
        print(f"{kind:30}" + "".join(f"{cell:>16}" for cell in cells))
    return {f"right {kind} {part}": right[kind, part] / n for (kind, part), n in total.items()}


def measure_generated(studies: int) -> dict[str, float]:
    """Print how many distinct generated sentences of each kind are read as they are meant."""
    said: dict[str, dict[str, Statement]] = {}
    for seed in range(studies):
        rng = np.random.default_rng(seed)
        _, statements = draw_report(draw_findings(rng), "AP", rng)
        for statement in statements:
            said.setdefault(statement.kind, {})[statement.text] = statement
    figures = {}
    print(f"\n{'generated sentences by kind':30}{'distinct':>16}{'read as meant':>16}")
    for kind in sorted(said.keys() - {"normal"}):
        right = [reads_as_meant(statement) for statement in said[kind].values()]
        print(f"{kind:30}{len(right):16d}{np.mean(right):16.3f}")
        figures |= {f"generated {kind}": len(right), f"generated right {kind}": np.mean(right)}
    return figures


def reads_as_meant(statement: Statement) -> bool:
    """Whether polarity, findings and sides are those of the meaning, and nothing else is said.

    A type of finding may be read as any of its labels: an opacity, for one, as
    `Pneumonia`, `Lung Opacity` or `Consolidation`, a granuloma as nothing.
    """
    meaning, claims = statement.meaning, read_claims(statement.text)
    read = {
        "asserted": set(claims.asserted),
        "negated": set(claims.negated),
        "uncertain": set(claims.uncertain),
    }
    kind = "uncertain" if meaning.uncertain else "asserted"
    kind = "negated" if meaning.negated else kind
    claim = meaning.asserted
    types = [claim.type] if claim else [*meaning.negated]
    allowed = {label for name in types for label in TYPES[name].labels}
    allowed |= {"Consolidation"} if "pneumonia" in types else set()
    named = any(TYPES[name].labels for name in types)
    sides = {claim.side} if claim and claim.side else set()
    return (
        read[kind] <= allowed
        and (bool(read[kind]) == named or types == ["granuloma"])
        and not any(names for other, names in read.items() if other != kind)
        and all(found == sides or name in MIDLINE for name, found in claims.asserted.items())
    )


reading = functools.cache(read_report)
"""A report is in several tables."""


def measure_sides(part: str, reports: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Print how well sides of what both assert agree with the indexers'."""
    pairs = []
    for report in reports:
        asserted = [
            item for item in reading(text_of(report)).mentions if item.polarity is Polarity.ASSERTED
        ]
        for concepts, true in indexed(report, SIDES).items():
            same = [item for item in asserted if item.concept in concepts]
            pairs += [({name for item in same for name in item.sides}, true)] if same else []
    found, true = (holds(sides, ("left", "right")).ravel() for sides in zip(*pairs, strict=True))
    together = score(found, true)
    print(f"\n{f'side, {part}':30}{together}")
    return {f"f1 side {part}": together.f1}


def indexed(
    report: dict[str, Any], words: Mapping[str, Set[str]]
) -> dict[frozenset[str], Set[str]]:
    """Our concepts of each heading of a report -> what its qualifiers say, by `words`."""
    found: dict[frozenset[str], Set[str]] = {}
    for entry in report["mesh"]:
        heading, *qualifiers = entry.split("/")
        if heading in CONCEPTS_OF_HEADING:
            concepts = frozenset(CONCEPTS_OF_HEADING[heading])
            said = {name for word in qualifiers for name in words.get(word, ())}
            found[concepts] = found.get(concepts, set()) | said
    return found


def sentences_per_second(reports: Sequence[dict[str, Any]]) -> float:
    sentences = [part for report in reports for part in text_of(report).split(". ")]
    start = time.process_time()
    for sentence in sentences:
        read_claims(sentence)
    return len(sentences) / (time.process_time() - start)


def print_table(title: str, scores: dict[str, Score], judged: Sequence[str]) -> None:
    print(f"\n{title:30}        n  precision  recall    F1")
    for name, found in scores.items():
        print(f"{name + ('' if name in judged else ' *'):30}{found}")
    print(f"{'macro F1':30}{macro_f1(scores, judged):34.3f}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.method.labeler", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="the same: it takes seconds")
    parser.add_argument("--held-out", action="store_true", help="the held-out half and all as well")
    arguments = parser.parse_args(argv)
    folder = os.environ.get("TEST_DATA", "")
    if not folder:
        print("TEST_DATA is not set; export the folder that holds openi/", file=sys.stderr)
        return 1
    lines = (Path(folder) / "openi" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [json.loads(line) for line in lines]
    parts = {"development": [is_development(report) for report in reports]}
    if arguments.held_out:
        parts["held out"] = [not chosen for chosen in parts["development"]]
        parts["all"] = [True] * len(reports)
    figures = measure_kinds() | measure_generated(GENERATED_STUDIES)
    for part, chosen in parts.items():
        chosen_reports = list(compress(reports, chosen))
        figures |= measure(part, chosen_reports, reports)
        figures |= measure_sides(part, chosen_reports)
    print(f"* fewer than {FEWEST_POSITIVES} positives in all reports: not in the mean")
    figures["macro_f1"] = figures[f"macro_f1 concepts {part}"]
    figures["sentences_per_s"] = sentences_per_second(reports)
    print(f"{figures['sentences_per_s']:.0f} sentences a second on one core")
    bars = judge({name: figures[name] for name in BARS if name in figures}, BARS)
    return finish("labeler", figures, bars)


def measure(
    part: str, reports: Sequence[dict[str, Any]], every: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """Print the tables of one part of the reports, and give their figures by name."""
    readings = [reading(text_of(report)) for report in reports]
    figures: dict[str, float] = {f"reports {part}": len(reports)}
    for level, names, read, truth in (
        ("concepts", [*CONCEPTS_OF, "normal"], concepts_found, labels_of),
        ("findings", list(FINDING_OF), findings_found, findings_of),
    ):
        pairs = [(read(one), truth(report)) for one, report in zip(readings, reports, strict=True)]
        scores = score_names(pairs, names)
        positives = Counter(name for report in every for name in truth(report))
        judged = [name for name in names if positives[name] >= FEWEST_POSITIVES]
        print_table(f"{level}, {part}", scores, judged)
        figures[f"macro_f1 {level} {part}"] = macro_f1(scores, judged)
        with_labels = [report["mesh"] != ["No Indexing"] for report in reports]
        of_indexed = macro_f1(score_names(list(compress(pairs, with_labels)), names), judged)
        print(f"{f'macro F1 of the {sum(with_labels)} with labels':30}{of_indexed:34.3f}")
        figures[f"macro_f1 {level} {part} indexed"] = of_indexed
        for name, counts in scores.items():
            for kind in ("precision", "recall", "f1"):
                figures[f"{kind} {level} {part} {name}"] = getattr(counts, kind)
    return figures


if __name__ == "__main__":
    sys.exit(main())
