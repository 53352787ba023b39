"""Training at MIMIC-CXR's size and in large batches: start and memory of its processes.

    python -m benchmarks.scale_training [--quick] [--work FOLDER] [--only PART] [--into FILE]

`processes`

Tables of 230,000 studies with 345,000 images and 1,600,000 sentences, of which half a million are
distinct, are made without their stages; images are 32 x 32 pixels. One process then sets a training
run up and makes its corpus, and eight more find it made. Each is asked for some batches. Private
memory is `Private_*` of `smaps_rollup` while all eight live, imports and a tiny model included; CPU
time is that of a process from its beginning to its first batches.

`chunks`
One step of the config's image encoder at 96 pixels and a small BERT, with 64 pairs and with 512, 16
of them at once: peak resident memory of the process, imports included; and the same beyond what it
held before the step.

`--into` adds the figures to a kept output of `benchmarks.scale`, with their own date and commit.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import yaml
from transformers import BertConfig, BertForMaskedLM

from benchmarks.record import finish, judge, keep_figures
from medclip_dcl.artifact import ArtifactType, make_fingerprint
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.likelihood import eta, masked_lm
from medclip_dcl.likelihood.masked_corpus import train_tokenizer
from medclip_dcl.likelihood.masked_lm import save_language_model
from medclip_dcl.tables import TableFormat, write_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import text_key
from testing.tiny_models import tiny_text_config

STUDIES, QUICK_STUDIES = 230_000, 2_300
PROCESSES = 8
BARS = {
    "private_gib_of_8_processes": "<= 5",
    "start_cpu_s": "<= 8",
    "gradcache_peak_512_over_64": "<= 1.15",
}

_IMAGES = 1.5  # images, sentences and distinct sentences for a study, as in MIMIC-CXR
_SENTENCES = 7
_DISTINCT = 2.19
_SHARD_ROWS = 512
_PX = 32
_BATCHES = 20
_STEP_PX, _CHUNK = 96, 16
_SITES = ("apex", "base", "hilum", "costophrenic angle", "upper zone", "lower zone")
_THINGS = ("calcified granuloma", "nodular opacity", "rounded density", "linear scar")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, or the exit code of a process that failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_training")
    parser.add_argument("--quick", action="store_true", help="a hundredth of everything")
    parser.add_argument("--work", type=Path, default=Path("runs/scale_training"))
    parser.add_argument("--into", type=Path, help="a kept output that gets the figures as well")
    parser.add_argument("--only", choices=("processes", "chunks"), help="one part alone")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.process:
        return _train(arguments.work)
    if arguments.pairs:
        return _step(arguments.pairs)
    figures: dict[str, float] = {}
    if arguments.only != "chunks":
        figures |= _process_figures(arguments)
    if arguments.only != "processes":
        figures |= _chunk_figures()
    judged = judge(figures, BARS)
    if arguments.into is not None:
        keep_figures(arguments.into, "scale_training", figures, judged)
    return finish("scale_training", figures, judged)


def _process_figures(arguments: argparse.Namespace) -> dict[str, float]:
    studies = QUICK_STUDIES if arguments.quick else STUDIES
    work = arguments.work.absolute() / str(studies)
    if not (work / "config.yaml").is_file():
        write_tables(work, studies)
    options = ("--process", "--work", str(work))
    first = _ready([_start(*options)])
    others = [_start(*options) for _ in range(PROCESSES)]
    reported = _ready(others)
    return {
        "private_gib_of_8_processes": sum(each["private_bytes"] for each in reported) / 2**30,
        "start_cpu_s": max(each["cpu_s"] for each in reported),
        "corpus_cpu_s": first[0]["cpu_s"] - float(np.median([each["cpu_s"] for each in reported])),
        "corpus_private_gib": first[0]["private_bytes"] / 2**30,
    }


def _chunk_figures() -> dict[str, float]:
    few, many = (_ready([_start("--pairs", str(pairs))])[0] for pairs in (64, 512))
    return {
        "gradcache_peak_512_over_64": many["peak_bytes"] / few["peak_bytes"],
        "gradcache_step_512_over_64": many["step_bytes"] / few["step_bytes"],
        "gradcache_peak_512_gib": many["peak_bytes"] / 2**30,
    }


# --- Processes


def _start(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.scale_training", *options]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)


def _ready(processes: Sequence[subprocess.Popen[str]]) -> list[dict[str, float]]:
    """Wait until all have their batches, read their memory, and let them go."""
    reported = []
    for process in processes:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            if line == "ready\n":
                break
            lines.append(line)
        else:
            raise RuntimeError("a training process ended early; its error is above")
        reported.append(json.loads(lines[-1]))
    for process, found in zip(processes, reported, strict=True):
        found["private_bytes"] = _private_bytes(process.pid)
    for process in processes:
        process.communicate("go\n")
    return reported


def _private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _train(work: Path) -> int:
    """Set a run up as `train` does, make some batches, and wait to be looked at."""
    from medclip_dcl.training.config import TrainingConfig
    from medclip_dcl.training.launch import start_accelerator
    from medclip_dcl.training.setup import set_up
    from pipelines.config import load_config
    from pipelines.job import Job
    from pipelines.train import open_inputs

    config = load_config(work / "config.yaml")
    accelerator = start_accelerator(config.train, work)
    inputs, _ = open_inputs(Job("train", config, work), verify=False)
    setup = set_up(TrainingConfig.of(config), inputs, accelerator, work, lambda **_: None)
    for step in range(_BATCHES):
        setup.dataset.batch(step)
    print(json.dumps({"cpu_s": time.process_time()}), "ready", sep="\n", flush=True)
    sys.stdin.readline()
    return 0


def _step(pairs: int) -> int:
    """Do one optimiser step in chunks, and report the memory of it."""
    from medclip_dcl.models.dual_encoder import build_dual_encoder
    from medclip_dcl.models.settings import ModelConfig
    from medclip_dcl.training.dataset import ImageTextBatch
    from medclip_dcl.training.launch import start_accelerator
    from medclip_dcl.training.objective import ContrastiveObjective
    from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
    from medclip_dcl.training.step import TrainStep

    settings = TrainConfig(global_batch=pairs, chunk=_CHUNK, freeze_batchnorm=True, torch_threads=1)
    accelerator = start_accelerator(settings)
    model = ModelConfig.model_validate({"image": {"input_px": _STEP_PX}})
    text = BertConfig(
        vocab_size=2000,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
    )
    encoder = build_dual_encoder(model, text, seed=0)
    objective = ContrastiveObjective(ObjectiveConfig(), 0, chunk=_CHUNK)
    step = TrainStep(accelerator, encoder, objective, settings, seed=0)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2000, (pairs, 32), generator=generator)
    size = (pairs, 1, _STEP_PX, _STEP_PX)
    batch = ImageTextBatch(
        step=0,
        mine=slice(0, pairs),
        study_ids=tuple(map(str, range(pairs))),
        crops=torch.randint(256, size, generator=generator, dtype=torch.uint8),
        brightness=torch.ones(pairs),
        contrast=torch.ones(pairs),
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        eta=torch.full((pairs,), 0.02),
        sentence_codes=None,
        report_codes=None,
        labels=None,
    )
    before = _resident("VmRSS")
    step(batch, stop=False)
    peak = _resident("VmHWM")
    print(
        json.dumps({"peak_bytes": peak, "step_bytes": peak - before}), "ready", sep="\n", flush=True
    )
    sys.stdin.readline()
    return 0


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


# --- Tables


def write_tables(work: Path, studies: int) -> None:
    """Write every artifact that training reads, straight from its format."""
    rng = np.random.default_rng(0)
    study_ids = np.array([f"s{50_000_000 + number}" for number in range(studies)])
    subjects = np.array([f"p{10_000_000 + number // 3}" for number in range(studies)])
    owners = np.sort(rng.integers(studies, size=int(_IMAGES * studies) - studies))
    owners = np.sort(np.concatenate([np.arange(studies), owners]))
    train = pa.array(np.full(len(owners), "train"))
    image_ids = np.array([f"{number:08x}-{number % 65_521:04x}" for number in range(len(owners))])
    images = {
        "image_id": image_ids,
        "study_id": study_ids[owners],
        "subject_id": subjects[owners],
        "split": train,
        "view": np.full(len(owners), "PA"),
        "path": image_ids,
    }
    empty: dict[TableFormat, pa.Table] = {
        form: form.schema.empty_table()
        for form in (manifest.REPORTS, manifest.STUDY_LABELS, manifest.BOXES, manifest.REJECTS)
    }
    _commit(work, manifest.ARTIFACT, {manifest.IMAGES: pa.table(images), **empty})
    _write_images(work, image_ids, rng)
    texts = _texts(int(_DISTINCT * studies))
    keys = np.array([text_key(text) for text in texts])
    said = np.concatenate(
        [
            rng.permutation(len(texts)),
            rng.integers(min(5000, len(texts)), size=_SENTENCES * studies),
        ]
    )[: _SENTENCES * studies]
    study = np.sort(
        np.concatenate([np.arange(studies), rng.integers(studies, size=len(said) - studies)])
    )
    rows = {
        "study_id": study_ids[study],
        "subject_id": subjects[study],
        "split": np.full(len(said), "train"),
        "section": np.full(len(said), "findings"),
        "position": np.zeros(len(said), dtype=np.int32),
        "text": np.array(texts)[said],
        "text_key": keys[said],
    }
    _commit(work, sentences.ARTIFACT, {sentences.SENTENCES: pa.table(rows)})
    keys.sort()
    _write_eta_and_claims(work, keys, study_ids, rng)
    _write_language_model(work, texts[::50])
    tree = {
        "work": str(work),
        "images": {"size_px": _PX},
        "model": {"image": {"depths": [1, 1], "widths": [8, 16], "input_px": _PX}},
        "objective": {"relation": "claims"},
        "train": {"torch_threads": 1},
    }
    (work / "config.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")


def _write_eta_and_claims(
    work: Path, keys: np.ndarray, study_ids: np.ndarray, rng: np.random.Generator
) -> None:
    etas = {
        "text_key": keys,
        "eta": rng.uniform(0, 0.2, len(keys)),
        "pll_nats": np.full(len(keys), -9.0),
        "tokens": np.full(len(keys), 20, dtype=np.int32),
        "count": np.full(len(keys), 3, dtype=np.int32),
    }
    _commit(work, eta.ARTIFACT, {eta.ETA: pa.table(etas)})
    forms = {
        labels.SENTENCE_CLAIMS: _claims("text_key", keys)
        | {"zone": np.full(len(keys), ""), "severity": np.full(len(keys), "")},
        labels.REPORT_CLAIMS: _claims("study_id", study_ids),
    }
    _commit(work, labels.ARTIFACT, {form: pa.table(table) for form, table in forms.items()})


def _texts(count: int) -> list[str]:
    numbers = np.arange(count)
    return [
        f"A {_THINGS[number % 4]} of {3 + number // 24 % 57} x {3 + number // 1368 % 57} mm "
        f"projects over the {('right', 'left')[number % 2]} {_SITES[number // 4 % 6]} at rib "
        f"{1 + number // 77_976} near the {number // 2 % 12}th."
        for number in numbers.tolist()
    ]


def _claims(key: str, ids: np.ndarray) -> dict[str, Any]:
    names = pa.array([[LABELS[number % 5 + 1]] for number in range(len(ids))])
    nothing = pa.array([[]] * len(ids), pa.list_(pa.string()))
    normal = np.zeros(len(ids), dtype=bool)
    return {key: ids, "asserted": names, "negated": nothing, "uncertain": nothing, "normal": normal}


def _commit(work: Path, kind: ArtifactType, tables: Mapping[TableFormat, pa.Table]) -> None:
    with write_artifact(kind.at(work), kind, make_fingerprint(kind, {}, {})) as writer:
        for form, table in tables.items():
            write_table(writer.directory, form, table)
        writer.commit({})


def _write_images(work: Path, image_ids: np.ndarray, rng: np.random.Generator) -> None:
    kind = prepared.ARTIFACT
    with write_artifact(kind.at(work), kind, make_fingerprint(kind, {}, {})) as writer:
        for number, start in enumerate(range(0, len(image_ids), _SHARD_ROWS)):
            ids = image_ids[start : start + _SHARD_ROWS].tolist()
            pixels = rng.integers(256, size=(len(ids), _PX, _PX), dtype=np.uint8)
            sizes = np.full((len(ids), 2), _PX, dtype=np.int32)
            prepared.write_shard(writer.directory, number, ids, pixels, sizes, [])
        writer.commit({"size_px": _PX, "images": len(image_ids)})


def _write_language_model(work: Path, texts: Sequence[str]) -> None:
    kind = masked_lm.ARTIFACT
    tokenizer = train_tokenizer(list(texts), 2000, 64)
    with write_artifact(kind.at(work), kind, make_fingerprint(kind, {}, {})) as writer:
        model = BertForMaskedLM(tiny_text_config(len(tokenizer)))
        save_language_model(model, tokenizer, writer.directory)
        writer.commit({})


if __name__ == "__main__":
    sys.exit(main())
