"""An archive of 20,000 studies with planted faults: is each named and counted, and no more?

    python -m benchmarks.reliability.archive [--quick]

Draws a MIMIC-CXR-shaped tree with the release's own tables and a list of its faults,
then runs `build_manifest` and `check_data` on it as a user would. What they name is held
against the fault list and the truth of the tree, id by id: `missed` faults that nobody named,
`invented` ones that nobody planted. Leaks are patients in two splits of the manifest, and
patients with boxes in its training split. `--quick`: 2,000 studies.
"""

import csv
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import finish, is_quick, judge
from medclip_dcl.artifact import open_artifact
from medclip_dcl.data import manifest
from medclip_dcl.tables import read_table
from medclip_reporting import preflight
from medclip_reporting.preflight import read_preflight
from medclip_synthetic.settings import GenerateConfig
from medclip_synthetic.tree import BOX_TABLE, plan_patients
from testing.faults import Planted, read_fault_list, write_spoilt_tree
from testing.processes import spent_by

PATIENTS = {"quick": 1_480, "full": 14_800}
FAULTS = {"quick": 5, "full": 25}
SEED = 0
SIZE_PX = 64
_ZERO = ("manifest_missed", "manifest_invented", "check_missed", "check_invented")
BARS = dict.fromkeys((*_ZERO, "bit_depths_differ", "leaks"), "0")

Named = set[tuple[str, str]]
"""Code and id."""

_TEXT_FAULTS = {"missing_report", "pointer_report", "empty_report", "foreign_report"}
_GATE = {"truncated", "unknown_format", "constant", "burned_in"}
_CHECK_ALONE = _GATE | {"same_pixels", "two_splits", "boxed_training"}
"""Codes that no reject of the manifest bears."""


def write_config(work: Path) -> Path:
    """Write the config of the archive."""
    source = {"boxes": BOX_TABLE, "max_reject_share": 1.0}
    tree = {"work": str(work), "seed": SEED, "source": source}
    path = work / "archive.yaml"
    path.write_text(json.dumps(tree), encoding="utf-8")
    return path


def expected_rejects(planted: Sequence[Planted], images: Sequence[dict[str, str]]) -> Named:
    """Give reason and id of what the manifest must leave out.

    That is what was planted, every lateral image that was drawn, and the images of studies whose
    report is spoilt.
    """
    named = {(item.code, item.id) for item in planted if item.code not in _CHECK_ALONE}
    named |= {("lateral", row["dicom_id"]) for row in images if row["view"] == "LATERAL"}
    return named | {("no_report", image) for image in _images_without_report(planted, images)}


def expected_findings(
    planted: Sequence[Planted], images: Sequence[dict[str, str]], same_text: Iterable[str]
) -> Named:
    """Give code and id of what the check must find; `same_text` repeat an earlier study's text."""
    split_of = {row["dicom_id"]: row["split"] for row in images}
    named = {(item.code, item.id) for item in planted if item.code != "same_pixels"}
    for item in planted:
        if item.code == "same_pixels":
            later = max(item.image_id, item.other)
            named.add(("same_pixels", later))
            if split_of[item.image_id] != split_of[item.other]:
                named.add(("pixels_across_splits", later))
    named |= {("lateral", row["dicom_id"]) for row in images if row["view"] == "LATERAL"}
    gone = _images_without_report(planted, images)
    named |= {("image_without_report", image) for image in gone}
    closed = {p.image_id for p in planted if p.code in _GATE - {"constant"}}
    closed |= gone | {p.image_id for p in planted if p.fault in {"missing_image", "pointer_image"}}
    named |= {
        ("monochrome1", row["dicom_id"])
        for row in images
        if row["monochrome1"] == "1"
        and row["view"] in {"AP", "PA"}
        and row["dicom_id"] not in closed
    }
    return named | {("same_text", study) for study in same_text}


def studies_with_same_text(
    planted: Sequence[Planted], images: Sequence[dict[str, str]], usable: set[str], patients: int
) -> set[str]:
    """Find studies that repeat an earlier one's text, from the plan and not from the files.

    `usable` are those in the manifest; the first of each text is left out.
    """
    settings = GenerateConfig(patients=patients)
    texts = {
        study.study_id: " ".join(" ".join(study.report.sections.values()).split())
        for unit in plan_patients(settings)
        for patient in unit.patients(SEED, settings.validate_share)
        for study in patient.studies
    }
    study_of = {row["dicom_id"]: row["study_id"] for row in images}
    for item in planted:
        if item.other:
            texts[item.study_id] = texts[study_of[item.other]]
    groups: dict[str, list[str]] = defaultdict(list)
    for study in sorted(usable):
        groups[texts[study]].append(study)
    return {study for group in groups.values() for study in group[1:]}


def compare(work: Path, patients: int) -> tuple[dict[str, float], list[str]]:
    """Hold what both jobs named against the fault list and the truth.

    Gives figures, and the lines of a table: per code what was there and what was found.
    """
    planted = read_fault_list(work / "studies")
    with (work / "studies/truth/images.csv").open(encoding="utf-8", newline="") as stream:
        drawn_images = list(csv.DictReader(stream))
    images, reports, left_out = (
        read_table(manifest.ARTIFACT.at(work), form).to_pylist()
        for form in (manifest.IMAGES, manifest.REPORTS, manifest.REJECTS)
    )
    rejects = {(row["reason"], row["id"]) for row in left_out}
    artifact = open_artifact(preflight.ARTIFACT.at(work), preflight.ARTIFACT)
    table = read_table(artifact.path, preflight.FOUND).to_pylist()
    found = {(row["code"], row["id"]) for row in table}
    usable = {row["study_id"] for row in reports}
    same_text = studies_with_same_text(planted, drawn_images, usable, patients)
    wanted = expected_findings(planted, drawn_images, same_text)
    wanted_rejects = expected_rejects(planted, drawn_images)
    lines = [f"{'code':24}{'there':>8}{'found':>8}{'missed':>8}{'invented':>10}"]
    for code in sorted({code for code, _ in wanted | found}):
        there, seen = ({i for c, i in named if c == code} for named in (wanted, found))
        lines.append(
            f"{code:24}{len(there):8}{len(seen):8}{len(there - seen):8}{len(seen - there):10}"
        )
    tree = read_preflight(artifact)
    looked_at = read_table(artifact.path, preflight.IMAGES).to_pylist()
    opened = {row["image_id"] for row in looked_at if row["source"]}
    bits = Counter(row["bits_stored"] for row in drawn_images if row["dicom_id"] in opened)
    figures = {
        "studies": len({row["study_id"] for row in drawn_images}),
        "images": len(drawn_images),
        "planted": len(planted),
        "kinds_of_fault": len({item.fault for item in planted}),
        "manifest_missed": len(wanted_rejects - rejects),
        "manifest_invented": len(rejects - wanted_rejects),
        "check_missed": len(wanted - found),
        "check_invented": len(found - wanted),
        "bit_depths_differ": float(dict(bits) != tree["images"]["bits"]),
        "leaks": leaks(work, images, reports),
    }
    return figures, lines


def leaks(work: Path, images: Sequence[dict[str, Any]], reports: Sequence[dict[str, Any]]) -> int:
    """Count patients in two splits of the manifest, and patients of the box table that train."""
    splits: dict[str, set[str]] = defaultdict(set)
    for row in (*images, *reports):
        splits[row["subject_id"]].add(row["split"])
    with (work / "studies" / BOX_TABLE).open(encoding="utf-8", newline="") as stream:
        boxed = {row["path"].split("/")[2][1:] for row in csv.DictReader(stream)}
    both = sum(len(found) > 1 for found in splits.values())
    return both + sum("train" in splits[subject] for subject in boxed & splits.keys())


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the archive, run both jobs, print what they found; 1 where a job could not be run."""
    tier = "quick" if is_quick(argv) else "full"
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        config_file = write_config(work)
        settings = GenerateConfig(patients=PATIENTS[tier], size_px=SIZE_PX)
        write_spoilt_tree(work / "studies", settings, FAULTS[tier], SEED)
        for job, code in (("build_manifest", 0), ("check_data", 3)):
            command = [sys.executable, "-m", f"pipelines.{job}", "--config", str(config_file)]
            spent = spent_by(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if spent.code != code:
                print(f"{job} ended with exit code {spent.code}, not {code}", file=sys.stderr)
                return 1
            times |= {f"{job}_wall_s": spent.wall_s, f"{job}_cpu_s": spent.cpu_s}
        figures, lines = compare(work, PATIENTS[tier])
    print(*lines, sep="\n")
    figures |= times
    return finish("archive", figures, judge(figures, BARS))


def _images_without_report(
    planted: Sequence[Planted], images: Sequence[dict[str, str]]
) -> set[str]:
    spoilt = {item.study_id for item in planted if item.fault in _TEXT_FAULTS}
    return {
        row["dicom_id"]
        for row in images
        if row["study_id"] in spoilt and row["view"] in {"AP", "PA"}
    }


if __name__ == "__main__":
    sys.exit(main())
