"""Which artifacts of the demo have the same bytes on another kind of processor, or in one thread?

    python -m benchmarks.determinism [--quick] [--work FOLDER] [--only RUN ...]

Every stage of `configs/demo.yaml` runs on the same studies, once for each set of instructions and
number of threads. A finished stage is not repeated. What differs from the first run is compared
number by number. `native` is what this processor has, `avx2` stands for one without AVX-512.
`--quick`: a tiny config.

`ATEN_CPU_CAPABILITY` covers torch's own vectorised loops alone. MKL (matrix products), oneDNN
(convolutions), numpy and its OpenBLAS choose their code by the processor, too, and each is asked by
a variable of its own; MKL may ignore it on a processor that is not Intel's. Block sizes that follow
the cache and the C library's mathematics are not varied.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from benchmarks.method.demo import CONFIG, read_figures
from benchmarks.record import finish
from medclip_dcl.artifact import HEADER, read_artifact_header
from pipelines.config import load_config
from pipelines.stages import stages_of
from testing.corpus import TINY_DEMO
from testing.processes import options

ISA: dict[str, dict[str, str]] = {
    "native": {},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL",
        "OPENBLAS_CORETYPE": "Haswell",
        "ARROW_USER_SIMD_LEVEL": "AVX2",
    },
}
RUNS = {f"{isa}-{threads}": (isa, threads) for threads in (2, 1) for isa in ISA}
"""Run -> instructions and threads; the first is what the others are compared with."""
_UNCOMPARED = {"ask_service", "write_report"}  # a log of times, and a page of what is compared
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HEADLINES = ("auc", "balanced_accuracy", "cnr", "gallery_r_at_5")


def run(name: str, base: Path, settings: Sequence[str]) -> None:
    """Run every stage; what is finished is reused. RuntimeError where one ends otherwise than 0."""
    (isa, threads), work, studies = RUNS[name], base / name, base / "studies"
    work.mkdir(parents=True, exist_ok=True)
    words = (f"work={work}", f"generate.root={studies}", f"source.root={studies}", *settings)
    words += (f"train.torch_threads={threads}",)
    for stage in (item for item in stages_of(load_config(CONFIG)) if item not in _UNCOMPARED):
        # `medclip run` gives OpenMP one thread in training, whatever torch has
        openmp = str(1 if stage == "train" else threads)
        environment = {**os.environ, **ISA[isa], "OMP_NUM_THREADS": openmp}
        command = [sys.executable, "-m", "pipelines", stage, "--config", str(CONFIG)]
        command += options(words)
        with (work / "log").open("ab") as log:
            code = subprocess.run(command, env=environment, stdout=log, stderr=log).returncode
        if code:
            raise RuntimeError(f"{stage} of {name} ended with {code}; see {work / 'log'}")


def difference(first: Path, second: Path) -> dict[str, float]:
    """Compare an artifact with another of its type, file by file.

    Gives `files` that differ; `largest` difference of two numbers; the same `relative` to the
    largest number of its file; `others`: values that are not numbers and differ, or that one of
    the two lacks; digests of inputs do not count.
    """
    one, two = (read_artifact_header(path).files for path in (first, second))
    found = dict.fromkeys(("files", "largest", "relative", "others"), 0.0)
    for name in sorted({*one, *two}):
        if one.get(name) == two.get(name):
            continue
        found["files"] += 1
        here, there = (
            dict(values(path / name)) if name in files else {}
            for path, files in ((first, one), (second, two))
        )
        largest, scale = 0.0, 0.0
        for key in {**here, **there}:
            a, b = here.get(key), there.get(key)
            if a is None or b is None or a.shape != b.shape or a.dtype.kind not in "fiu":
                found["others"] += not np.array_equal(a, b)
                continue
            a, b = a.astype(np.float64), b.astype(np.float64)
            largest = max(largest, float(np.nanmax(np.abs(a - b), initial=0.0)))
            scale = max(scale, float(np.nanmax(np.abs(a), initial=0.0)))
            found["others"] += int((np.isnan(a) != np.isnan(b)).sum())
        found["largest"] = max(found["largest"], largest)
        found["relative"] = max(found["relative"], largest / (scale or 1.0))
    return found


def values(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Give the tensors, columns or keys of a data file; its bytes where its form is unknown."""
    if path.suffix == ".safetensors":
        yield from load_file(path).items()
    elif path.suffix == ".npy":
        yield path.name, np.load(path)
    elif path.suffix in {".parquet", ".arrow"}:
        is_arrow = path.suffix == ".arrow"
        table = pa.ipc.open_file(path).read_all() if is_arrow else pq.read_table(path)
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            while isinstance(column, pa.ListArray | pa.FixedSizeListArray | pa.LargeListArray):
                column = column.flatten()
            yield name, column.to_numpy(zero_copy_only=False)
    elif path.suffix == ".json":
        keys: dict[str, list[Any]] = {}
        for key, leaf in _leaves(json.loads(path.read_text(encoding="utf-8"))):
            keys.setdefault(key, []).append(leaf)
        yield from ((key, np.array(leaves)) for key, leaves in keys.items())
    else:
        yield path.name, np.frombuffer(path.read_bytes(), np.uint8).astype("S1")


def _leaves(tree: Any, key: str = "") -> Iterator[tuple[str, float | str]]:
    # a list of numbers is one array: its largest number is their scale
    if isinstance(tree, dict):
        for name, part in tree.items():
            yield from _leaves(part, f"{key}.{name}")
    elif isinstance(tree, list):
        for part in tree:
            yield from _leaves(part, key)
    elif isinstance(tree, int | float):
        yield key, float(tree)
    elif isinstance(tree, str) and not _DIGEST.fullmatch(tree):
        yield f"{key} (text)", tree


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for every artifact and a column for every run; give 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.determinism")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", type=Path, default=Path("runs/determinism"))
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    arguments = parser.parse_args(argv)
    base = arguments.work.absolute() / ("quick" if arguments.quick else "demo")
    for name in arguments.only:
        run(name, base, TINY_DEMO if arguments.quick else ())
    first, *others = arguments.only
    figures: dict[str, float] = {}
    print(f"{'against ' + first:16}" + "".join(f"{name:>28}" for name in others))
    for kind in sorted(path.parent.name for path in (base / first).glob(f"*/{HEADER}")):
        line = f"{kind:16}"
        for name in others:
            found = difference(base / first / kind, base / name / kind)
            figures[f"{name}_{kind}_equal"] = not found["files"]
            for key in ("largest", "relative"):
                figures[f"{name}_{kind}_{key}_1e9"] = 1e9 * found[key]
            words = "{largest:.1e} ({relative:.1e}), {others:.0f} other".format(**found)
            line += f"{words if found['files'] else 'equal':>28}"
        print(line)
    for name in arguments.only:
        headlines = read_figures(base / name)
        figures |= {f"{name}_{key}": headlines[key] for key in _HEADLINES}
        weights = read_artifact_header(base / name / "model").files["model.safetensors"]["sha256"]
        shown = "  ".join(f"{key} {headlines[key]:.4f}" for key in _HEADLINES)
        print(f"{name:16}model.safetensors {weights[:12]}  {shown}")
    return finish("determinism", figures, {})


if __name__ == "__main__":
    sys.exit(main())
