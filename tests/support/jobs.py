"""Stages run on a work folder as its owner runs them, and what they leave in it.

One can be evaluated: a tiny corpus with labels and boxes, and a tiny model.
"""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from medclip_dcl.core.artifact import ArtifactType
from medclip_dcl.core.tables import TableFormat, read_table
from pipelines.__main__ import main
from tests.support.corpus import made, write_config, write_corpus
from tests.support.processes import options
from tests.support.published import PROMPTS, publish
from tests.support.tiny_models import random_images

REPORTS = (
    "No pleural effusion is seen. The heart is normal in size.",
    "There is a left pleural effusion. The heart is enlarged.",
    "The lungs are clear. There is no pneumothorax or effusion.",
)


def config_for(work: Path, **sections: Any) -> Path:
    """Write the config of a work folder next to it."""
    path = work.with_name(f"{work.name}.yaml")
    path.write_text(yaml.safe_dump({"work": str(work), **sections}), encoding="utf-8")
    return path


def run(stage: str, work: Path, *settings: str, code: int = 0, force: bool = False) -> None:
    """Run a stage by that config; every setting is `key=value`."""
    words = ["--config", str(work.with_name(f"{work.name}.yaml")), *options(settings)]
    assert main([stage, *words, *["--force"] * force]) == code


def rows(work: Path, kind: ArtifactType, form: TableFormat) -> list[dict[str, Any]]:
    return read_table(made(work, kind).path, form).to_pylist()


def write_studies(table: Path, count: int, first: int = 0, *, has_reports: bool = True) -> None:
    """Write a table of as many images as patients, next to them: `first` is the first's number.

    Columns: patient, file, report, effusion, wide heart; every third image has both findings.
    """
    (table.parent / "images").mkdir(exist_ok=True)
    with table.open("w", newline="", encoding="utf-8") as stream:
        lines = csv.writer(stream)
        lines.writerow(["patient", "file", *["report"] * has_reports, "effusion", "wide heart"])
        for number, pixels in enumerate(random_images(count, 72, seed=first), first):
            Image.fromarray(pixels).save(table.parent / f"images/{number}.png")
            report = [f"{REPORTS[number % 3]} Study {number % 40}."] * has_reports
            truth = int(number % 3 == 1)
            lines.writerow([f"p{number}", f"images/{number}.png", *report, truth, truth])


def write_evaluated(work: Path, subjects: Iterable[str] = ("elsewhere",), **corpus: Any) -> Path:
    """Write a corpus of 40 studies, 8 of them for testing, and a model with offsets.

    The model says that it was trained on `subjects`; `corpus` is for `write_corpus`. No test
    image has an effusion, one of the two findings.
    """
    write_corpus(work, **{"with_truth": True, **corpus})
    publish(work / "model", subjects, bank=random_images(8, 64))
    (work / "prompts.yaml").write_text(f"format_version: 1\nfindings: {PROMPTS}\n")
    return work


def run_here(stage: str, work: Path, *settings: str, code: int = 0, **sections: Any) -> Path:
    """Run a stage on a folder of `write_evaluated`; every setting is `key=value`."""
    tree: dict[str, Any] = {
        "evaluate": {"bootstrap": 20, "prompts": str(work / "prompts.yaml")},
        "probabilities": {"least_per_class": 2},
        "source": {"root": str(work)},
    }
    for name, section in sections.items():
        tree[name] = tree.get(name, {}) | section
    write_config(work.with_name(f"{work.name}.yaml"), work, **tree)
    run(stage, work, *settings, code=code)
    return work
