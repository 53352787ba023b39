"""MIMIC-CXR's size against the limits of a machine: descriptors and processes.

    python -m benchmarks.scale_limits [--quick] [--work FOLDER] [--only PART] [--into FILE]

`index`
An index of 234,073 images and 500,000 sentences, with thumbnails, whose vectors are random and
narrow, is opened and asked by a process that may open 256 files. `index_descriptors` are those that
it has open afterwards, its three streams included.

`resume`
Two processes of a tiny model with dropout are stopped, one goes on and is stopped, and two go on.
`resume_difference_ppm` is the largest relative difference of a loss to those of two alone.

`cluster`
600 PNG images are prepared by two Dask workers, one of which is killed once a shard is there.
`cluster_differs` is 1 where the artifact is another than that of this machine alone.

`--into` adds the figures to a kept output of `benchmarks.scale`, with their own date and commit.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from PIL import Image

from benchmarks.record import finish, judge, keep_figures
from medclip_dcl.artifact import Artifact, make_fingerprint, open_artifact
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.data import prepared
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.retrieval.embeddings import (
    ARTIFACT,
    IMAGES,
    OCCURRENCES,
    TEXTS,
    shard_name,
    write_pictures,
)
from medclip_dcl.retrieval.settings import IndexConfig
from medclip_dcl.retrieval.sketch import SKETCH
from medclip_dcl.tables import write_array, write_table

DESCRIPTORS = 256
BARS = {
    "index_descriptors": f"<= {DESCRIPTORS}",
    "index_hits": "10",
    "resume_difference_ppm": "<= 1",
    "cluster_differs": "0",
    "cluster_lost_images": "0",
}

_IMAGES, _TEXTS = 234_073, 500_000
_DIM, _GRID, _WIDTH, _LANDMARKS = 16, 2, 8, 32
_HITS = 10
_MODEL = "made up"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, or 1 where a part could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_limits")
    parser.add_argument("--quick", action="store_true", help="a hundredth of everything")
    parser.add_argument("--work", type=Path, default=Path("runs/scale_limits"))
    parser.add_argument("--into", type=Path, help="a kept output that gets the figures as well")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part alone")
    parser.add_argument("--open-index", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.open_index is not None:
        return _open_index(arguments.open_index)
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    figures: dict[str, float] = {}
    for name in [arguments.only] if arguments.only else PARTS:
        figures |= PARTS[name](work, arguments.quick)
    judged = judge(figures, BARS)
    if arguments.into is not None:
        keep_figures(arguments.into, "scale_limits", figures, judged)
    return finish("scale_limits", figures, judged)


# --- Index


def index_figures(work: Path, quick: bool) -> dict[str, float]:
    """Open a large index in a process that may open few files, and ask it."""
    folder = work / "index"
    counts = (_IMAGES // 100, _TEXTS // 100) if quick else (_IMAGES, _TEXTS)
    shutil.rmtree(folder, ignore_errors=True)
    begun = time.process_time()
    _write_index(folder, *counts)
    made_s = time.process_time() - begun
    command = [sys.executable, "-m", "benchmarks.scale_limits", "--open-index", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    shutil.rmtree(folder)
    return {**found, "index_made_cpu_s": made_s}


def _open_index(folder: Path) -> int:
    import torch

    from medclip_dcl.retrieval.search import Query, RetrievalIndex

    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    begun = time.process_time()
    index = RetrievalIndex.open(folder, _MODEL)
    opened_s = time.process_time() - begun
    direction = torch.ones(_DIM) / _DIM**0.5
    hits = [index.search(Query(target, _HITS, vector=direction)) for target in ("image", "text")]
    assert all(index.picture(hit.id) for hit in hits[0])
    found = {
        "index_descriptors": len(list(Path("/proc/self/fd").iterdir())) - 1,  # its own
        "index_mappings": len(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()),
        "index_open_cpu_s": opened_s,
        "index_hits": min(map(len, hits)),
    }
    print(json.dumps(found))
    return 0


def _write_index(folder: Path, images: int, texts: int) -> None:
    rng = np.random.default_rng(0)
    settings = IndexConfig()
    named = {"index": settings, "similarity": SimilarityConfig(dim=_DIM)}
    studies = np.char.add("s", np.arange(images).astype(str))
    image_columns = {
        "image_id": np.char.add("i", np.arange(10**6, 10**6 + images).astype(str)),
        "study_id": studies,
        "subject_id": studies,
        "split": np.full(images, "train"),
        "view": np.full(images, "PA"),
        "findings": pa.array([["Pneumonia"]] * images),
        "height_px": np.ones(images, dtype=np.int32),
        "width_px": np.ones(images, dtype=np.int32),
    }
    keys = np.char.add("t", np.arange(10**6, 10**6 + texts).astype(str))
    text_columns = {"text_key": keys, "text": keys, "studies": np.ones(texts, dtype=np.int32)}
    rows = np.arange(texts, dtype=np.int32)
    said = {"study_id": studies[rows % images], "text": rows}
    with write_artifact(folder, ARTIFACT, make_fingerprint(ARTIFACT, named, {"model": _MODEL})) as (
        writer
    ):
        draft = writer.directory
        for form, columns in ((IMAGES, image_columns), (TEXTS, text_columns), (OCCURRENCES, said)):
            write_table(draft, form, pa.table(columns).cast(form.schema))
        whole = rng.standard_normal((_LANDMARKS, _DIM + 2 * _WIDTH)).astype(np.float32)
        write_array(draft / SKETCH, whole)
        _write_vectors(draft, "regions", images, settings.shard_rows, (_GRID, _GRID, _DIM), rng)
        _write_vectors(draft, "pooled", images, settings.shard_rows, (_DIM,), rng)
        _write_vectors(draft, "texts", texts, settings.shard_rows, (_DIM,), rng)
        _write_vectors(draft, "image_sketches", images, settings.shard_rows, (_WIDTH,), rng)
        _write_vectors(draft, "text_sketches", texts, settings.shard_rows, (_WIDTH,), rng)
        for number, start in enumerate(range(0, images, settings.shard_rows)):
            count = min(settings.shard_rows, images - start)
            write_pictures(draft / shard_name("pictures", number, "arrow"), [b"x"] * count)
        writer.commit({})


def _write_vectors(
    draft: Path,
    what: str,
    rows: int,
    shard_rows: int,
    shape: tuple[int, ...],
    rng: np.random.Generator,
) -> None:
    kind = np.float16 if what == "regions" else np.float32
    for number, start in enumerate(range(0, rows, shard_rows)):
        vectors = rng.standard_normal((min(shard_rows, rows - start), *shape))
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
        write_array(draft / shard_name(what, number), vectors.astype(kind))


# --- Resume


def resume_figures(work: Path, quick: bool) -> dict[str, float]:
    """Change the number of processes of a run twice, for each of some seeds."""
    from benchmarks.reliability.exactness import CURVE_SEEDS, there_and_back

    folder = work / "resume"
    shutil.rmtree(folder, ignore_errors=True)
    seeds = range(1 if quick else CURVE_SEEDS)
    found = {"resume_difference_ppm": 1e6 * max(there_and_back(folder, seed) for seed in seeds)}
    shutil.rmtree(folder)
    return found


def cluster_figures(work: Path, quick: bool) -> dict[str, float]:
    """Prepare images by two workers of a Dask cluster, of which one is killed on the way."""
    from distributed import LocalCluster

    folder = work / "cluster"
    shutil.rmtree(folder, ignore_errors=True)
    write_studies(folder / "studies", 120 if quick else 600)
    root = str(folder / "studies")
    here = _prepared(folder, "here", root)
    draft = folder / "there" / ".prepared.draft"
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        pid = cluster.workers[0].pid

        def kill_after_a_shard() -> None:
            while not list(draft.glob("shard-*")):
                time.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            killed.append(len(list(draft.glob("shard-*"))))

        killed: list[int] = []
        threading.Thread(target=kill_after_a_shard, daemon=True).start()
        there = _prepared(folder, "there", root, dask_scheduler=cluster.scheduler_address)
    lost = here.summary["images"] - there.summary["images"]
    shards = len(there.files) - 1
    shutil.rmtree(folder)
    if not killed or killed[0] == shards:
        raise RuntimeError("the worker was killed too late; run it again")
    return {"cluster_differs": int(here.digest != there.digest), "cluster_lost_images": lost}


def _prepared(folder: Path, name: str, root: str, **images: Any) -> Artifact:
    from pipelines import build_manifest, prepare_images

    columns = {"path": "image", "study_id": "study", "subject_id": "patient", "report": "report"}
    tree = {
        "work": str(folder / name),
        "source": {"kind": "table", "root": root, "table": "studies.csv", "columns": columns},
        "images": {"size_px": 48, **images},
    }
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(tree), encoding="utf-8")
    codes = [job.main(["--config", str(config)]) for job in (build_manifest, prepare_images)]
    assert codes == [0, 0], f"the stages ended with {codes}"
    return open_artifact(prepared.ARTIFACT.at(folder / name), prepared.ARTIFACT)


def write_studies(folder: Path, images: int) -> None:
    """Write random pictures and the table that lists them."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    lines = ["image,study,patient,report"]
    for number in range(images):
        pixels = rng.integers(256, size=(80, 64), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f"{number}.png,s{number},p{number // 3},The heart is of normal size.")
    (folder / "studies.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


PARTS: dict[str, Callable[[Path, bool], dict[str, float]]] = {
    "index": index_figures,
    "resume": resume_figures,
    "cluster": cluster_figures,
}


if __name__ == "__main__":
    sys.exit(main())
