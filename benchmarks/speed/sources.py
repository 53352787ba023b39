"""Studies from Parquet, Arrow and `datasets` against the same studies from files.

    python -m benchmarks.speed.sources [--quick] [--gb GB]

The images of `covid_cxr` are written as Parquet with bytes, lists and boxes, the reports of
`openi` by `save_to_disk`: manifests and prepared pixels must be those of the files. Reading is
timed in turn, in CPU time of all processes. Memory is the peak of a process of its own that reads
10,000 and 100,000 generated rows, and of one that copies generated Parquet into Arrow (1 GB, 10
without `--quick`).
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.record import finish, judge
from medclip_dcl.data import manifest
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.manifest import write_manifest
from medclip_dcl.data.prepared import ListedImage, prepare_images
from medclip_dcl.data.row_images import image_source, row_name
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.tables import read_table
from medclip_sources.readers import images_root, read_source
from pipelines.config import load_config
from testing.processes import memory_mib

BARS = {"parquet_speed": ">= 0.9", "arrow_speed": ">= 0.9"}
BARS |= {"copy_peak_mib": "<= 500", "rows_growth_mib": "<= 50"}
_TIMES = 4  # that every image is read in a round, so that starting a worker counts for little
_ROW_BYTES, _IMAGE_BYTES, _GROUP = 4096, 1 << 20, 32
_TABLES = (manifest.IMAGES, manifest.REPORTS, manifest.STUDY_LABELS, manifest.BOXES)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, whether or not a bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.sources")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, 1 GB")
    parser.add_argument("--gb", type=float, help="how much is copied")
    parser.add_argument("--child", nargs=3, metavar=("WORK", "FOLDER", "ROWS"))
    parser.add_argument("--folder", type=Path, help="where the generated files go for a while")
    options = parser.parse_args(argv)
    if options.child:
        work, folder, rows = options.child
        (_copy if work == "copy" else _read)(Path(folder), int(rows))
        print(memory_mib("VmHWM"))
        return 0
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        if os.environ.get("TEST_DATA"):
            figures |= real(folder, 3 if options.quick else 9)
        figures |= memory(folder, options.gb or (1 if options.quick else 10))
    bars = judge(figures, BARS | {key: "= 0" for key in figures if key.endswith("_differ")})
    return finish("sources", figures, bars)


def real(folder: Path, rounds: int) -> dict[str, float]:
    """Compare `covid_cxr` and `openi` with their files, and time the first."""
    covid = load_config(Path("configs/covid_cxr.yaml")).source
    parquet = covid_as_rows(covid, folder / "parquet")
    arrow = parquet.model_copy(update={"kind": "huggingface", "table": "", "materialise": True})
    given = {"files": covid, "parquet": parquet, "arrow": arrow}
    found, differ = {}, 0
    for name, settings in given.items():
        found[name] = made(folder / name, settings)
        differ += rows_differ(found["files"], found[name])
    times: dict[str, list[float]] = {name: [] for name in given}
    for turn in range(rounds):
        for name in given:
            times[name].append(_prepare(folder / name, found[name], turn))
    shards = [(folder / name / "prepared-0/shard-00000.arrow").read_bytes() for name in given]
    differ += sum(shard != shards[0] for shard in shards)
    speed = {name: statistics.median(values) for name, values in times.items()}
    openi = load_config(Path("configs/openi.yaml")).source
    saved = openi_as_dataset(openi, folder / "openi")
    pair = [made(folder / name, settings) for name, settings in (("o", openi), ("s", saved))]
    return {
        "images": float(len(found["files"][1])),
        "images_differ": float(differ),
        "openi_reports": float(pair[0][0][manifest.REPORTS.file].num_rows),
        "openi_differ": float(rows_differ(*pair)),
        "files_images_cpu_s": len(found["files"][1]) / speed["files"],
        "parquet_speed": speed["files"] / speed["parquet"],
        "arrow_speed": speed["files"] / speed["arrow"],
    }


def covid_as_rows(settings: SourceConfig, folder: Path) -> SourceConfig:
    """Write the images of `covid_cxr` as lists of bytes with their boxes; give their settings."""
    source = read_source(settings, _resolver(folder))
    folder.mkdir(parents=True, exist_ok=True)
    boxes: dict[str, list[dict[str, Any]]] = {}
    for box in source.boxes.rows:
        boxes.setdefault(box["image_id"], []).append(box)
    reports = {study.study_id: study.report for study in source.raw.studies}
    rows = [
        {
            "patient": image.subject_id,
            "study": image.study_id,
            "ids": [image.image_id],
            "images": [{"bytes": (source.raw.root / image.path).read_bytes(), "path": image.path}],
            "views": [image.view],
            "widths": [image.width_px],
            "heights": [image.height_px],
            "text": dict(zip(("f", "i", "report"), reports[image.study_id], strict=True)),
            "objects": [
                {
                    "bbox": [[b[k] for k in ("x", "y", "width", "height")] for b in own],
                    "label": [b["category"] for b in own],
                }
                for own in [boxes.get(image.image_id, [])]
            ],
        }
        for image in source.raw.images
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet", row_group_size=16)
    columns = {
        "subject_id": "patient",
        "study_id": "study",
        "image_id": "ids",
        "image": "images",
        "view": "views",
        "width": "widths",
        "height": "heights",
        "boxes": "objects.bbox",
        "phrase": "objects.label",
        "category": "objects.label",
        "findings": "text.f",
        "impression": "text.i",
        "report": "text.report",
    }
    changes = {
        "root": str(folder),
        "table": "train.parquet",
        "columns": columns,
        "boxes": "",
        "box_columns": {},
        "box_form": "xywh",
    }
    return SourceConfig.model_validate(settings.model_dump() | changes)


def openi_as_dataset(settings: SourceConfig, folder: Path) -> SourceConfig:
    """Write the reports of `openi` as `save_to_disk` does; give their settings."""
    import datasets

    datasets.disable_progress_bars()
    lines = _resolver(folder)(str(settings.table)).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    datasets.Dataset.from_list(rows).save_to_disk(str(folder))
    changes = {"kind": "huggingface", "root": str(folder), "table": ""}
    return SourceConfig.model_validate(settings.model_dump() | changes)


Made = tuple[dict[str, pa.Table], list[ListedImage], Path]


def made(folder: Path, settings: SourceConfig) -> Made:
    """Write a manifest; give its tables, its images and their root."""
    out = folder / "manifest"
    out.mkdir(parents=True)
    resolve = _resolver(folder)
    write_manifest(out, read_source(settings, resolve), settings)
    tables = {form.file: read_table(out, form) for form in _TABLES}
    rows = tables[manifest.IMAGES.file].to_pylist()
    listed = [ListedImage(row["image_id"], row["path"]) for row in rows]
    return tables, listed, images_root(settings, resolve)


def rows_differ(one: Made, other: Made) -> int:
    """Count the tables of two manifests that differ, where images are apart."""
    differ = 0
    for file, table in one[0].items():
        pair = [
            sorted(
                json.dumps({k: v for k, v in row.items() if k != "path"}, sort_keys=True)
                for row in found.to_pylist()
            )
            for found in (table, other[0][file])
        ]
        differ += pair[0] != pair[1]
    return differ


def _resolver(folder: Path) -> Any:
    data = os.environ.get("TEST_DATA", "")
    return lambda text: Path(text.replace("${TEST_DATA}", data).replace("${WORK}", str(folder)))


def _prepare(folder: Path, found: Made, turn: int) -> float:
    out = folder / f"prepared-{turn}"
    out.mkdir(parents=True)
    start = _cpu_s()
    prepare_images(out, found[1] * _TIMES, found[2], ImagesConfig(size_px=144), workers=1)
    return (_cpu_s() - start) / _TIMES


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def memory(folder: Path, gigabytes: float) -> dict[str, float]:
    """Measure the peaks of reading rows and of copying them."""
    rows = folder / "rows"
    generate(rows, 100_000, _ROW_BYTES)
    few, many = (_child("read", rows, n) for n in (10_000, 100_000))
    shutil.rmtree(rows)
    copied = folder / "copied"
    images = int(gigabytes * 1e9 / _IMAGE_BYTES)
    generate(copied, images, _IMAGE_BYTES)
    start = time.perf_counter()
    peak = _child("copy", copied, images)
    seconds = time.perf_counter() - start
    return {
        "rows_peak_mib": many,
        "rows_growth_mib": many - few,
        "copied_gb": gigabytes,
        "copy_mb_s": 1e3 * gigabytes / seconds,
        "copy_peak_mib": peak,
    }


def generate(folder: Path, rows: int, size: int) -> None:
    """Write Parquet of rows with incompressible bytes, in files of about a gigabyte."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    per_file, per_group = max(1, (1 << 30) // size), max(_GROUP, (4 << 20) // size)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("patient", pa.string()), ("text", pa.string()), ("image", kind)])
    for first in range(0, rows, per_file):
        path = folder / f"train-{first // per_file:05d}.parquet"
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for at in range(first, min(first + per_file, rows), per_group):
                numbers = range(at, min(at + per_group, first + per_file, rows))
                content = [
                    {
                        "patient": f"p{n}",
                        "text": f"FINDINGS: number {n}.",
                        "image": {"bytes": rng.bytes(size), "path": None},
                    }
                    for n in numbers
                ]
                writer.write_table(pa.Table.from_pylist(content, schema=schema))


def _copy(folder: Path, rows: int) -> None:
    work = folder / "work"
    work.mkdir()
    columns = {"subject_id": "patient", "report": "text", "image": "image"}
    given = {"kind": "huggingface", "root": str(folder), "columns": columns, "materialise": True}
    raw = read_source(SourceConfig.model_validate(given), _resolver(work)).raw
    assert len(raw.images) == rows


def _read(folder: Path, rows: int) -> None:
    total = 0
    for row in range(rows):
        total += len(image_source(folder, row_name("train-00000.parquet", "image", row)))
    assert total == rows * _ROW_BYTES


def _child(work: str, folder: Path, rows: int) -> float:
    words = [sys.executable, "-m", "benchmarks.speed.sources", "--child", work, str(folder)]
    done = subprocess.run([*words, str(rows)], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    sys.exit(main())
