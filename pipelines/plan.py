"""Say what a config will take before it is started: memory, hours, disk, false negatives.

Each line is one question with its answer: `ok`, `note` (something to know, or that could not
be known) or `fault` (more than this machine has). What earlier jobs have made is read; before
that, `--studies` and `--images` say how many there will be. Hours follow from a few steps with
random images on this machine, or from `--images-per-s`, of all processes together; `--table1` and
`--grid` add up those of every run that `table1` and `sweep` would train. Nothing is written. Exit
code 0 without faults, 2 with one. `--kubernetes` prints manifests of the stages instead.
"""

import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import pyarrow.compute as pc
import torch
import typer
import yaml
from transformers import BertConfig, PreTrainedConfig

from medclip_dcl.artifact import Artifact, ArtifactType, open_artifact
from medclip_dcl.data import manifest
from medclip_dcl.errors import ArtifactError, MedclipError
from medclip_dcl.likelihood import masked_lm
from medclip_dcl.likelihood.settings import HEADS
from medclip_dcl.models.encoder_files import describe_image
from medclip_dcl.models.pretrained import fetch_weights, weights_file
from medclip_dcl.models.towers import read_start
from medclip_dcl.settings import resolve_path
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.training.checkpoint import KEEP_CHECKPOINTS
from medclip_dcl.training.settings import TrainConfig
from medclip_dcl.training.setup import slow_start
from medclip_dcl.training.validation import validation_batch

from .cli import ConfigFile, Overrides, config_of, tool_main
from .config import Config
from .doctor import Check, nearest_folder, print_findings
from .false_negatives import PAPER_BATCH, correction, false_negatives, same_correction
from .grid import PlannedRuns, changed_config, grid_runs, read_grid
from .jobset import make_jobset
from .runs import runs_at_a_time
from .stages import OWN_WEIGHTS
from .table1 import table_runs
from .training_cost import MemoryEstimate, estimate_training_memory, measure_throughput

_SLACK = 1.2  # allocator, kernels and interpreter besides what is counted
_BASE = 30522, 768, 12, 12  # vocabulary, width, layers and heads of BERT-base
_THUMBNAIL = 12_000  # bytes of a grey JPEG of 256 px
_SENTENCE = 300  # bytes of a distinct sentence in all tables about it


def plan(
    config: Config,
    studies: int | None,
    images: int | None,
    images_per_s: float | None,
    seconds: float,
    grids: Mapping[str, Sequence[PlannedRuns]] = MappingProxyType({}),
) -> Iterator[Check]:
    """Answer one question about a config after the other; the rest is as in `command`.

    `grids` are runs that are trained next to each other, by the name of their question.
    """
    source = "the command line"
    if (counted := _counts(config)) is not None:
        (studies, images), source = counted, "the manifest; some may lack an image or a sentence"
    yield _steps(config, studies, source)
    yield from _validation(config)
    yield from _image_start(config)
    try:
        config, text, words = _sizes(config)
    except MedclipError as error:
        yield Check("encoders", "fault", str(error))
        return
    if words:
        yield Check("text encoder", "note", words)
    need = estimate_training_memory(config, text)
    share = config.train.global_batch // config.train.processes
    pairs = f"{share} pairs"
    if 0 < config.train.chunk < share:
        pairs += f", {config.train.chunk} at once"
    parts = ("weights", "gradients", "moments", "activations", "batches")
    listed = ", ".join(f"{name} {_gb(getattr(need, name))}" for name in parts)
    room = _room()
    yield Check(
        "memory",
        "ok" if _SLACK * need.total <= room else "fault",
        f"{_gb(need.total)} in each process for {pairs} ({listed}) and a fifth more; this "
        f"machine has {_gb(room)}; {need.parameters / 1e6:.1f} million parameters",
    )
    speed = None
    if _counted(config, studies).steps is not None:
        speed = _speed(config, text, images_per_s, seconds)
    yield _hours(_counted(config, studies), speed)
    for name, runs in grids.items():
        yield _hours_of_all(name, config, studies, runs, speed)
    yield _disk(config, images, need)
    yield from _method(config)


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
    table1: Annotated[bool, typer.Option("--table1", help="Hours of all runs of table1.")] = False,
    grid: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hours of all runs of this sweep.")
    ] = None,
    kubernetes: Annotated[
        str, typer.Option(metavar="NODESxGPUS", help="Print a JobSet of the stages, and no plan.")
    ] = "",
    image: Annotated[str, typer.Option(help="Container image of the JobSet.")] = "medclip-dcl",
) -> int:
    """Print every finding, then the table of false negatives; 2 where there is a fault."""
    loaded = config_of(config, overrides)
    if kubernetes:
        jobset = make_jobset(loaded, config.name, overrides or (), kubernetes, image)
        print(yaml.safe_dump(jobset, sort_keys=False), end="")
        return 0
    grids: dict[str, Sequence[PlannedRuns]] = {}
    if table1:
        grids["table1"] = table_runs(loaded)
    if grid is not None:
        grids["sweep"] = grid_runs(read_grid(grid))
    code = print_findings(plan(loaded, studies, images, images_per_s, seconds, grids))
    print(false_negatives(loaded))
    return code


def _made(config: Config, kind: ArtifactType) -> Artifact | None:
    try:
        return open_artifact(kind.at(resolve_path(config.work, config.work)), kind, verify=False)
    except ArtifactError:
        return None


def _counts(config: Config) -> tuple[int, int] | None:
    # Training studies, and images of all splits.
    if (found := _made(config, manifest.ARTIFACT)) is None:
        return None
    return _studies(found, "train"), len(read_table(found.path, manifest.IMAGES, ["split"]))


def _studies(listed: Artifact, split: str) -> int:
    images = read_table(listed.path, manifest.IMAGES, ["study_id", "split"])
    chosen = images.filter(pc.equal(images["split"], split))
    return int(pc.count_distinct(chosen["study_id"]).as_py())


def _validation(config: Config) -> Iterator[Check]:
    listed, batch = _made(config, manifest.ARTIFACT), config.train.global_batch
    if listed is None or not config.train.validate_every_steps:
        return
    studies = _studies(listed, "validate")
    try:
        size = validation_batch(studies, config.train)
    except MedclipError as error:
        yield Check("validation", "fault", str(error))
        return
    words = f"{studies} studies, in batches of {size}"
    if size < batch:
        words += f", with fewer negatives than the {batch - 1} of training"
    yield Check("validation", "note" if size < batch else "ok", words)


def _steps(config: Config, studies: int | None, source: str) -> Check:
    batch, settings = config.train.global_batch, _counted(config, studies)
    if settings.steps is None:
        words = f"{settings.epochs:g} epochs in batches of {batch}"
    else:
        steps = settings.steps
        words = f"{steps} of {batch} pairs, {steps * batch / 1e6:.3g} million in all"
    if studies is None:
        words += f"; {'steps' if settings.steps is None else 'epochs'} unknown: run build_manifest"
        return Check("steps", "note", f"{words}, or give --studies")
    if studies < batch:
        return Check("steps", "fault", f"{words}; {studies} training studies do not fill a batch")
    passes = settings.total_steps / (studies // batch)
    words += f", {passes:.1f} passes over {studies} training studies ({source})"
    return Check("steps", "ok", words)


def _counted(config: Config, studies: int | None) -> TrainConfig:
    # Steps in place of epochs, where the studies are known.
    per_epoch = (studies or 0) // config.train.global_batch
    return config.train.counted(per_epoch) if per_epoch else config.train


def _image_start(config: Config) -> Iterator[Check]:
    given = config.model.image.pretrained
    try:  # the weights are read when training starts, hours after the first job
        words = slow_start(config.model, config.train)
        if given and given != OWN_WEIGHTS:  # those are made before
            weights_file(_folder(given, config))
    except MedclipError as error:
        words = str(error)
    if words:
        yield Check("image encoder", "note", words)


def _sizes(config: Config) -> tuple[Config, PreTrainedConfig, str]:
    # The config with what folders of weights say, the text encoder's sizes, what had to be assumed.
    model, is_whole = config.model, bool(config.model.pretrained)
    # Another image encoder's sizes are in the config, whether its weights are at hand or not.
    seen = model.image.pretrained if model.image.kind == "vit" else ""
    image = _folder(seen, config) if seen else None
    fitted = masked_lm.ARTIFACT.at(resolve_path(config.work, config.work))
    is_fitted = (fitted / masked_lm.CONFIG).is_file()
    chosen = model.pretrained or model.text.pretrained
    if not chosen and not is_fitted:
        chosen = config.language_model.pretrained
    if chosen or is_fitted:
        try:
            text = _folder(chosen, config) if chosen else fitted
            start = read_start(model, image, text, whole=is_whole)
            return config.model_copy(update={"model": start.settings}), start.text_config, ""
        except MedclipError as error:
            if is_whole:
                raise
            words = f"sizes of BERT-base are assumed: {error}"
        vocabulary, width, layers, heads = _BASE
    else:
        own = config.language_model
        vocabulary, width, layers, heads = own.vocabulary, own.hidden_size, own.layers, HEADS
        words = f"not fitted yet; a BERT of {layers} layers of {width}, as the config asks"
    sizes = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    described = model.model_copy(update={"image": describe_image(model.image, image)})
    return config.model_copy(update={"model": described}), sizes, words


def _folder(given: str, config: Config) -> Path:
    return fetch_weights(resolve_path(given, config.work))


def _room() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _speed(
    config: Config, text: PreTrainedConfig, rate: float | None, seconds: float
) -> tuple[float, str] | None:
    # Images a second of all processes together, and how that is known.
    if rate is not None:
        return rate, "as given"
    if not seconds:
        return None
    each, pairs = measure_throughput(config, text, seconds)
    processes = config.train.processes
    words = f"measured here, one process, {pairs} pairs a step"
    if processes > 1:
        words += f", times {processes}: on machines like this, none slowed by others"
    return each * processes, words


def _hours(settings: TrainConfig, speed: tuple[float, str] | None) -> Check:
    if settings.steps is None:
        return Check("hours", "note", "not known: give --studies, or run build_manifest")
    if speed is None:
        return Check("hours", "note", "not measured; give --images-per-s or --seconds")
    rate, words = speed
    hours = settings.steps * settings.global_batch / rate / 3600
    apart = "validation and saving apart"
    return Check("hours", "ok", f"{hours:.3g} at {rate:.3g} images/s ({words}), {apart}")


def _hours_of_all(
    name: str,
    config: Config,
    studies: int | None,
    runs: Sequence[PlannedRuns],
    speed: tuple[float, str] | None,
) -> Check:
    """Add up the hours of a table or a grid, each run at its own steps and batch."""
    count = sum(each.count for each in runs)
    if speed is None:
        return Check(name, "note", f"{count} runs; their hours are not known, as those above")
    pairs = 0
    for each in runs:
        settings = _counted(changed_config(config, each.changes, f"of {name}"), studies)
        if settings.steps is None:
            return Check(name, "note", f"{count} runs of epochs: give --studies for their hours")
        pairs += each.count * settings.total_steps * settings.global_batch
    hours, places = pairs / speed[0] / 3600, runs_at_a_time()
    return Check(
        name,
        "ok",
        f"{count} runs, {hours:.3g} hours of training one after the other; {places} at a time by "
        f"default here, {hours / places:.3g} hours where none slows another; evaluation apart",
    )


def _disk(config: Config, images: int | None, need: MemoryEstimate) -> Check:
    work = resolve_path(config.work, config.work)
    room = shutil.disk_usage(nearest_folder(work)).free
    needs = {"checkpoints": (KEEP_CHECKPOINTS + 1) * need.checkpoint, "model": need.weights}
    unknown = []
    if images is None:
        unknown += ["prepared", "index"]
    else:
        needs["prepared"] = images * config.images.size_px**2
        vectors = config.model.similarity.dim * (2 * need.regions + 4)
        needs["index"] = images * (vectors + _THUMBNAIL * config.index.pictures)
    if (said := _made(config, sentences.ARTIFACT)) is None:
        unknown.append("sentences to eta_cache")
    else:
        keys = read_table(said.path, sentences.SENTENCES, ["text_key"])["text_key"]
        needs["sentences to eta_cache"] = _SENTENCE * pc.count_distinct(keys).as_py()
    for name in list(needs):
        if name in {"prepared", "index", "model"} and (work / name).is_dir():
            del needs[name]  # it is there
    total = sum(needs.values())
    listed = ", ".join(f"{name} {_gb(size)}" for name, size in needs.items())
    state: Literal["ok", "note", "fault"] = "note" if unknown else "ok"
    words = f"{_gb(total)} to come ({listed}), {_gb(room)} free"
    if unknown:
        words += f"; not known yet: {', '.join(unknown)} (run the earlier jobs, or give --images)"
    return Check("disk", "fault" if total > room else state, words)


def _method(config: Config) -> Iterator[Check]:
    settings, eta = config.train, config.eta
    size = settings.global_batch
    if settings.processes > 1:
        yield Check(
            "processes",
            "ok",
            f"{settings.processes} share a batch of {size}: N stays {size - 1}; for more of them "
            "raise train.processes alone",
        )
    if config.objective.kind != "debiased":
        return
    top = correction(eta.constant if eta.source == "constant" else eta.eta_max, size)
    yield Check(
        "floor",
        "note" if size > PAPER_BATCH else "ok",
        f"at the largest eta an anchor learns nothing below an uncorrected loss of {top.edge:.2f} "
        f"nats, {top.reach:.0%} of the {math.log(size):.2f} of knowing nothing",
    )
    if size != PAPER_BATCH and (eta.source, eta.fit) == ("pll", "none"):
        a, cap = (same_correction(value, PAPER_BATCH, size) for value in (eta.a, eta.eta_max))
        then, now = (correction(eta.eta_max, at).expected for at in (PAPER_BATCH, size))
        words = (
            f"train.global_batch {size} is another method than {PAPER_BATCH} with the same a, k "
            f"and cap: {now:.3g} false negatives at the cap, not {then:.3g}"
        )
        if max(a, cap) < 1:
            words += f"; eta.a={a:.4g} and eta.eta_max={cap:.4g} keep N eta of every sentence"
        yield Check("global batch", "note", words)


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


main = tool_main("plan", command)

if __name__ == "__main__":
    sys.exit(main())
