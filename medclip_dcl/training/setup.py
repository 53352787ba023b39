"""What a run is put together from: inputs -> model, data, objective and hooks.

Every option of a run is given here, and the trainer knows none: weights to start from, adapters,
texts that are compared, validation, trackers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from accelerate import Accelerator
from torch import Tensor, nn

from medclip_dcl.core.artifact import HEADER, Artifact
from medclip_dcl.core.rng import RngStream, seed_for
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.models.dual_encoder import DualEncoder, add_adapters, build_dual_encoder
from medclip_dcl.models.public.encoders import (
    Start,
    packaged_text_config,
    read_start,
    read_tokenizer,
)
from medclip_dcl.models.public.weights import LoadReport
from medclip_dcl.models.settings import ModelConfig
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.corpus import Corpus, TokenTable, read_corpus
from medclip_dcl.training.dataset import ImageTextDataset
from medclip_dcl.training.logging import open_trackers
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.sampler import ImageTextSampler
from medclip_dcl.training.settings import TrainConfig
from medclip_dcl.training.supervision import (
    Supervision,
    closest_threshold,
    read_supervision,
    text_vectors,
)
from medclip_dcl.training.trainer import Hooks, TrainingData

if TYPE_CHECKING:  # what options alone need is imported where they are given
    from medclip_dcl.inference.prompts import Finding
    from medclip_dcl.training.validation import Validation

_LEAST_RANDOM_RATE = 1e-4


@dataclass(frozen=True)
class TrainInputs:
    """Inputs of a run, by the names of their table in `pipelines.stages`; None: not read."""

    manifest: Artifact
    prepared: Artifact
    sentences: Artifact
    eta_cache: Artifact
    text_weights: Path
    """Folder of the language model that the text encoder starts from, or of the whole model."""
    prompts: "tuple[Finding, ...]"  # findings that the model is published with, and validated by
    claims: Artifact | None = None
    image_weights: Path | None = None  # weights that the image encoder starts from; None: random


class CorpusSplit(NamedTuple):
    """One split as training reads it."""

    corpus: Corpus
    tokens: TokenTable
    supervision: Supervision


@dataclass(frozen=True)
class TrainSetup:
    """Model, data and objective of a run, before its first step."""

    config: TrainingConfig
    """The config, with what the folders that the model starts from say of themselves."""
    start: Start
    encoder: DualEncoder
    data: TrainingData
    objective: ContrastiveObjective
    hooks: Hooks
    prepared: PreparedImages


def set_up(
    config: TrainingConfig, inputs: TrainInputs, accelerator: Accelerator, say: Callable[..., None]
) -> TrainSetup:
    """Put a run together.

    Raises:
        MedclipError: an input is missing, stale or does not fit.
    """
    start = start_of(config.model, inputs.image_weights, inputs.text_weights)
    # What folders say of sizes, pooling and longest input: texts and images are cut by it.
    config = config.model_copy(update={"model": start.settings})
    encoder = _build_encoder(config, start, accelerator, say)
    prepared = PreparedImages(inputs.prepared)
    splits = _read_corpus(config, inputs, start, prepared, say)
    if config.objective.negatives.endswith("_similar"):  # weighed by how alike texts are
        tokens = {name: (split.corpus, split.tokens) for name, split in splits.items()}
        for name, vectors in text_vectors(encoder.text, tokens, accelerator.device).items():
            splits[name].supervision.of_texts["text_vectors"] = vectors
    parts = {
        name: _training_data(config, split, prepared, accelerator, trains=name == "train")
        for name, split in splits.items()
    }
    validation = None
    if "validate" in parts:
        validation = _validation(
            config, inputs, start, prepared, parts["validate"], accelerator, say
        )
    data = parts["train"]
    return TrainSetup(
        config=config,
        start=start,
        encoder=encoder,
        data=data,
        objective=_objective(config, data, say),
        # Trackers open later: the step that a run goes on from is read with its checkpoint.
        hooks=Hooks(say, validation, partial(open_trackers, accelerator, config)),
        prepared=prepared,
    )


@dataclass(frozen=True)
class PackageStart(Start):
    """Start of both encoders from a model package."""

    state: Mapping[str, Tensor] = field(default_factory=dict)

    def fill(self, encoder: DualEncoder) -> dict[str, LoadReport]:
        """Fill an encoder that was built from the settings."""
        encoder.load_state_dict(self.state)
        return {"model": LoadReport(tuple(self.state), (), (), "package")}


def start_of(settings: ModelConfig, image: Path | None, text: Path) -> Start:
    """Read what a model starts from: `read_start`; or a model package, by its own settings.

    Raises:
        CheckpointError: a file is missing, damaged, or of a kind that is not known here.
        ArtifactError: the package is not whole.
    """
    whole = bool(settings.pretrained)  # one checkpoint of both encoders
    if not whole or not (text / HEADER).is_file():
        return read_start(settings, image, text, whole=whole)
    from medclip_dcl.inference.model_package import read_model_package

    saved = read_model_package(text)
    own_start = {name: getattr(settings, name) for name in ("pretrained", "lora")}
    # A package brings its own sizes; where it is from, and the adapters, are of this run.
    own = saved.config.model.model_copy(update=own_start)
    with saved.text_folder() as folder:
        config = packaged_text_config(folder)
        tokenizer = read_tokenizer(folder, config)
    return PackageStart(own, config, tokenizer, None, text, None, saved.weights())


def slow_start(model: ModelConfig, settings: TrainConfig) -> str:
    """Warn of an image encoder that learns from random weights at a low rate; empty: it does not.

    AdamW moves a weight by about the learning rate a step, whatever the gradient: at 1e-5, 10,000
    steps in one direction make 0.1.
    """
    rate = settings.learning_rate
    is_frozen = "image" in settings.frozen
    if model.pretrained or model.image.pretrained or is_frozen or rate >= _LEAST_RANDOM_RATE:
        return ""
    return (
        f"the image encoder starts from random weights and learns at {rate:g}, too little to leave "
        "its start; set model.image.pretrained to weights such as ImageNet's, or "
        f"train.learning_rate to {_LEAST_RANDOM_RATE:g} or more"
    )


def _build_encoder(
    config: TrainingConfig, start: Start, accelerator: Accelerator, say: Callable[..., None]
) -> DualEncoder:
    # All weights are drawn first: what a checkpoint lacks, such as projections, starts from these.
    encoder = build_dual_encoder(config.model, start.text_config, config.seed)
    if warning := slow_start(config.model, config.train):
        say(warning=warning)
    for part, report in start.fill(encoder).items():
        say(weights=part, layout=report.layout, **report.counts)
    if config.model.lora:  # after the weights, whose keys adapters change
        layers = add_adapters(encoder, config.model.lora, config.seed)
        say(lora_ranks=config.model.lora, lora_layers=layers)
    if accelerator.num_processes > 1 and accelerator.device.type == "cuda":
        # One process sees the statistics of the whole batch; so do many.
        encoder.image = nn.SyncBatchNorm.convert_sync_batchnorm(encoder.image)  # type: ignore[no-untyped-call]
    return encoder


def _read_corpus(
    config: TrainingConfig,
    inputs: TrainInputs,
    start: Start,
    prepared: PreparedImages,
    say: Callable[..., None],
) -> Mapping[str, CorpusSplit]:
    splits = {}
    for name in ("train", "validate") if config.train.validate_every_steps else ("train",):
        corpus = read_corpus(inputs.manifest, prepared, inputs.sentences, inputs.eta_cache, name)
        supervision = read_supervision(config.objective, corpus, inputs.manifest, inputs.claims)
        tokens = TokenTable(start.tokenizer, corpus.texts, config.model.text.max_tokens)
        splits[name] = CorpusSplit(corpus, tokens, supervision)
        counts = {"studies": corpus.study_ids, "images": corpus.image_ids, "texts": corpus.texts}
        say(corpus=name, **{what: len(each) for what, each in counts.items()})
    return splits


def _training_data(
    config: TrainingConfig,
    split: CorpusSplit,
    prepared: PreparedImages,
    accelerator: Accelerator,
    *,
    trains: bool,
) -> TrainingData:
    settings, (corpus, tokens, supervision) = config.train, split
    # Validation batches are drawn once, from a seed of their own, and not augmented.
    seed = config.seed if trains else seed_for(config.seed, RngStream.VALIDATION) % 2**31
    size = settings.global_batch
    if not trains:
        from medclip_dcl.training.validation import validation_batch

        size = validation_batch(len(corpus.study_ids), settings)
    shuffled = settings.shuffle_reports and trains
    sampler = ImageTextSampler(corpus.images, corpus.sentences, size, seed, shuffled)
    # Each process reads the images of its own slots alone.
    local = size // settings.processes
    first = accelerator.process_index * local
    dataset = ImageTextDataset(
        corpus=corpus,
        supervision=supervision,
        prepared=prepared,
        tokens=tokens,
        sampler=sampler,
        input_px=config.model.image.input_px,
        seed=config.seed if trains else None,
        mine=slice(first, first + local),
    )
    return TrainingData(corpus, dataset, sampler)


def _objective(
    config: TrainingConfig, data: TrainingData, say: Callable[..., None]
) -> ContrastiveObjective:
    settings, threshold = config.objective, 1.0
    if settings.negatives == "remove_similar":
        vectors = data.dataset.supervision.of_texts["text_vectors"]
        threshold = closest_threshold(vectors, data.corpus, data.sampler, settings.remove_share)
        say(closest_share=settings.remove_share, above_cosine=round(threshold, 4))
    return ContrastiveObjective(settings, config.seed, threshold, config.train.chunk)


def _validation(
    config: TrainingConfig,
    inputs: TrainInputs,
    start: Start,
    prepared: PreparedImages,
    data: TrainingData,
    accelerator: Accelerator,
    say: Callable[..., None],
) -> "Validation":
    from medclip_dcl.training.validation import MOST_BATCHES, Validation, ValidationMetrics

    settings, count = config.train, min(MOST_BATCHES, data.sampler.steps_per_epoch)
    # Made once and kept, so that two steps are compared on the same pairs.
    batches = [data.dataset.batch(step) for step in range(count)]
    if (pairs := len(batches[0].eta)) < settings.global_batch:
        say(
            warning=f"the validation split has fewer studies than train.global_batch: its losses "
            f"are of batches of {pairs}, with {pairs - 1} negatives in place of "
            f"{settings.global_batch - 1}"
        )
    # One process suffices for these: all hold the same weights.
    if not settings.validate_images or not accelerator.is_main_process:
        return Validation(batches)
    return Validation(
        batches,
        ValidationMetrics(
            config,
            data.corpus,
            inputs.manifest,
            inputs.claims,
            prepared,
            inputs.prompts,
            partial(TokenTable, start.tokenizer, max_tokens=config.model.text.max_tokens),
        ),
    )
