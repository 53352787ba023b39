"""MIMIC-CXR's size without MIMIC-CXR: 230,000 generated reports, and 50,000 small DICOM files.

    python -m benchmarks.scale [--quick] [--work FOLDER] [--only KIND] [--into FILE]

Every stage runs as its own process, one after the other on one core: minutes of CPU and wall
time, peak memory of all its processes together, bytes on disk. Each size runs whole: 230,
23,000 and 230,000 reports, tables and texts alone; 50, 5,000 and 50,000 images. The smallest
says what a stage costs before its first row (imports, and the fixed steps of the language
model); a growth exponent compares the two others without it, 1 where twice the rows take twice
the CPU time. Where it is most of the second, as with `--quick`, no exponent is judged. Finished
stages are in FOLDER and are not repeated; a stage that was cut short starts again from nothing, so
that its time is whole.

`tables` are the stages of tables alone, at 23,000, 230,000 and 2,300,000 reports: those beyond the
23,000th are earlier ones under other ids, most with a sentence of their own, and likelihoods are
made up. `--into` adds the figures to a kept output, with their own date and commit.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import yaml

from benchmarks.record import finish, judge, keep_figures
from medclip_dcl.artifact import make_fingerprint, open_artifact
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.losses.relations import encode_claims, relation_matrix
from medclip_dcl.tables import read_table, write_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.labels import ReportLabels
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_synthetic.patients import NATURAL, GeneratedStudy, draw_patient
from medclip_synthetic.reports import study_labels

REPORTS, IMAGES = (230, 23_000, 230_000), (50, 5_000, 50_000)
TABLES = (23_000, 230_000, 2_300_000)
QUICK_REPORTS, QUICK_IMAGES, QUICK_TABLES = (23, 230, 2_300), (5, 50, 500), (230, 2_300, 23_000)
STAGES = {
    "reports": (
        *("draw", "build_manifest", "split_sentences", "read_claims"),
        *("fit_language_model", "score_sentences", "build_eta_cache", "relations"),
    ),
    "images": ("generate_studies", "build_manifest", "prepare_images"),
    "tables": (
        *("draw_again", "build_manifest", "split_sentences", "read_claims"),
        *("draw_likelihoods", "build_eta_cache"),
    ),
}
"""What runs at each size."""
BARS = {
    "growth_exponent": "<= 1.1",
    "tables_growth_exponent": "<= 1.1",
    "tables_peak_gib": "<= 3",
}

_OWN = ("draw", "draw_again", "draw_likelihoods", "relations")  # of this module, not a job
_MADE = {"draw", "draw_again", "draw_likelihoods", "generate_studies"}  # what others need
_DRAWN = 23_000  # studies that `draw_again` draws
_SEED = 19
_RARE = 0.6  # share of reports with a sentence that hardly another says
_BATCH, _BATCHES = 1024, 100
_SIDES = ("right", "left")
_SITES = ("apex", "base", "hilum", "costophrenic angle", "upper zone", "lower zone")
_THINGS = ("calcified granuloma", "nodular opacity", "rounded density", "linear scar")
_STUDY_SHARE = 1.5  # images a generated patient has on average, so many at least
_POLL_S = 0.5


class Measured(NamedTuple):
    """What one stage took at one size."""

    kind: str
    size: int
    stage: str
    cpu_s: float
    wall_s: float
    peak_gib: float
    disk_gib: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, or the exit code of a stage that failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("--quick", action="store_true", help="a hundredth of everything")
    parser.add_argument("--work", type=Path, default=Path("runs/scale"))
    parser.add_argument("--only", choices=tuple(STAGES), help="one kind alone")
    parser.add_argument("--into", type=Path, help="a kept output that gets the figures as well")
    parser.add_argument("--stage", choices=_OWN, help=argparse.SUPPRESS)
    parser.add_argument("--reports", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.stage:
        return _make(arguments.stage, arguments.work, arguments.reports)
    sizes = {"reports": REPORTS, "images": IMAGES, "tables": TABLES}
    if arguments.quick:
        sizes = {"reports": QUICK_REPORTS, "images": QUICK_IMAGES, "tables": QUICK_TABLES}
    if arguments.only:
        sizes = {arguments.only: sizes[arguments.only]}
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found: list[Measured] = []
    for kind, counts in sizes.items():
        for size in counts:
            folder = arguments.work.absolute() / f"{kind}_{size}"
            folder.mkdir(parents=True, exist_ok=True)
            for stage in STAGES[kind]:
                got = _measured(folder, kind, size, stage)
                if isinstance(got, int):
                    print(f"{stage} of {size} {kind} ended with code {got}; see {folder}/log.txt")
                    return got
                found.append(got)
                print(
                    f"{size:8} {kind:8} {stage:19} {got.cpu_s / 60:8.2f} min CPU "
                    f"{got.wall_s / 60:8.2f} wall {got.peak_gib:6.2f} GiB {got.disk_gib:7.3f} disk",
                    flush=True,
                )
    figures = growth_figures(found, sizes)
    if not any("growth" in name for name in figures):
        print("growth is not judged: at these sizes most of the time is the start of processes")
    judged = judge(figures, BARS)
    if arguments.into is not None:
        keep_figures(arguments.into, "scale", figures, judged)
    return finish("scale", figures, judged)


def _measured(folder: Path, kind: str, size: int, stage: str) -> Measured | int:
    note = folder / f"measured_{stage}.json"
    if note.is_file():
        return Measured(**json.loads(note.read_text(encoding="utf-8")))
    for leftover in (folder / "work").glob("*.draft*"):
        shutil.rmtree(leftover)
    before = _bytes(folder)
    wall = time.perf_counter()
    with (folder / "log.txt").open("ab") as log_file:
        process = subprocess.Popen(
            _command(folder, kind, size, stage),
            stdout=log_file,
            stderr=log_file,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        peak = _Peak(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - wall
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        return process.returncode
    got = Measured(
        *(kind, size, stage, usage.ru_utime + usage.ru_stime, wall),
        peak_gib=max(peak.stop(), usage.ru_maxrss * 1024) / 2**30,
        disk_gib=(_bytes(folder) - before) / 2**30,
    )
    note.write_text(json.dumps(got._asdict()), encoding="utf-8")
    return got


def _command(folder: Path, kind: str, size: int, stage: str) -> list[str]:
    if stage in _OWN:
        options = ["--stage", stage, "--reports", str(size), "--work", str(folder)]
        return [sys.executable, "-m", "benchmarks.scale", *options]
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(_config(folder, kind, size)), encoding="utf-8")
    return [sys.executable, "-m", "pipelines", stage, "--config", str(config)]


def _config(folder: Path, kind: str, size: int) -> dict[str, object]:
    tree: dict[str, object] = {"work": str(folder / "work")}
    if kind == "images":
        patients = {"patients": int(size / _STUDY_SHARE), "size_px": 64}
        return {**tree, "generate": patients, "images": {"size_px": 64}}
    columns = {"subject_id": "subject_id", "study_id": "study_id", "report": "report"}
    source = {
        "kind": "table",
        "root": str(folder),
        "table": "reports.csv",
        "columns": {**columns, "split": "split", "labels": {name: name for name in LABELS}},
    }
    model = {"hidden_size": 64, "layers": 2, "steps": 50}
    fit = {"eta": {"fit": "claims"}} if kind == "tables" else {}
    return {**tree, "source": source, "language_model": model, **fit}


class _Peak:
    """The most memory that a process and its children hold at a time, looked at now and then."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak, self._over = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._over.wait(_POLL_S):
            try:
                parent = psutil.Process(self._pid)
                family = [parent, *parent.children(recursive=True)]
                self._peak = max(self._peak, sum(item.memory_info().rss for item in family))
            except psutil.NoSuchProcess:
                continue


def growth_figures(
    found: Sequence[Measured], sizes: dict[str, tuple[int, int, int]]
) -> dict[str, float]:
    """Sum up the largest size; growth between the two larger, without what the smallest takes."""
    figures: dict[str, float] = {}
    for kind, (least, middle, most) in sizes.items():
        cpu = {(item.size, item.stage): item.cpu_s for item in found if item.kind == kind}
        own = [stage for stage in STAGES[kind] if stage not in _MADE]
        total = {size: sum(cpu[size, stage] for stage in own) for size in (least, middle, most)}
        largest = [
            item for item in found if (item.kind, item.size) == (kind, most) and item.stage in own
        ]
        figures[f"{kind}_cpu_min"] = total[most] / 60
        figures[f"{kind}_wall_min"] = sum(item.wall_s for item in largest) / 60
        figures[f"{kind}_peak_gib"] = max(item.peak_gib for item in largest)
        figures[f"{kind}_disk_gib"] = sum(item.disk_gib for item in largest)
        if _outgrows_start(total, least, middle):
            figures[f"{kind}_growth_exponent"] = _exponent(total, (least, middle, most))
        for stage in own:
            name = f"{kind}_{stage}"
            figures[f"{name}_cpu_s"] = cpu[most, stage]
            if kind == "tables":
                figures[f"{name}_peak_gib"] = next(
                    item.peak_gib for item in largest if item.stage == stage
                )
            of_stage = {size: cpu[size, stage] for size in (least, middle, most)}
            if _outgrows_start(of_stage, least, middle):
                figures[f"{name}_exponent"] = _exponent(of_stage, (least, middle, most))
    exponents = [figures.get(f"{kind}_growth_exponent") for kind in sizes]
    if len(sizes) == 1:
        return figures
    if None not in exponents:
        figures["growth_exponent"] = max(value for value in exponents if value is not None)
    figures["peak_gib"] = max(figures[f"{kind}_peak_gib"] for kind in sizes)
    return figures


def _outgrows_start(cpu: dict[int, float], least: int, middle: int) -> bool:
    # Else what is measured is the start of a process.
    return cpu[middle] > 2 * cpu[least]


def _exponent(cpu: dict[int, float], sizes: tuple[int, int, int]) -> float:
    least, middle, most = sizes
    grown = (cpu[most] - cpu[least]) / max(cpu[middle] - cpu[least], 1e-9)
    return log(max(grown, 1e-9)) / log(most / middle)


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _make(stage: str, folder: Path, reports: int) -> int:
    if stage == "draw_likelihoods":
        return _draw_likelihoods(folder)
    if stage == "relations":
        return _relations(folder)
    return _draw(folder, reports, _DRAWN if stage == "draw_again" else reports)


def _draw(folder: Path, reports: int, drawn: int) -> int:
    """Write a table of reports and labels; of the studies `drawn`, where there are to be more."""
    ids = ["subject_id", "study_id", "split"]
    with (folder / "reports.csv").open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow([*ids, "report", *LABELS])
        rng = np.random.default_rng(_SEED)
        studies = [
            (
                *(subject, study.study_id, split, study.text.rstrip()),
                *(study_labels(study.report).get(name, "") for name in LABELS),
            )
            for subject, split, study in islice(_studies(), min(reports, drawn))
        ]
        for number in range(reports):
            again, row = divmod(number, len(studies))
            subject, study, split, text, *found = studies[row]
            rare = f"  {_rare(rng)}" if rng.random() < _RARE else ""
            other = f"-{again}" if again else ""
            table.writerow([subject + other, study + other, split, f"{text}{rare}\n", *found])
    return 0


def _studies() -> Iterator[tuple[str, str, GeneratedStudy]]:
    number = 0
    while True:
        patient = draw_patient(NATURAL, number, _SEED)
        for study in patient.studies:
            yield patient.subject_id, patient.split, study
        number += 1


def _rare(rng: np.random.Generator) -> str:
    """Say something that few reports say: generated sentences repeat far more than real ones."""
    thing, site = rng.choice(_THINGS), rng.choice(_SITES)
    wide, high, rib = rng.integers(3, 60), rng.integers(3, 60), rng.integers(1, 13)
    place = f"{rng.choice(_SIDES)} {site}"
    return f"A {thing} of {wide} x {high} mm projects over the {place} at rib {rib}."


def _draw_likelihoods(folder: Path) -> int:
    """Make up a likelihood of every sentence."""
    from medclip_dcl.likelihood import scoring  # transformers: this process would grow by them

    work, kind = folder / "work", scoring.ARTIFACT
    source = open_artifact(sentences.ARTIFACT.at(work), sentences.ARTIFACT)
    distinct = sentences.distinct_sentences(source)
    rng = np.random.default_rng(_SEED)
    columns = {
        "pll_nats": pa.array(-rng.gamma(4, 4, len(distinct))),
        "tokens": pa.array(np.full(len(distinct), 20)),
    }
    rows = distinct.select(["text_key", "count"])
    for name, values in columns.items():
        rows = rows.append_column(name, values)
    fingerprint = make_fingerprint(kind, {}, {"sentences": source})
    with write_artifact(kind.at(work), kind, fingerprint) as writer:
        write_table(writer.directory, scoring.LIKELIHOODS, rows)
        writer.commit({})
    return 0


def _relations(folder: Path) -> int:
    """Encode what every sentence and report says, and relate batches of them."""
    path = labels.ARTIFACT.at(folder / "work")
    said, reports = (
        encode_claims([ReportLabels.from_row(row) for row in read_table(path, form).to_pylist()])
        for form in (labels.SENTENCE_CLAIMS, labels.REPORT_CLAIMS)
    )
    rng = np.random.default_rng(_SEED)
    start = time.process_time()
    for _ in range(_BATCHES):
        relation_matrix(
            said[rng.integers(len(said), size=_BATCH)],
            reports[rng.integers(len(reports), size=_BATCH)],
        )
    spent = (time.process_time() - start) / _BATCHES
    print(f"relations of {_BATCH} x {_BATCH}: {1e3 * spent:.1f} ms CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
