"""Open-i's frontal images, reports and experts' labels, and five folds of its patients.

Every patient is tested in one fold. A fold is a run folder: its manifest, sentences, language
model, likelihoods and eta are of its own training patients; prepared images and claims are shared.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from medclip_dcl.data.sources.open_i import image_name
from pipelines.config import Config, load_config

HERE = Path(__file__).parent
FOLDS = 5
VALIDATE_SHARE = 0.1
"""Share of a fold's training patients that chose the step and the tuned values of earlier rows."""
_SEED = 20261123  # of the folds; no run draws with it


@dataclass(frozen=True)
class Patient:
    """A patient of Open-i, who has one report."""

    uid: str
    findings: str
    impression: str
    images: tuple[str, ...]
    """Paths of the frontal images, relative to the source's root."""
    gold: Mapping[str, bool]
    """The experts' labels of the report."""


def read_patients(root: Path) -> list[Patient]:
    """Read the patients who have a frontal image, in order of uid."""
    files = {image_name(file.name): f"images/{file.name}" for file in (root / "images").iterdir()}
    patients = []
    with (root / "reports.jsonl").open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            names = [image_name(item["filename"]) for item in row["images"]
                     if item["projection"] == "Frontal"]  # fmt: skip
            images = tuple(files[name] for name in names if name in files)
            gold = {name: value == 1 for name, value in row["gold"].items()}
            texts = (row["findings"] or "", row["impression"] or "")
            if images:
                patients.append(Patient(str(row["uid"]), *texts, images, gold))
    return sorted(patients, key=lambda patient: int(patient.uid))


def divide(patients: Sequence[Patient], shares: Sequence[float], seed: int) -> list[list[Patient]]:
    """Divide patients into parts of these shares, with as equal a share of every label as can be.

    The rarest label is dealt out first, each patient to the part that lacks most of that label.

    Source: Sechidis et al. 2011, iterative stratification.
    """
    rng = np.random.default_rng(seed)
    order = [patients[index] for index in rng.permutation(len(patients))]
    names = list(order[0].gold)
    shown = {name: [patient for patient in order if patient.gold[name]] for name in names}
    lacking = {
        name: np.array(shares) * len(having) for name, having in (shown | {"": order}).items()
    }
    parts: list[list[Patient]] = [[] for _ in shares]
    placed: set[str] = set()
    for name in [*sorted(names, key=lambda each: (len(shown[each]), each)), ""]:
        for patient in shown.get(name, order):
            if patient.uid in placed:
                continue
            part = max(range(len(shares)), key=lambda k: (lacking[name][k], lacking[""][k], -k))
            parts[part].append(patient)
            placed.add(patient.uid)
            for own in [label for label in names if patient.gold[label]] + [""]:
                lacking[own][part] -= 1
    return parts


@dataclass(frozen=True)
class Fold:
    """The run folder of a fold, and who is tested in it."""

    number: int
    folder: Path
    root: Path
    tested: tuple[Patient, ...]
    training: tuple[Patient, ...]
    validation: tuple[Patient, ...]
    style: str = ""
    """That in which the training reports are rewritten; empty: as they were written."""

    settings: tuple[str, ...] = ()
    """Settings of its artifacts in place of those of studies.yaml."""

    def rewritten(self, style: str, training: Sequence[Patient]) -> "Fold":
        """Make the same fold with other training reports, in a folder of its own."""
        return replace(self.varied(style), training=tuple(training), style=style)

    def varied(self, name: str, *settings: str) -> "Fold":
        """Make the same fold with other settings, in a folder of its own."""
        folder = self.folder.with_name(f"{self.folder.name}-{name}")
        return replace(self, folder=folder, settings=(*self.settings, *settings))

    @cached_property
    def gold_of(self) -> dict[str, Mapping[str, bool]]:
        """Uid -> the experts' labels, of all patients."""
        every = (*self.tested, *self.training, *self.validation)
        return {patient.uid: patient.gold for patient in every}

    def config(self, *overrides: str) -> Config:
        """Return the fold's config with some settings changed."""
        given = {
            "work": self.folder,
            "source.root": self.root,
            "source.table": self.folder / "studies.parquet",
            "evaluate.prompts": HERE / "prompts.yaml",
        }
        fixed = [f"{name}={path}" for name, path in given.items()]
        return load_config(HERE / "studies.yaml", [*fixed, *self.settings, *overrides])

    def write_table(self) -> None:
        """Write the fold's table, one row an image: ids, split and texts."""
        parts = {"test": self.tested, "train": self.training, "validate": self.validation}
        rows = [
            {
                "image_id": image_name(Path(path).name),
                "uid": patient.uid,
                "split": split,
                "path": path,
                "findings": patient.findings,
                "impression": patient.impression,
            }
            for split, part in parts.items()
            for patient in part
            for path in patient.images
        ]  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), self.folder / "studies.parquet")


def read_folds(root: Path, work: Path, patients: Sequence[Patient]) -> list[Fold]:
    """Divide the patients into folds; no folder is made."""
    parts = divide(patients, [1 / FOLDS] * FOLDS, _SEED)
    folds = []
    for number, tested in enumerate(parts):
        rest = [patient for part in parts if part is not tested for patient in part]
        validation, training = divide(
            rest, [VALIDATE_SHARE, 1 - VALIDATE_SHARE], _SEED + 1 + number
        )
        every = map(tuple, (tested, training, validation))
        folds.append(Fold(number, work / f"fold-{number}", root, *every))
    return folds
