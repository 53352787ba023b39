"""Say what a config will take before it is started: memory, hours, disk, false negatives.

    python -m pipelines.plan --config FILE [--set key=value ...]
        [--studies N] [--images N] [--images-per-s R] [--seconds S]

Each line is one question with its answer: `ok`, `note` (something to know, or that could not
be known) or `fault` (more than this machine has). What earlier jobs have made is read; before
that, `--studies` and `--images` say how many there will be. Hours follow from a few steps with
random images on this machine, or from `--images-per-s`, of all processes together. Nothing is
written. Exit code 0 without faults, 2 with one.
"""

import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import pyarrow.compute as pc
import torch
import typer
from transformers import BertConfig

from medclip_dcl.artifact import open_artifact
from medclip_dcl.config import Config, resolve_path
from medclip_dcl.data import manifest
from medclip_dcl.errors import ArtifactError, MedclipError
from medclip_dcl.likelihood import masked_lm
from medclip_dcl.likelihood.eta import correction, same_correction
from medclip_dcl.likelihood.masked_lm import read_config
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.training.checkpoint import KEEP_CHECKPOINTS
from medclip_dcl.training.performance import (
    MemoryEstimate,
    estimate_training_memory,
    measure_throughput,
)

from .cli import ConfigFile, Overrides, config_of, run_command
from .doctor import Finding
from .false_negatives import PAPER_BATCH, false_negatives

_SLACK = 1.2  # allocator, kernels and interpreter besides what is counted
_BASE = 30522, 768, 12, 12  # vocabulary, width, layers and heads of BERT-base
_THUMBNAIL = 12_000  # bytes of a grey JPEG of 256 px


class Asked(NamedTuple):
    """What the command line says besides the recipe."""

    studies: int | None = None
    images: int | None = None
    images_per_s: float | None = None
    seconds: float = 20.0


@dataclass(frozen=True)
class Data:
    """What is known of the config's studies; None: nothing."""

    studies: int | None
    """Training studies."""
    images: int | None
    """Images of all splits."""
    source: str
    """Where the numbers come from."""


def plan(config: Config, asked: Asked) -> Iterator[Finding]:
    """Answer every question about a recipe.

    Args:
        config: the recipe.
        asked: what the command line says next to it.

    Yields:
        One finding per question.

    Raises:
        ConfigError: a path of the config cannot be resolved.
    """
    data = _data(config, asked)
    yield from _steps(config, data)
    text, words = _text_sizes(config)
    if words:
        yield Finding("text encoder", "note", words)
    need = estimate_training_memory(config, text)
    share = config.train.global_batch // config.train.processes
    parts = ("weights", "gradients", "moments", "activations", "batches")
    listed = ", ".join(f"{name} {_gb(getattr(need, name))}" for name in parts)
    room = _room()
    yield Finding(
        "memory",
        "ok" if _SLACK * need.total <= room else "fault",
        f"{_gb(need.total)} in each process for {share} pairs ({listed}) and a fifth more; this "
        f"machine has {_gb(room)}; {need.parameters / 1e6:.1f} million parameters",
    )
    yield from _hours(config, text, asked)
    yield from _disk(config, data, need)
    yield from _method(config)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool."""
    return run_command(command, argv, "plan")


def command(
    config: ConfigFile,
    overrides: Overrides = None,
    studies: Annotated[
        int | None, typer.Option(help="Training studies, before there is a manifest.")
    ] = None,
    images: Annotated[int | None, typer.Option(help="Images of all splits, before that.")] = None,
    images_per_s: Annotated[
        float | None, typer.Option(help="Speed of all processes together.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time to measure for; 0: none.")] = 20.0,
) -> int:
    """Print every finding, then the table of false negatives; 2 where there is a fault."""
    loaded = config_of(config, overrides)
    faults = 0
    for finding in plan(loaded, Asked(studies, images, images_per_s, seconds)):
        faults += finding.state == "fault"
        print(f"{finding.state:6}{finding.question:14}{finding.words}", flush=True)
    print(false_negatives(loaded))
    return 2 if faults else 0


def _data(config: Config, asked: Asked) -> Data:
    work = resolve_path(config.work, config)
    try:
        found = open_artifact(manifest.ARTIFACT.at(work), manifest.ARTIFACT, verify=False)
    except ArtifactError:
        given = asked.studies is not None or asked.images is not None
        return Data(asked.studies, asked.images, "the command line" if given else "nowhere")
    images = read_table(found.path, manifest.IMAGES, ["study_id", "split"])
    training = images.filter(pc.equal(images["split"], "train"))
    studies = pc.count_distinct(training["study_id"]).as_py()
    return Data(studies, len(images), "the manifest; some may lack an image or a sentence later")


def _steps(config: Config, data: Data) -> Iterator[Finding]:
    settings = config.train
    pairs = settings.steps * settings.global_batch
    words = f"{settings.steps} of {settings.global_batch} pairs, {pairs / 1e6:.3g} million in all"
    if data.studies is None:
        words += "; epochs unknown: run build_manifest, or give --studies"
        yield Finding("steps", "note", words)
    elif data.studies < settings.global_batch:
        yield Finding(
            "steps", "fault", f"{words}; {data.studies} training studies do not fill a batch"
        )
    else:
        epochs = settings.steps / (data.studies // settings.global_batch)
        words += f", {epochs:.1f} passes over {data.studies} training studies ({data.source})"
        yield Finding("steps", "ok", words)


def _text_sizes(config: Config) -> tuple[BertConfig, str]:
    """Find the text encoder's sizes, and say what had to be assumed."""
    chosen = config.model.text.pretrained or config.language_model.pretrained
    fitted = masked_lm.ARTIFACT.at(resolve_path(config.work, config))
    if not config.model.text.pretrained and (fitted / masked_lm.CONFIG).is_file():
        return read_config(fitted), ""
    if chosen:
        try:
            return read_config(resolve_path(chosen, config)), ""
        except MedclipError as error:
            words = f"sizes of BERT-base are assumed: {error}"
        vocabulary, width, layers, heads = _BASE
    else:
        own = config.language_model
        vocabulary, width, layers, heads = own.vocabulary, own.hidden_size, own.layers, own.heads
        words = f"not fitted yet; a BERT of {layers} layers of {width}, as the config asks"
    sizes = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    return sizes, words


def _room() -> int:
    """Memory of the accelerator, or of the machine, bytes."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _hours(config: Config, text: BertConfig, asked: Asked) -> Iterator[Finding]:
    settings = config.train
    rate = asked.images_per_s
    words = "as given"
    if rate is None and not asked.seconds:
        yield Finding("hours", "note", "not measured; give --images-per-s or --seconds")
        return
    if rate is None:
        each, pairs = measure_throughput(config, text, asked.seconds)
        rate = each * settings.processes
        words = f"measured here, one process, {pairs} pairs a step"
        if settings.processes > 1:
            words += f", times {settings.processes}: on machines like this, none slowed by others"
    hours = settings.steps * settings.global_batch / rate / 3600
    yield Finding(
        "hours", "ok", f"{hours:.3g} at {rate:.3g} images/s ({words}), validation and saving apart"
    )


def _disk(config: Config, data: Data, need: MemoryEstimate) -> Iterator[Finding]:
    work = resolve_path(config.work, config)
    room = shutil.disk_usage(
        next(parent for parent in (work.absolute(), *work.absolute().parents) if parent.exists())
    ).free
    needs = {
        "checkpoints": (KEEP_CHECKPOINTS + 1) * need.checkpoint,
        "model": need.weights,
    }
    unknown = []
    if data.images is None:
        unknown += ["prepared", "index"]
    else:
        needs["prepared"] = data.images * config.images.size_px**2
        vectors = config.model.similarity.dim * (2 * need.regions + 4)
        needs["index"] = data.images * (vectors + _THUMBNAIL * config.index.pictures)
    if (rows := _distinct(work)) is None:
        unknown.append("sentences to eta_cache")
    else:
        needs["sentences to eta_cache"] = 300 * rows
    for name in list(needs):
        if name in {"prepared", "index", "model"} and (work / name).is_dir():
            del needs[name]  # it is there
    total = sum(needs.values())
    listed = ", ".join(f"{name} {_gb(size)}" for name, size in needs.items())
    state: Literal["ok", "note", "fault"] = "note" if unknown else "ok"
    words = f"{_gb(total)} to come ({listed}), {_gb(room)} free"
    if unknown:
        words += f"; not known yet: {', '.join(unknown)} (run the earlier jobs, or give --images)"
    yield Finding("disk", "fault" if total > room else state, words)


def _method(config: Config) -> Iterator[Finding]:
    settings, eta = config.train, config.eta
    size = settings.global_batch
    if settings.processes > 1:
        yield Finding(
            "processes",
            "ok",
            f"{settings.processes} share a batch of {size}: N stays {size - 1}; for more of them "
            "raise train.processes alone",
        )
    if config.objective.kind != "debiased":
        return
    top = correction(eta.constant if eta.source == "constant" else eta.eta_max, size)
    yield Finding(
        "floor",
        "note" if size > PAPER_BATCH else "ok",
        f"at the largest eta an anchor learns nothing below an uncorrected loss of {top.edge:.2f} "
        f"nats, {top.reach:.0%} of the {math.log(size):.2f} of knowing nothing",
    )
    if size != PAPER_BATCH and eta.source == "pll":
        a, cap = (same_correction(value, PAPER_BATCH, size) for value in (eta.a, eta.eta_max))
        then, now = (correction(eta.eta_max, at).expected for at in (PAPER_BATCH, size))
        words = (
            f"train.global_batch {size} is another method than {PAPER_BATCH} with the same a, k "
            f"and cap: {now:.3g} false negatives at the cap, not {then:.3g}"
        )
        if max(a, cap) < 1:
            words += f"; eta.a={a:.4g} and eta.eta_max={cap:.4g} keep N eta of every sentence"
        yield Finding("global batch", "note", words)


def _distinct(work: Path) -> int | None:
    """Count the distinct sentences, where they are there."""
    try:
        found = open_artifact(sentences.ARTIFACT.at(work), sentences.ARTIFACT, verify=False)
    except ArtifactError:
        return None
    return len(sentences.distinct_sentences(found))


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


if __name__ == "__main__":
    sys.exit(main())
