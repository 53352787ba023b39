"""What a config will take before it is started: device, memory, hours, disk."""

import os
import shutil
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Literal, NamedTuple

import pyarrow.compute as pc
import torch
import typer
from torch import Tensor, UntypedStorage
from transformers import BertConfig, PreTrainedConfig

from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.errors import ArtifactError, MedclipError
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest
from medclip_dcl.likelihood import HEADS, masked_lm
from medclip_dcl.models.dual_encoder import DualEncoder, add_adapters, build_dual_encoder
from medclip_dcl.models.image_encoder import CHANNELS
from medclip_dcl.models.public.encoders import describe_image
from medclip_dcl.models.public.weights import fetch_weights, weights_file
from medclip_dcl.training.checkpoint import KEEP_CHECKPOINTS
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.launch import start_accelerator
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.optim import freeze, frozen_groups
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig
from medclip_dcl.training.setup import slow_start, start_of
from medclip_dcl.training.step import TrainStep

from .cli import ConfigFile, Overrides, config_of
from .config import Config
from .stages import OWN_WEIGHTS

_DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_SLACK = 1.2  # allocator, kernels and interpreter besides what is counted
_BASE = 30522, 768, 12, 12  # vocabulary, width, layers and heads of BERT-base
_THUMBNAIL = 12_000  # bytes of a grey JPEG of 256 px
_PIECES = 32  # word pieces of a timed sentence: the longest of a batch of report sentences
_TIMED_PAIRS = 8  # of a step on a CPU
_MOST_STEPS = 20


class Check(NamedTuple):
    """The answer to one question."""

    question: str
    state: Literal["ok", "note", "fault"]
    words: str


class StepCost(NamedTuple):
    """Cost of a step of one process: numbers of parameters, bytes, and speed."""

    parameters: int
    weights: int
    trained: int
    """Bytes of the parameters that learn: gradients and AdamW's two moments take as much each."""
    activations: int
    """Bytes that the forward pass keeps for the backward pass, of all pairs encoded at once."""
    regions: int  # of an image
    images_per_s: float | None  # None: not timed

    @property
    def memory(self) -> int:
        """All bytes of a process."""
        return self.weights + 3 * self.trained + self.activations


def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    studies: Annotated[
        int | None, typer.Option(help="Training studies, before there is a manifest.")
    ] = None,
    images: Annotated[int | None, typer.Option(help="Images of all splits, before that.")] = None,
    seconds: Annotated[float, typer.Option(help="Time to measure for; 0: none.")] = 20.0,
) -> int:
    """Say what a config will take before it is started: device, memory, hours, disk.

    Each line is one question with its answer: `ok`, `note` (something to know, or that could not
    be known) or `fault` (more than this machine has). What earlier jobs have made is read; before
    that, `--studies` and `--images` say how many there will be. Memory and hours follow from a few
    steps with random images on this machine, and are right within a factor of two. Nothing is
    written. Exit code 0 without faults, 2 with one.
    """
    loaded, code = config_of(config, overrides), 0
    for finding in checks_of(loaded, studies, images, seconds):
        print(f"{finding.state:6}{finding.question:14}{finding.words}", flush=True)
        code = 2 if finding.state == "fault" else code
    return code


def checks_of(
    config: Config,
    studies: int | None = None,
    images: int | None = None,
    seconds: float = 0.0,
) -> Iterator[Check]:
    """Answer one question about a config after the other; arguments are as in `plan`."""
    listed = manifest.ARTIFACT.at(resolve_path(config.work, config.work))
    with suppress(ArtifactError):  # there is none yet
        artifact = open_artifact(listed, manifest.ARTIFACT, verify=False)
        table = read_table(artifact.path, manifest.IMAGES, ["study_id", "split"])
        training = table.filter(pc.equal(table["split"], "train"))
        studies, images = pc.count_distinct(training["study_id"]).as_py(), len(table)
    yield from check_device()
    yield _steps(config, studies)
    try:
        if words := _image_start(config):
            yield Check("image encoder", "note", words)
        config, text, words = _sizes(config)
    except MedclipError as error:
        yield Check("encoders", "fault", str(error))
        return
    if words:
        yield Check("text encoder", "note", words)
    cost = measure_step(config, text, seconds)
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if torch.cuda.is_available():
        room = int(torch.cuda.get_device_properties(0).total_memory)
    yield Check(
        "memory",
        "ok" if _SLACK * cost.memory <= room else "fault",
        f"{_gb(cost.memory)} in each process, of that activations {_gb(cost.activations)}, and a "
        f"fifth more; this machine has {_gb(room)}; {cost.parameters / 1e6:.1f} million parameters",
    )
    yield _hours(_counted(config, studies), cost.images_per_s)
    yield _disk(config, images, cost)


def check_device() -> Iterator[Check]:
    """Check whether torch reaches a GPU and computes on it."""
    if not torch.cuda.is_available():
        words = f"torch {torch.__version__} reaches no GPU: everything runs on the CPU"
        if built := torch.version.cuda:
            words += f"; where nvidia-smi works, install a driver for CUDA {built}, start the "
            words += "container with a GPU, and see CUDA_VISIBLE_DEVICES"
        yield Check("device", "note", words)
        return
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        half = "bf16" if torch.cuda.is_bf16_supported() else "fp16 alone"
        ones = torch.ones(256, 256, device=f"cuda:{number}")
        is_right = bool((ones @ ones == 256).all())
        words = f"{torch.cuda.get_device_name(number)}, {half}, {_gb(free)} of {_gb(total)} free"
        words += "" if is_right else "; a matrix product is wrong: test the card, do not train"
        yield Check(f"cuda:{number}", "ok" if is_right else "fault", words)


def _steps(config: Config, studies: int | None) -> Check:
    batch, settings = config.train.global_batch, _counted(config, studies)
    words = f"{settings.epochs:g} epochs" if settings.steps is None else f"{settings.steps}"
    words += f" in batches of {batch}"
    if studies is None:
        return Check("steps", "note", f"{words}; run build_manifest, or give --studies, for passes")
    if studies < batch:
        return Check("steps", "fault", f"{words}; {studies} training studies do not fill a batch")
    passes = settings.total_steps / (studies // batch)
    return Check("steps", "ok", f"{words}, {passes:.1f} passes over {studies} training studies")


def _counted(config: Config, studies: int | None) -> TrainConfig:
    # Steps in place of epochs, where the studies are known.
    per_epoch = (studies or 0) // config.train.global_batch
    return config.train.counted(per_epoch) if per_epoch else config.train


def _image_start(config: Config) -> str:
    given = config.model.image.pretrained
    try:  # the weights are read when training starts, hours after the first job
        words = slow_start(config.model, config.train)
        if given and given != OWN_WEIGHTS:  # those are made before
            weights_file(fetch_weights(resolve_path(given, config.work)))
    except MedclipError as error:
        words = str(error)
    return words or ""


def _sizes(config: Config) -> tuple[Config, PreTrainedConfig, str]:
    # The config with what folders of weights say, the text encoder's sizes, what had to be assumed.
    model, own = config.model, config.language_model
    # Another image encoder's sizes are in the config, whether its weights are at hand or not.
    seen = model.image.pretrained if model.image.kind == "vit" else ""
    image = fetch_weights(resolve_path(seen, config.work)) if seen else None
    text = masked_lm.ARTIFACT.at(resolve_path(config.work, config.work))
    is_fitted = (text / masked_lm.CONFIG).is_file()
    given = model.pretrained or model.text.pretrained or ("" if is_fitted else own.pretrained)
    sizes, words = _BASE, ""
    try:
        if given or is_fitted:
            text = fetch_weights(resolve_path(given, config.work)) if given else text
            start = start_of(model, image, text)
            return config.model_copy(update={"model": start.settings}), start.text_config, ""
        sizes = own.vocabulary, own.hidden_size, own.layers, HEADS
        words = f"not fitted yet; a BERT of {own.layers} layers of {own.hidden_size}, as is asked"
    except MedclipError as error:
        if model.pretrained:
            raise
        words = f"sizes of BERT-base are assumed: {error}"
    vocabulary, width, layers, heads = sizes
    bert = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    described = model.model_copy(update={"image": describe_image(model.image, image)})
    return config.model_copy(update={"model": described}), bert, words


def measure_step(config: Config, text: PreTrainedConfig, seconds: float) -> StepCost:
    """Run steps of one process on random images for some seconds; the encoders always run.

    Weights are exact. What autograd keeps grows with the pairs, and with pairs times the sentences
    that they are scored with, and is extrapolated from two and four pairs. The paper's loss stands
    in for the config's, which costs no more than a hundredth of the step.
    """
    share = max(2, config.train.global_batch // config.train.processes)
    is_fast = torch.accelerator.is_available()
    pairs = share if is_fast else min(share, _TIMED_PAIRS)
    alone = {"global_batch": pairs, "processes": 1, "chunk": 0, "steps": _MOST_STEPS}
    settings = config.train.model_copy(update={**alone, "epochs": None})
    encoder = build_dual_encoder(config.model, text, config.seed)
    if config.model.lora:
        add_adapters(encoder, config.model.lora, config.seed)
    encoder.train()
    longest = min(config.model.text.max_tokens, text.max_position_embeddings)
    px, precision = config.model.image.input_px, settings.precision
    with torch.autocast("cpu", _DTYPES[precision], enabled=precision != "no"):
        two, regions = _kept_bytes(encoder, 2, px, longest)
        four, _ = _kept_bytes(encoder, 4, px, longest)
    squared = max(0.0, (four - 2 * two) / 8)
    scored = config.train.chunk or config.train.global_batch
    activations = min(share, scored) * (two / 2 - 2 * squared + squared * scored)
    times: list[float] = []
    if seconds:
        loss = ContrastiveObjective(ObjectiveConfig(directions=config.objective.directions), 0)
        step = TrainStep(
            start_accelerator(settings, config.workers), encoder, loss, settings, config.seed
        )
    while seconds and len(times) < _MOST_STEPS and sum(times[1:]) < seconds:
        batch = _random_batch(pairs, px, min(_PIECES, longest), text.vocab_size)
        start = time.perf_counter()
        step(batch, False)
        if is_fast:
            torch.accelerator.synchronize()
        times.append(time.perf_counter() - start)  # the first one warms caches and allocators
    freeze(encoder, frozen_groups(config.train))
    return StepCost(
        parameters=sum(item.numel() for item in encoder.parameters()),
        weights=_bytes_of([*encoder.parameters(), *encoder.buffers()]),
        trained=_bytes_of(item for item in encoder.parameters() if item.requires_grad),
        activations=round(activations),
        regions=regions,
        images_per_s=pairs / statistics.median(times[1:] or times) if times else None,
    )


def _kept_bytes(encoder: DualEncoder, pairs: int, px: int, longest: int) -> tuple[int, int]:
    # Bytes that autograd keeps of a forward pass at the longest sentences, without the weights, and
    # the regions of an image.
    storages: dict[int, UntypedStorage] = {}  # held, so that no two of them share an address

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
        return tensor

    ids = torch.ones(pairs, longest, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        crops = torch.zeros(pairs, CHANNELS, px, px)
        regions, sentences = encoder(crops, ids, torch.ones_like(ids))
        scores = encoder.score(regions, sentences)
    del scores
    weights = {item.untyped_storage().data_ptr() for item in encoder.parameters()}
    needed = sum(item.nbytes() for address, item in storages.items() if address not in weights)
    return needed, regions.shape[1] * regions.shape[2]


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(item.numel() * item.element_size() for item in tensors)


def _random_batch(pairs: int, px: int, width: int, vocabulary: int) -> ImageTextBatch:
    ones, ids = torch.ones(pairs), torch.randint(vocabulary, (pairs, width))
    return ImageTextBatch(
        step=0,
        mine=slice(0, pairs),
        study_ids=tuple(map(str, range(pairs))),
        crops=torch.randint(256, (pairs, 1, px, px), dtype=torch.uint8),
        brightness=ones,
        contrast=ones,
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        eta=0.05 * ones,
    )


def _hours(settings: TrainConfig, speed: float | None) -> Check:
    if settings.steps is None:
        return Check("hours", "note", "not known: give --studies, or run build_manifest")
    if speed is None:
        return Check("hours", "note", "not measured; give --seconds")
    hours = settings.total_steps * settings.global_batch / (speed * settings.processes) / 3600
    words = f"{hours:.3g} at {speed:.3g} images/s, measured here, in each of {settings.processes} "
    words += "processes; validation and evaluation apart"
    return Check("hours", "ok", words)


def _disk(config: Config, images: int | None, cost: StepCost) -> Check:
    work = resolve_path(config.work, config.work)
    there = next(item for item in (work.absolute(), *work.absolute().parents) if item.exists())
    room = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        return Check("disk", "fault", "the config's folder cannot be written; change `work`")
    checkpoint = cost.weights + 2 * cost.trained
    needs = {"checkpoints": (KEEP_CHECKPOINTS + 1) * checkpoint, "model": cost.weights}
    if images is not None:
        vectors = config.model.similarity.dim * (2 * cost.regions + 4)
        needs["prepared"] = images * config.images.size_px**2
        needs["index"] = images * (vectors + _THUMBNAIL * config.index.pictures)
    needs = {name: size for name, size in needs.items() if not (work / name).is_dir()}
    total = sum(needs.values())
    listed = ", ".join(f"{name} {_gb(size)}" for name, size in needs.items())
    words = f"{_gb(total)} to come ({listed}), {_gb(room)} free"
    if images is None:
        words += "; not known yet: prepared, index (run build_manifest, or give --images)"
    state: Literal["ok", "note"] = "note" if images is None else "ok"
    return Check("disk", "fault" if total > room else state, words)


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"
