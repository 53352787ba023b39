"""Setup of a training run: inputs -> model, data and loss before the first step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedTokenizerBase

from medclip_dcl.artifact import Artifact, open_artifact
from medclip_dcl.data.ground_truth import Truth
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import ConfigError
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.lora import add_adapters
from medclip_dcl.models.settings import ModelConfig
from medclip_dcl.models.towers import Start, read_start
from medclip_dcl.rng import RngStream, seed_for
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.corpus import Corpus, TokenTable
from medclip_dcl.training.corpus_cache import ARTIFACT as CORPUS
from medclip_dcl.training.corpus_cache import CorpusSplit, cache_corpus, map_corpus
from medclip_dcl.training.dataset import ImageTextBatch, ImageTextDataset, SplitFeatures
from medclip_dcl.training.feature_cache import ARTIFACT as FEATURES
from medclip_dcl.training.feature_cache import cache_features
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.sampler import ImageTextSampler
from medclip_dcl.training.settings import TrainConfig
from medclip_dcl.training.text_similarity import TextSpace, closest_threshold
from medclip_dcl.training.validation import MOST_BATCHES, ValidationMetrics, validation_batch

_LEAST_RANDOM_RATE = 1e-4


@dataclass(frozen=True)
class TrainInputs:
    """Inputs of a run."""

    manifest: Artifact
    prepared: Artifact
    sentences: Artifact
    eta_cache: Artifact
    claims: Artifact | None
    """None where neither the objective nor the choice of the best step reads claims."""
    text_folder: Path
    """Folder of the language model that the text encoder starts from, or of the whole model."""
    truth: Truth | None
    """What a generated source knows; None for any other."""
    image_weights: Path | None
    """Weights that the image encoder starts from; None: random."""
    findings: tuple[Finding, ...]
    """Prompts that the model is published with, and validated by."""
    text_checkpoint: Path | None = None
    """Folder of the pretrained weights that the text encoder comes from, where texts are compared;
    None: there are none."""
    similar_table: Path | None = None
    """Vectors by which texts are compared; None: an encoder's."""


@dataclass(frozen=True)
class TrainSetup:
    """Model, data and loss of a run, before its first step."""

    config: TrainingConfig
    """The config, with what the folders that the model starts from say of themselves."""
    start: Start
    encoder: DualEncoder
    prepared: PreparedImages
    corpus: Corpus
    """The training split."""
    dataset: ImageTextDataset
    sampler: ImageTextSampler
    objective: ContrastiveObjective
    validation: Sequence[ImageTextBatch]
    """Batches of the validation split; none where the run does not validate."""
    metrics: ValidationMetrics | None


def set_up(
    config: TrainingConfig,
    inputs: TrainInputs,
    accelerator: Accelerator,
    folder: Path,
    say: Callable[..., None],
) -> TrainSetup:
    """Build model, data and loss; `folder` receives the corpus, and features where they are kept.

    Raises:
        MedclipError: an input is missing, stale or does not fit.
    """
    begun = _read_start(config.model, inputs)
    config = config.model_copy(update={"model": begun.settings})
    encoder = _build_encoder(config, begun, accelerator, say)
    space = None
    if config.objective.compares_texts:
        table, checkpoint = inputs.similar_table, inputs.text_checkpoint
        device = accelerator.device
        space = TextSpace(config.objective, encoder.text, checkpoint, table, device)
    made = _made_corpus(config, inputs, begun.tokenizer, accelerator, folder, say)
    data = _Data(config, inputs, begun.tokenizer, accelerator, space, made)
    data = _with_features(data, encoder, folder, say)
    corpus, dataset, sampler = data.split("train")
    validation, metrics = data.validation()
    if validation and (pairs := len(validation[0].eta)) < config.train.global_batch:
        say(
            warning=f"the validation split has fewer studies than train.global_batch: its losses "
            f"are of batches of {pairs}, with {pairs - 1} negatives in place of "
            f"{config.train.global_batch - 1}"
        )
    threshold = 1.0
    if space is not None:
        say(texts_compared_by=space.name)
    if config.objective.negatives == "remove_similar":
        vectors, share = dataset.supervision.text_vectors, config.objective.remove_share
        assert vectors is not None
        threshold = closest_threshold(vectors, corpus, sampler, share)
        say(closest_share=share, above_cosine=round(threshold, 4))
    return TrainSetup(
        config=config,
        start=begun,
        encoder=encoder,
        prepared=data.prepared,
        corpus=corpus,
        dataset=dataset,
        sampler=sampler,
        objective=ContrastiveObjective(
            config.objective, config.seed, threshold, config.train.chunk
        ),
        validation=validation,
        metrics=metrics,
    )


def _read_start(model: ModelConfig, inputs: TrainInputs) -> Start:
    is_whole = bool(model.pretrained)
    return read_start(model, inputs.image_weights, inputs.text_folder, whole=is_whole)


def slow_start(model: ModelConfig, settings: TrainConfig) -> str:
    """Warn of an image encoder that learns from random weights at a low rate; empty: it does not.

    AdamW moves a weight by about the learning rate a step, whatever the gradient: at 1e-5, 10,000
    steps in one direction make 0.1.
    """
    rate = settings.image_learning_rate or settings.learning_rate
    is_frozen = settings.steps is not None and settings.image_frozen_steps >= settings.steps
    is_frozen |= settings.cache_features
    if model.pretrained or model.image.pretrained or is_frozen or rate >= _LEAST_RANDOM_RATE:
        return ""
    return (
        f"the image encoder starts from random weights and learns at {rate:g}, too little to leave "
        "its start; set model.image.pretrained to weights such as ImageNet's, or "
        f"train.image_learning_rate to {_LEAST_RANDOM_RATE:g} or more"
    )


def _build_encoder(
    config: TrainingConfig,
    begun: Start,
    accelerator: Accelerator,
    say: Callable[..., None],
) -> DualEncoder:
    encoder = build_dual_encoder(config.model, begun.text_config, config.seed)
    if config.objective.kind == "sigmoid":
        encoder.add_bias(-math.log(config.train.global_batch - 1))
    if warning := slow_start(config.model, config.train):
        say(warning=warning)
    for part, report in begun.fill(encoder).items():
        say(weights=part, layout=report.layout, **report.counts)
    if config.model.lora:
        layers = add_adapters(encoder, config.model.lora, config.seed)
        say(lora_ranks=config.model.lora, lora_layers=layers)
    if accelerator.num_processes > 1 and accelerator.device.type == "cuda":
        # One process sees the statistics of the whole batch; so do many.
        encoder.image = nn.SyncBatchNorm.convert_sync_batchnorm(encoder.image)  # type: ignore[no-untyped-call]
    return encoder


def _made_corpus(
    config: TrainingConfig,
    inputs: TrainInputs,
    tokenizer: PreTrainedTokenizerBase,
    accelerator: Accelerator,
    work: Path,
    say: Callable[..., None],
) -> Artifact:
    if accelerator.is_main_process:
        names = ("manifest", "prepared", "sentences", "eta_cache", "claims")
        artifact = cache_corpus(
            work,
            {name: item for name in names if (item := getattr(inputs, name)) is not None},
            inputs.truth,
            config.objective,
            tokenizer,
            config.model.text.max_tokens,
            ("train", "validate") if config.train.validate_every_steps else ("train",),
        )
        say(corpus=artifact.summary, seconds=artifact.origin["seconds"])
    accelerator.wait_for_everyone()
    return open_artifact(CORPUS.at(work), CORPUS, verify=False)


def _with_features(
    data: "_Data", encoder: DualEncoder, work: Path, say: Callable[..., None]
) -> "_Data":
    if not data.config.train.cache_features:
        return data
    if data.config.model.lora:
        raise ConfigError(
            "train.cache_features leaves both encoders as they are, and adapters would change "
            "them; set model.lora to {}"
        )
    if data.accelerator.is_main_process:
        names = ["train", "validate"] if data.config.train.validate_every_steps else ["train"]
        inputs = {
            name: getattr(data.inputs, name) for name in ("manifest", "prepared", "sentences")
        }
        splits = {name: data.mapped(name)[:2] for name in names}
        artifact = cache_features(
            work, encoder, data.config.model, data.prepared, inputs, splits, data.accelerator.device
        )
        say(features=artifact.summary, seconds=artifact.origin["seconds"])
    data.accelerator.wait_for_everyone()
    return replace(data, features=FEATURES.at(work))


@dataclass(frozen=True)
class _Data:
    """Data of a run, split by split."""

    config: TrainingConfig
    inputs: TrainInputs
    tokenizer: PreTrainedTokenizerBase
    accelerator: Accelerator
    space: TextSpace | None
    made: Artifact
    """The corpus."""
    features: Path | None = None
    """Folder of the features of frozen encoders."""

    @cached_property
    def prepared(self) -> PreparedImages:
        return PreparedImages(self.inputs.prepared)

    def mapped(self, split: str) -> CorpusSplit:
        return map_corpus(self.made, split, self.tokenizer)

    def split(self, split: str) -> tuple[Corpus, ImageTextDataset, ImageTextSampler]:
        config, settings = self.config, self.config.train
        corpus, tokens, supervision = self.mapped(split)
        trains = split == "train"
        # Validation batches are drawn once, from a seed of their own, and not augmented.
        seed = config.seed if trains else seed_for(config.seed, RngStream.VALIDATION) % 2**31
        studies = len(corpus.study_ids)
        size = settings.global_batch if trains else validation_batch(studies, settings)
        sampler = ImageTextSampler(
            corpus.images,
            corpus.sentences,
            size,
            seed,
            settings.shuffle_reports and trains,
        )
        local = size // settings.processes
        start = self.accelerator.process_index * local
        if self.space is not None:
            encode = self.space.fit if trains else self.space.vectors
            supervision = replace(supervision, text_vectors=encode(corpus, tokens))
        dataset = ImageTextDataset(
            corpus=corpus,
            supervision=supervision,
            prepared=self.prepared,
            tokens=tokens,
            sampler=sampler,
            input_px=config.model.image.input_px,
            seed=config.seed if trains else None,
            mine=slice(start, start + local),
            features=None if self.features is None else SplitFeatures(self.features, split),
        )
        return corpus, dataset, sampler

    def validation(self) -> tuple[list[ImageTextBatch], ValidationMetrics | None]:
        settings = self.config.train
        if not settings.validate_every_steps:
            return [], None
        corpus, dataset, sampler = self.split("validate")
        count = min(MOST_BATCHES, sampler.steps_per_epoch)
        batches = [dataset.batch(step) for step in range(count)]
        if not settings.validate_images or not self.accelerator.is_main_process:
            return batches, None
        return batches, ValidationMetrics(
            self.config,
            corpus,
            self.inputs.manifest,
            self.inputs.claims,
            self.prepared,
            self.inputs.findings,
            partial(TokenTable, self.tokenizer, max_tokens=self.config.model.text.max_tokens),
        )
