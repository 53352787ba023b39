"""What a whole evaluation costs: seconds and memory for 5,000 images and 2,000 sentences.

    make demo && python -m benchmarks.speed.evaluation [--quick]

The demo's model is examined on the demo's images, repeated under new names until there are
5,000, with labels, boxes and 2,000 of its sentences: every question but the probe, 1,000
bootstrap samples. `--quick`: 600 images and 100 samples. The scores mean nothing.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import finish, is_quick, judge
from medclip_dcl import model_package
from medclip_dcl.artifact import make_fingerprint, open_artifact
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.evaluation import results
from medclip_dcl.settings import resolve_path
from medclip_dcl.tables import TableFormat, read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import distinct_sentences, text_key
from pipelines.config import load_config
from testing.corpus import commit_tables
from testing.processes import options, spent_by

CONFIG = Path("configs/demo.yaml")
IMAGES, SENTENCES, SAMPLES = 5000, 2000, 1000
QUICK_IMAGES, QUICK_SAMPLES = 600, 100
SHARD = 1000

Rows = list[dict[str, Any]]


def write_images(demo: Path, work: Path, total: int) -> None:
    """Write what an evaluation of `total` images reads, from the demo's own artifacts."""
    work.mkdir(parents=True, exist_ok=True)
    model_package.ARTIFACT.at(work).symlink_to(model_package.ARTIFACT.at(demo).resolve())
    images = PreparedImages(open_artifact(prepared.ARTIFACT.at(demo), prepared.ARTIFACT))
    source = manifest.ARTIFACT.at(demo)
    boxed = read_table(source, manifest.BOXES).to_pylist()
    sources = list(dict.fromkeys(item["image_id"] for item in boxed))
    indices = [images.row_of[sources[number % len(sources)]] for number in range(total)]
    names = [f"image-{number:05d}" for number in range(total)]
    _write_prepared(work, images, names, indices)
    rows = [
        {
            "image_id": name,
            "study_id": f"study-{number:05d}",
            "subject_id": f"patient-{number // 2:05d}",
            "split": "test",
            "view": "PA",
            "path": "",
        }
        for number, name in enumerate(names)
    ]
    drawn = np.random.default_rng(0).random((total, len(LABELS))) < 0.3
    labels = [
        {"study_id": row["study_id"], **dict(zip(LABELS, map(int, own), strict=True))}
        for row, own in zip(rows, drawn, strict=True)
    ]
    boxes = [
        {**box, "image_id": names[number], "subject_id": rows[number]["subject_id"]}
        for number, box in enumerate(boxed[: min(len(boxed), total)])
    ]
    tables: dict[TableFormat, Rows] = {
        manifest.IMAGES: rows,
        manifest.REPORTS: [],
        manifest.STUDY_LABELS: labels,
        manifest.BOXES: boxes,
        manifest.REJECTS: [],
    }
    commit_tables(work, manifest.ARTIFACT, tables)
    artifact = open_artifact(sentences.ARTIFACT.at(demo), sentences.ARTIFACT)
    texts = distinct_sentences(artifact)["text"].to_pylist()[:SENTENCES]
    said = [
        {
            "study_id": row["study_id"],
            "subject_id": row["subject_id"],
            "split": "test",
            "section": "findings",
            "position": position,
            "text": text,
            "text_key": text_key(text),
        }
        for number, row in enumerate(rows)
        for position, text in enumerate(texts[index % len(texts)] for index in (number, -number))
    ]
    commit_tables(work, sentences.ARTIFACT, {sentences.SENTENCES: said})


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate and print; 1 where the demo has not been run or the evaluation failed."""
    images, samples = (QUICK_IMAGES, QUICK_SAMPLES) if is_quick(argv) else (IMAGES, SAMPLES)
    config = load_config(CONFIG)
    demo = resolve_path(config.work, config.work)
    if not model_package.ARTIFACT.at(demo).is_dir():
        print("no model of the demo; run `make demo` first", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        write_images(demo, work, images)
        settings = {
            "work": work,
            "source.root": work,
            "evaluate.bootstrap": samples,
            "evaluate.retrieval_pool": 1000,
            "evaluate.allow_contaminated": "true",
        }
        found = _measured([f"{name}={value}" for name, value in settings.items()])
        if found is None:
            return 1
        tree = results.read_figures(open_artifact(results.ARTIFACT.at(work), results.ARTIFACT))
    asked = [name for name, outcome in tree["questions"].items() if not outcome["absent"]]
    figures = {"images": images, "samples": samples, "questions": len(asked), **found}
    return finish("evaluation", figures, judge(figures, {}))


def _measured(settings: Sequence[str]) -> Mapping[str, float] | None:
    command = [sys.executable, "-m", "pipelines.evaluate", "--config", str(CONFIG)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    spent = spent_by([*command, *options(settings)], stdout=sys.stderr, env=environment)
    if spent.code:
        print(f"evaluate ended with exit code {spent.code}", file=sys.stderr)
        return None
    return {"wall_seconds": spent.wall_s, "cpu_seconds": spent.cpu_s, "peak_mib": spent.peak_mib}


def _write_prepared(
    work: Path, images: PreparedImages, names: Sequence[str], indices: Sequence[int]
) -> None:
    fingerprint = make_fingerprint(prepared.ARTIFACT, {"images": len(names)}, {})
    with write_artifact(prepared.ARTIFACT.at(work), prepared.ARTIFACT, fingerprint) as writer:
        for shard, start in enumerate(range(0, len(names), SHARD)):
            chosen = indices[start : start + SHARD]
            sizes = np.array([images.original_size(index) for index in chosen], dtype=np.int32)
            pixels = np.stack([images.pixels(index) for index in chosen])
            mine = names[start : start + SHARD]
            prepared.write_shard(writer.directory, shard, mine, pixels, sizes, [])
        writer.commit({"size_px": images.size_px, "images": len(names)})


if __name__ == "__main__":
    sys.exit(main())
