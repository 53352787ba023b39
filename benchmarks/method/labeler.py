"""Reading of claims against the labels of real reports (Open-i), and its speed.

The labels are people's (Demner-Fushman et al. 2016), per report: NIH's 14 findings, and
`normal`. Rules and words were tuned on the errors in one half of the reports, chosen by
a hash of the report's id; of the other half some fifty texts were seen before that, and
its counts were printed next to them. A finding is read at the level of our own concepts, which
are as fine as the labels, and once more as CheXpert's names, where mass and nodule are
one and a nodular opacity or an infection counts.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence, Set
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.record import finish
from medclip_dcl.text.labeler.labels import Reading, read_claims, read_report, report_labels_of
from medclip_dcl.text.labeler.phrases import Polarity

CONCEPT_OF = {
    "Atelectasis": "Atelectasis",
    "Cardiomegaly": "Cardiomegaly",
    "Effusion": "Effusion",
    "Infiltration": "Infiltrate",
    "Mass": "Mass",
    "Nodule": "Nodule",
    "Pneumonia": "Pneumonia",
    "Pneumothorax": "Pneumothorax",
    "Consolidation": "Consolidation",
    "Edema": "Edema",
    "Emphysema": "Emphysema",
    "Fibrosis": "Fibrosis",
    "Pleural_Thickening": "Pleural Thickening",
    "Hernia": "Hernia",
}
"""Name in the labels -> our concept."""

FINDING_OF = {
    "Atelectasis": ("Atelectasis",),
    "Cardiomegaly": ("Cardiomegaly",),
    "Pleural Effusion": ("Effusion",),
    "Lung Lesion": ("Mass", "Nodule"),
    "Pneumonia": ("Pneumonia",),
    "Pneumothorax": ("Pneumothorax",),
    "Consolidation": ("Consolidation",),
    "Edema": ("Edema",),
    "Pleural Other": ("Pleural_Thickening",),
}
"""CheXpert's name -> names in the labels; the other four have no counterpart there."""

FEWEST_POSITIVES = 20
MACRO_BAR = 0.80


class Score(NamedTuple):
    """Counts of one finding over reports."""

    hits: int
    false_alarms: int
    misses: int

    @property
    def positives(self) -> int:
        """Reports that have the finding."""
        return self.hits + self.misses

    @property
    def precision(self) -> float:
        """Share of the reports read as having it that do."""
        return self.hits / max(1, self.hits + self.false_alarms)

    @property
    def recall(self) -> float:
        """Share of the reports that have it that are read so."""
        return self.hits / max(1, self.positives)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.hits / max(1, 2 * self.hits + self.false_alarms + self.misses)


def is_development(report: dict[str, Any]) -> bool:
    """Whether a report is of the half that the rules were written on."""
    return hashlib.sha256(str(report["uid"]).encode()).digest()[0] < 128


def text_of(report: dict[str, Any]) -> str:
    return "\n\n".join(filter(None, (report["findings"], report["impression"])))


def concepts_found(reading: Reading) -> Set[str]:
    """The names of the labels that a report's mentions assert, and `normal`."""
    asserted = {item.concept for item in reading.mentions if item.polarity is Polarity.ASSERTED}
    names = {name for name, concept in CONCEPT_OF.items() if concept in asserted}
    return names | {"normal"} if report_labels_of([reading]).normal else names


def findings_found(reading: Reading) -> Set[str]:
    return report_labels_of([reading]).asserted.keys()


def labels_of(report: dict[str, Any]) -> Set[str]:
    return {name for name, value in report["gold"].items() if value}


def findings_of(report: dict[str, Any]) -> Set[str]:
    return {name for name, parts in FINDING_OF.items() if labels_of(report) & set(parts)}


def score(pairs: Sequence[tuple[Set[str], Set[str]]], names: Sequence[str]) -> dict[str, Score]:
    """Count, over pairs of what was found and what is true."""
    return {
        name: Score(
            sum(name in found and name in true for found, true in pairs),
            sum(name in found and name not in true for found, true in pairs),
            sum(name not in found and name in true for found, true in pairs),
        )
        for name in names
    }


def macro_f1(scores: dict[str, Score], judged: Sequence[str]) -> float:
    return sum(scores[name].f1 for name in judged) / len(judged)


def sentences_per_second(reports: Sequence[dict[str, Any]]) -> float:
    sentences = [part for report in reports for part in text_of(report).split(". ")]
    start = time.process_time()
    for sentence in sentences:
        read_claims(sentence)
    return len(sentences) / (time.process_time() - start)


def print_table(title: str, halves: dict[str, dict[str, Score]], judged: Sequence[str]) -> None:
    print(f"\n{title:22}" + "".join(f"{half:>34}" for half in halves))
    print(" " * 22 + "        n  precision  recall    F1" * len(halves))
    for name in next(iter(halves.values())):
        cells = (scores[name] for scores in halves.values())
        row = "".join(
            f"{c.positives:9d}{c.precision:11.3f}{c.recall:8.3f}{c.f1:6.3f}" for c in cells
        )
        print(f"{name + ('' if name in judged else ' *'):22}{row}")
    means = "".join(f"{macro_f1(scores, judged):34.3f}" for scores in halves.values())
    print(f"{'macro F1':22}{means}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.method.labeler", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="the same: it takes seconds")
    parser.parse_args(argv)
    folder = os.environ.get("TEST_DATA", "")
    if not folder:
        print("TEST_DATA is not set; export the folder that holds openi/", file=sys.stderr)
        return 1
    lines = (Path(folder) / "openi" / "reports.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [json.loads(line) for line in lines]
    readings = [read_report(text_of(report)) for report in reports]
    parts = {
        "development": [is_development(report) for report in reports],
        "held out": [not is_development(report) for report in reports],
        "all": [True] * len(reports),
    }
    figures: dict[str, float] = {"reports": len(reports)}
    for level, names, read, truth in (
        ("concepts", [*CONCEPT_OF, "normal"], concepts_found, labels_of),
        ("findings", list(FINDING_OF), findings_found, findings_of),
    ):
        pairs = [
            (read(reading), truth(report))
            for reading, report in zip(readings, reports, strict=True)
        ]
        halves = {
            part: score(list(compress(pairs, chosen)), names) for part, chosen in parts.items()
        }
        judged = [name for name in names if halves["all"][name].positives >= FEWEST_POSITIVES]
        print_table(level, halves, judged)
        for part, scores in halves.items():
            figures[f"macro_f1 {level} {part}"] = macro_f1(scores, judged)
        figures |= {f"f1 {level} {name}": value.f1 for name, value in halves["all"].items()}
    print(f"* fewer than {FEWEST_POSITIVES} positives: not in the mean")
    figures["macro_f1"] = figures["macro_f1 concepts all"]
    figures["sentences_per_s"] = sentences_per_second(reports)
    print(f"{figures['sentences_per_s']:.0f} sentences a second on one core")
    met = figures["macro_f1"] >= MACRO_BAR
    return finish("claims", figures, {"macro_f1": (f">= {MACRO_BAR:.2f}", met)})


if __name__ == "__main__":
    sys.exit(main())
