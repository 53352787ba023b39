"""A published model that answers: which findings an image shows, and where a phrase is seen.

The same code serves evaluation and the service.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from medclip_dcl.core.artifact import HEADER
from medclip_dcl.core.errors import CheckpointError, QueryError
from medclip_dcl.data.grayscale import GreyImage, square
from medclip_dcl.inference.encoders import load_encoders, warn_of_cut_texts
from medclip_dcl.inference.grounding import Grounding, PhraseGrids, locate
from medclip_dcl.inference.heads import Head, HeadScore, read_heads
from medclip_dcl.inference.input_range import is_out_of_range
from medclip_dcl.inference.model_package import (
    ARTIFACT,
    InputRange,
    PackagedConfig,
    PromptOffsets,
    SavedModel,
    ScoreCalibration,
    read_bank,
    read_input_range,
    read_model_package,
    read_offsets,
)
from medclip_dcl.inference.prompts import Finding, parse_prompts
from medclip_dcl.inference.zero_shot import (
    FindingScore,
    Levels,
    calibrations_of,
    finding_scores,
    margins,
    offsets_of_levels,
    percentiles,
    prompt_levels,
    prompt_texts,
    required_levels,
)
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.engines import Engine, choose_engine
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.models.pretrained import PACKAGE, fetch_weights
from medclip_dcl.models.settings import (
    EngineName,
    InferenceConfig,
    Precision,
    settle_inference,
)
from medclip_dcl.models.similarity import region_scores
from medclip_dcl.models.text_encoder import list_texts

_TEXTS_PER_PASS = 128


class Predictor:
    """A trained model in evaluation mode on one device.

    Attributes:
        digest: names the model; SHA-256 of its files.
        config: settings that it was trained with.
        findings: the prompt pairs that it was published with.
        model: both encoders.
        device: where it runs.
        calibration: how its scores become probabilities; None: nobody has fitted that.
        offsets: levels of its own prompts; None: it was published without.
        heads: classifiers that `fit_head` put into it.
        engine: who runs the encoders.
    """

    def __init__(
        self,
        model: DualEncoder,
        tokenizer: PreTrainedTokenizerBase,
        config: PackagedConfig,
        findings: tuple[Finding, ...],
        digest: str,
        engine: Engine,
        calibration: ScoreCalibration | None = None,
        known: InputRange | None = None,
        offsets: PromptOffsets | None = None,
        bank: Float[Tensor, "images rows columns dim"] | None = None,
        heads: tuple[Head, ...] = (),
    ) -> None:
        self.model, self.engine = model, engine
        self.device = device = model.gamma.device
        self.digest, self.config, self.findings = digest, config, findings
        self._known = known
        self.calibration = calibration
        self.offsets = offsets
        self.heads = heads
        self._bank = None if bank is None else bank.to(device).float()
        self._tokenizer = tokenizer
        self._is_warned = False

    @torch.inference_mode()
    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Encode prepared images, or those from `square`, all in one forward pass.

        Returns:
            Unit region vectors, on the model's device.
        """
        inputs = to_input(images, self.config.model.image.input_px).to(self.device)
        return self.engine.encode_images(inputs)

    @torch.inference_mode()
    def embed_features(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images features"]:
        """Give the image encoder's features of prepared images, averaged over the regions.

        Those before the map into the shared space, by PyTorch whatever the engine.
        """
        inputs = to_input(images, self.config.model.image.input_px).to(self.device)
        features: Tensor = self.model.image(inputs).float().mean(dim=(2, 3))
        return features

    @torch.inference_mode()
    def embed_sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Encode sentences, a string being one; the log counts those that are truncated, once.

        Returns:
            Unit vectors in the order of the texts, on the model's device.

        Raises:
            QueryError: there is no text, or one is blank or not a string.
        """
        plain = [" ".join(text.split()) for text in list_texts(texts)]
        if not plain or not all(plain):
            raise QueryError("a sentence is empty; give text with at least one word")
        distinct = sorted(dict.fromkeys(plain), key=len)  # alike in length: little padding
        vectors = [
            self._encode(distinct[start : start + _TEXTS_PER_PASS])
            for start in range(0, len(distinct), _TEXTS_PER_PASS)
        ]
        row_of = {text: row for row, text in enumerate(distinct)}
        rows = torch.tensor([row_of[text] for text in plain], device=self.device)
        return torch.cat(vectors)[rows]

    def is_out_of_range(self, image: UInt8[np.ndarray, "size size"]) -> bool:
        """Return whether a prepared image is unlike those that the model was trained on.

        False where the model was published without a range.
        """
        return self._known is not None and is_out_of_range(image, self._known)

    def square(self, image: GreyImage) -> UInt8[np.ndarray, "size size"]:
        """Prepare a decoded image, by the same code as `prepare_images`.

        Raises:
            QueryError: it is something else than `open_image` gives.
        """
        if not isinstance(image, GreyImage):
            raise QueryError(
                "the image is not a decoded one; give what open_image(path or bytes) returns, "
                "which knows what the greys mean"
            )
        images = self.config.images
        prepared: np.ndarray = square(image, images.size_px, images.equalize)
        return prepared

    @torch.inference_mode()
    def margins(
        self, regions: Float[Tensor, "images rows columns dim"], findings: Sequence[Finding]
    ) -> Float[Tensor, "findings images"]:
        """Compare the two prompts of each finding on each image from `embed_images`: `margins`.

        Raises:
            QueryError: a finding without a negative prompt has no level.
        """
        prompts = self._prompts(findings)
        levels = required_levels(findings, self._levels(findings, prompts))
        return margins(self.model.score(regions, prompts), findings, levels)

    def offsets_of(self, findings: Sequence[Finding]) -> list[float | None]:
        """Give the level of each finding's margin, above which it is decided to be present.

        Prompts of the model's own have it from publishing, others from its bank; None where it
        has neither. It is 0 where there is no negative prompt: the level is in the margin then.
        """
        return offsets_of_levels(self._levels(findings, self._prompts(findings)))

    def negative_levels(self, findings: Sequence[Finding]) -> list[float | None]:
        """Give the usual score of each finding's negative prompts, or of its positive without any.

        None where the model has no level for them.
        """
        levels = self._levels(findings, self._prompts(findings))
        return [None if level is None else level[1] for level in levels]

    def classify(
        self, image: GreyImage, findings: Sequence[Finding] | None = None
    ) -> list[FindingScore]:
        """Answer which findings an image shows; None: those that the model was published with."""
        return self.classify_regions(self.embed_images(self.square(image)[None]), findings)[0]

    @torch.inference_mode()
    def classify_regions(
        self,
        regions: Float[Tensor, "images rows columns dim"],
        findings: Sequence[Finding] | None = None,
    ) -> list[list[FindingScore]]:
        """Answer `classify` for images from `embed_images`, one list per image.

        Raises:
            QueryError: a finding without a negative prompt has no level.
        """
        asked = self.findings if findings is None else findings
        prompts = self._prompts(asked)
        levels = self._levels(asked, prompts)
        return finding_scores(
            margins(self.model.score(regions, prompts), asked, required_levels(asked, levels)),
            self.model.gamma.detach(),
            asked,
            calibrations_of(asked, self.findings, self.calibration),
            offsets_of_levels(levels),
            self._bank_margins(asked, prompts, levels),
        )

    def answer_heads(
        self,
        regions: Float[Tensor, "images rows columns dim"],
        images: UInt8[np.ndarray, "images size size"],
    ) -> list[list[HeadScore]]:
        """Answer by every head of the model, one list per image.

        `regions` are those of `embed_images` for the same prepared images, which are encoded again
        where a head reads the encoder's features.
        """
        found: dict[str, Float[np.ndarray, "images features"]] = {}
        for features in {head.card.features for head in self.heads}:
            from_space = features == "space"
            vectors = (
                regions.flatten(1, 2).mean(dim=1) if from_space else self.embed_features(images)
            )
            found[features] = vectors.float().cpu().numpy()
        answers = [head.answer(found[head.card.features]) for head in self.heads]
        return [[answer[image] for answer in answers] for image in range(len(images))]

    def ground(
        self, image: GreyImage, phrases: Sequence[str], threshold: float | None = None
    ) -> list[Grounding]:
        """Answer where each phrase is seen on an image, in its pixels.

        Args:
            image: the image.
            phrases: sentences.
            threshold: score from which boxes are traced; None: half way between each
                grid's mean and its peak.

        Raises:
            QueryError: there is no phrase, or one is blank.
        """
        regions = self.embed_images(self.square(image)[None])
        height, width = image.pixels.shape
        return self.ground_regions(regions[0], phrases, height, width, threshold)

    def ground_regions(
        self,
        regions: Float[Tensor, "rows columns dim"],
        phrases: Sequence[str],
        height_px: int,
        width_px: int,
        threshold: float | None = None,
    ) -> list[Grounding]:
        """Answer `ground` for one image from `embed_images`, in pixels of the original image."""
        (found,) = self.phrase_grids(regions[None], phrases)
        return found.locate(height_px, width_px, threshold)

    @torch.inference_mode()
    def phrase_grids(
        self, regions: Float[Tensor, "images rows columns dim"], phrases: Sequence[str]
    ) -> list[PhraseGrids]:
        """Score every region of images from `embed_images` against every phrase."""
        phrases = list_texts(phrases)
        vectors = self.embed_sentences(phrases)
        grids = region_scores(regions, vectors).transpose(0, 1).cpu().numpy()
        shares: list[list[float | None]] = [[None] * len(phrases) for _ in grids]
        if self._bank is not None:
            scores = (self.model.score(images, vectors) for images in (regions, self._bank))
            shares = percentiles(*scores).T.tolist()
        return [PhraseGrids(grid, tuple(own)) for grid, own in zip(grids, shares, strict=True)]

    def locate_findings(
        self,
        regions: Float[Tensor, "rows columns dim"],
        findings: Sequence[Finding],
        height_px: int,
        width_px: int,
    ) -> list[Grounding]:
        """Answer where each finding is seen, by its grid of `finding_grids`.

        `regions` are those of one image from `embed_images`.
        """
        grids = self.finding_grids(regions[None], findings)[0]
        return [locate(grid, height_px, width_px, None) for grid in grids]

    @torch.inference_mode()
    def finding_grids(
        self, regions: Float[Tensor, "images rows columns dim"], findings: Sequence[Finding]
    ) -> Float[np.ndarray, "images findings rows columns"]:
        """Average the grids of each finding's positive prompts on images from `embed_images`."""
        grids = region_scores(regions, self._prompts(findings)).cpu().numpy()
        means, start = [], 0
        for finding in findings:  # of each, the positive prompts stand before the negative
            means.append(grids[start : start + len(finding.positive)].mean(axis=0))
            start += len(finding.positive) + len(finding.negative)
        return np.stack(means, axis=1)

    def _prompts(self, findings: Sequence[Finding]) -> Tensor:
        if findings is self.findings:
            return self._own_prompts  # most questions ask about them
        return self.embed_sentences(prompt_texts(findings))

    @torch.inference_mode()
    def _levels(self, findings: Sequence[Finding], prompts: Tensor) -> Levels:
        known = [self._own_levels.get((item.positive, item.negative)) for item in findings]
        if self._bank is None or None not in known:
            return known
        levels = prompt_levels(self.model, self._bank, prompts, findings)
        gamma_squared = float(self.model.gamma.detach()) ** 2
        return [(positive, negative) for positive, negative in (levels / gamma_squared).tolist()]

    @cached_property
    def _own_levels(self) -> dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[float, float]]:
        if self.offsets is None:
            return {}
        scale = float(self.model.gamma.detach()) ** 2
        return {
            (item.positive, item.negative): (level.positive / scale, level.negative / scale)
            for item, level in zip(self.findings, self.offsets.findings, strict=True)
        }

    def _bank_margins(
        self, findings: Sequence[Finding], prompts: Tensor, levels: Levels
    ) -> Tensor | None:
        if self._bank is None or findings is self.findings:
            return self._own_bank_margins
        scores = self.model.score(self._bank, prompts)
        return margins(scores, findings, required_levels(findings, levels))

    @cached_property
    def _own_bank_margins(self) -> Tensor | None:
        return None if self._bank is None else self.margins(self._bank, self.findings)

    @cached_property
    def _own_prompts(self) -> Tensor:
        return self.embed_sentences(prompt_texts(self.findings))

    def _encode(self, texts: list[str]) -> Tensor:
        limit = self.config.model.text.max_tokens
        self._is_warned = self._is_warned or warn_of_cut_texts(self._tokenizer, texts, limit)
        tokens = self._tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=limit,
            split_special_tokens=True,  # [MASK] in a prompt is its letters
            return_tensors="pt",
        ).to(self.device)
        return self.engine.encode_sentences(tokens["input_ids"], tokens["attention_mask"])


def published_folder(path: Path) -> Path:
    """Find a published model: its folder, that of its run, or OWNER/NAME@COMMIT, which is fetched.

    Raises:
        ConfigError: the hub does not send it.
    """
    folder = fetch_weights(path, PACKAGE)
    is_run = not (folder / HEADER).is_file() and ARTIFACT.at(folder).is_dir()
    return ARTIFACT.at(folder) if is_run else folder


def load(
    path: Path | str,
    device: torch.device | str | None = None,
    engine: EngineName = "torch",
    precision: Precision = "float32",
) -> Predictor:
    """Load a published model from its folder, or that of a run; by default onto the first GPU.

    Without a GPU it runs on the CPU. `path` may be OWNER/NAME@COMMIT of a hub, which is then
    fetched into the hub's cache. `engine` and `precision` are those of `InferenceConfig`.

    Raises:
        ArtifactError: the folder holds no whole published model.
        CheckpointError: weights and configuration do not fit each other.
        ConfigError: the engine is not installed, or has not that precision, or the hub does not
            send the model.
    """
    published = read_model_package(published_folder(Path(path)))
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    inference = InferenceConfig(engine=engine, precision=precision)
    return build_predictor(published, torch.device(device), inference)


def build_predictor(
    published: SavedModel, device: torch.device, inference: InferenceConfig | None = None
) -> Predictor:
    """Build the predictor of a published model that has been read already.

    Raises:
        CheckpointError: weights and configuration do not fit each other, or images were
            prepared otherwise than this version prepares them.
        ConfigError: the engine asked for is not installed, or has not that precision.
    """
    model, tokenizer = load_encoders(published)
    try:
        findings = parse_prompts(published.card["prompts"])
    except (KeyError, QueryError) as error:
        raise CheckpointError(
            f"card of model {published.digest[:12]} has no valid prompts; rerun train"
        ) from error
    model = model.to(device).eval().requires_grad_(requires_grad=False)
    # Faster on CPU and GPU; torch's stubs leave this keyword out.
    model.image.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fitted = published.calibration
    changed = None if fitted is None else fitted.changed_in_bfloat16
    engine = choose_engine(
        model,
        settle_inference(inference or InferenceConfig(precision="float32"), changed, device.type),
        published.config.model.image.input_px,
        published.path,
        published.digest,
    )
    return Predictor(
        model,
        tokenizer,
        published.config,
        findings,
        published.digest,
        engine,
        published.calibration,
        read_input_range(published.source),
        read_offsets(published.source),
        read_bank(published.source),
        read_heads(published.source),
    )
