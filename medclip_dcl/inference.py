"""A published model that answers: which findings an image shows, and where a phrase is seen.

The same code serves evaluation and the service. In order: prompts, zero-shot scores, where on an
image a grid of scores lies, and the `Predictor`.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float16, UInt8
from scipy import ndimage
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from medclip_dcl.artifact import HEADER
from medclip_dcl.data.grayscale import GreyImage, square
from medclip_dcl.data.heatmaps import grid_affine, upsample
from medclip_dcl.errors import CheckpointError, ConfigError, QueryError
from medclip_dcl.input_range import is_out_of_range
from medclip_dcl.model_package import (
    ARTIFACT,
    FindingCalibration,
    InputRange,
    PackagedConfig,
    PromptOffset,
    PromptOffsets,
    SavedModel,
    ScoreCalibration,
    read_bank,
    read_input_range,
    read_model_package,
    read_offsets,
)
from medclip_dcl.models.architectures import hub_closed
from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.engines import Engine, choose_engine
from medclip_dcl.models.image_encoder import preprocessing_facts, to_input
from medclip_dcl.models.settings import EngineName, InferenceConfig, Precision
from medclip_dcl.models.similarity import region_scores
from medclip_dcl.models.towers import (
    PACKAGE,
    fetch_weights,
    packaged_text_config,
    read_tokenizer,
)
from medclip_dcl.settings import read_yaml

# --- Prompts: how each finding is asked for in words

_PROMPTS_VERSION = 1
_PROMPT_KEYS = {"name", "label", "code", "positive", "negative"}
_CODE_LENGTHS = {"value": 16, "scheme": 16, "meaning": 64}  # characters; DICOM PS3.3, 8.1 to 8.3


@dataclass(frozen=True)
class FindingCode:
    """Code of a finding in a coding scheme."""

    value: str
    """The code."""
    scheme: str
    """DICOM's designator of the scheme, such as SCT for SNOMED CT."""
    meaning: str
    """What the code means, in words."""


@dataclass(frozen=True)
class Finding:
    """A finding and its prompts."""

    name: str
    """How it is called in answers."""
    positive: tuple[str, ...]
    """Sentences that assert it, at least one."""
    negative: tuple[str, ...]
    """Sentences that deny it, at least one."""
    label: str = ""
    """Column of the label table that holds its truth; empty: none."""
    code: FindingCode | None = field(default=None, compare=False)
    """Its code in DICOM answers; None: a private one is made from the name."""


def parse_prompts(tree: Any) -> tuple[Finding, ...]:
    """Turn a list of mappings into findings.

    Args:
        tree: a list; each entry has `name`, `positive` and `negative`, and may have
            `label`, and `code` with `value`, `scheme` and `meaning`. A side is one sentence or a
            list of them.

    Raises:
        QueryError: an entry lacks a key, has an unknown one, an empty side, or a name
            that was used before. The message gives the entry's number, never its text.
    """
    if not isinstance(tree, list) or not tree:
        raise QueryError("findings must be a list with at least one entry")
    findings = tuple(_finding(entry, number) for number, entry in enumerate(tree))
    if len({finding.name for finding in findings}) < len(findings):
        raise QueryError("two findings bear the same name; give each its own")
    return findings


def read_prompts(path: Path) -> tuple[Finding, ...]:
    """Read a prompt file such as `configs/prompts/chex5.yaml`.

    Raises:
        ConfigError: the file cannot be read, is of another version, or an entry is malformed.
    """
    tree = read_yaml(path, "prompt file")
    if tree.get("format_version") != _PROMPTS_VERSION:
        raise ConfigError(f"prompts {path} must say format_version: {_PROMPTS_VERSION}")
    try:
        return parse_prompts(tree.get("findings"))
    except QueryError as error:
        raise ConfigError(f"prompts {path}: {error}") from error


def _finding(entry: Any, number: int) -> Finding:
    if not isinstance(entry, Mapping) or not set(entry) <= _PROMPT_KEYS:
        keys = sorted(_PROMPT_KEYS)
        raise QueryError(f"finding {number} must be a mapping with keys among {keys}")
    name, label = entry.get("name"), entry.get("label", "")
    if not isinstance(name, str) or not name.strip() or not isinstance(label, str):
        raise QueryError(f"finding {number} needs a name, and a label that is text if any")
    positive = _side(entry.get("positive"), number)
    negative = _side(entry.get("negative"), number)
    return Finding(name.strip(), positive, negative, label, _code(entry.get("code"), number))


def _code(value: Any, number: int) -> FindingCode | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != set(_CODE_LENGTHS):
        raise QueryError(f"code of finding {number} must have {', '.join(_CODE_LENGTHS)}")
    parts = {name: str(part).strip() for name, part in value.items()}
    for name, longest in _CODE_LENGTHS.items():
        if not 0 < len(parts[name]) <= longest or not parts[name].isprintable():
            raise QueryError(f"{name} in the code of finding {number} needs 1 to {longest} letters")
    return FindingCode(**parts)


def _side(value: Any, number: int) -> tuple[str, ...]:
    sentences = [value] if isinstance(value, str) else value
    if not isinstance(sentences, list | tuple) or not sentences:
        raise QueryError(f"finding {number} needs a positive and a negative prompt")
    if not all(isinstance(sentence, str) and sentence.strip() for sentence in sentences):
        raise QueryError(f"finding {number} has a prompt that is empty or no text")
    return tuple(" ".join(sentence.split()) for sentence in sentences)


# --- Zero-shot scores: the prompt that fits the image better decides

OTHER_PROMPTS = "the model is calibrated for the findings and prompts of its card alone"
UNCALIBRATED = "no calibration was fitted for this model"


@dataclass(frozen=True)
class FindingScore:
    """Score, probability and decision of one finding on one image."""

    name: str
    """The finding."""
    score: float
    """Softmax over the two prompts' scaled scores, in [0, 1]; no probability."""
    margin: float
    """Score of the positive prompts minus that of the negative, in [-2, 2]."""
    is_present: bool
    """Whether the margin is above the offset, or above 0 where there is none."""
    offset: float | None = None
    """Level of the margin over the model's bank of images; None where the model has none."""
    threshold: float = 0.5
    """Score at the offset."""
    probability: float | None = None
    """Calibrated probability; None where the model has no calibration."""
    note: str = UNCALIBRATED
    """Why the probability is None, else empty."""


def prompt_texts(findings: Sequence[Finding]) -> list[str]:
    """List the prompts as `margins` expects: of each finding the positive, then the negative."""
    return [text for finding in findings for text in (*finding.positive, *finding.negative)]


def side_scores(
    scores: Float[Tensor, "prompts images"], findings: Sequence[Finding]
) -> Float[Tensor, "sides images"]:
    """Average the scores of `prompt_texts` by side: of each finding positive, then negative."""
    sides = [len(side) for finding in findings for side in (finding.positive, finding.negative)]
    return torch.stack([part.mean(dim=0) for part in torch.split_with_sizes(scores, sides)])


def margins(
    scores: Float[Tensor, "prompts images"], findings: Sequence[Finding]
) -> Float[Tensor, "findings images"]:
    """Subtract the negative prompts' mean score from the positive prompts'.

    Args:
        scores: image-sentence scores f of `prompt_texts`, in [-1, 1].
        findings: the findings, in the same order.

    Returns:
        f(positive) - f(negative), in [-2, 2].

    Source: Wang et al. 2023, Table 2, with one prompt a side; ours: several prompts
        are averaged by their scores.
    """
    sides = side_scores(scores, findings)
    return sides[0::2] - sides[1::2]


def prompt_offset(scores: Float[Tensor, "prompts images"]) -> Float[Tensor, " prompts"]:
    """Give the level of each prompt over a bank of images, b(q) = log mean_f e^{s(q, f)}.

    A prompt's level, which a loss with texts alone as anchors leaves open, says nothing of an
    image: two prompts are compared by s - b. The offset repairs decisions alone; rankings of
    sentences and heatmaps need the level as it is.

    Args:
        scores: scaled scores s = gamma**2 f; of several prompts a side their mean.

    Returns:
        b, in the unit of the scores: the mean of e^{s - b} over the bank is 1.
    """
    return torch.logsumexp(scores.double(), dim=1) - math.log(scores.shape[1])


def prompt_levels(
    model: DualEncoder,
    bank: Float[Tensor, "images rows columns dim"],
    prompts: Float[Tensor, "prompts dim"],
    findings: Sequence[Finding],
) -> Float[Tensor, "findings 2"]:
    """Give `prompt_offset` of each finding's positive and negative prompts over a bank of images.

    `prompts` are the vectors of `prompt_texts`.
    """
    scaled = model.gamma.detach().double() ** 2 * model.score(bank, prompts).double()
    return prompt_offset(side_scores(scaled, findings)).reshape(-1, 2)


def softmax_scores(
    margin: Float[Tensor, "findings images"], gamma: Float[Tensor, ""]
) -> Float[Tensor, "findings images"]:
    """Give the share of the positive prompt, in [0, 1], in a softmax of scores times gamma**2."""
    # exp(p) / (exp(p) + exp(n)) = 1 / (1 + exp(n - p))
    return torch.sigmoid(gamma**2 * margin)


def calibrations_of(
    findings: Sequence[Finding], own: Sequence[Finding], calibration: ScoreCalibration | None
) -> list[FindingCalibration | str]:
    """Find the calibration of each finding that is asked for, or why there is none.

    Args:
        findings: the findings asked for.
        own: those that the model was published with: a curve holds for the very prompts that
            it was fitted with.
        calibration: of the model; None: it has none.
    """
    if calibration is None:
        return [UNCALIBRATED for _ in findings]
    found = [calibration.of(item.name) if item in own else None for item in findings]
    return [OTHER_PROMPTS if item is None else item.reason or item for item in found]


def finding_scores(
    margin: Float[Tensor, "findings images"],
    gamma: Float[Tensor, ""],
    findings: Sequence[Finding],
    calibrations: Sequence[FindingCalibration | str],
    offsets: Sequence[float | None],
) -> list[list[FindingScore]]:
    """Turn `margins` into one list per image, with one answer per finding, in the rows' order.

    A probability is made from the margin as it is: its curve was fitted to that, and absorbs an
    offset.
    """
    score = softmax_scores(margin, gamma)
    levels = margin.new_tensor([[0.0 if offset is None else offset] for offset in offsets])
    threshold = softmax_scores(levels, gamma)
    present = margin > levels
    logits = (gamma**2 * margin).double().cpu().numpy()
    calibrated = [_probabilities(row, own) for row, own in zip(logits, calibrations, strict=True)]
    return [
        [
            FindingScore(
                name=finding.name,
                score=float(score[row, image]),
                margin=float(margin[row, image]),
                is_present=bool(present[row, image]),
                offset=offsets[row],
                threshold=float(threshold[row]),
                probability=calibrated[row][0][image],
                note=calibrated[row][1],
            )
            for row, finding in enumerate(findings)
        ]
        for image in range(margin.shape[1])
    ]


def _probabilities(
    logits: Float[np.ndarray, " images"], calibration: FindingCalibration | str
) -> tuple[list[float | None], str]:
    if isinstance(calibration, str) or calibration.curve is None:
        reason = calibration if isinstance(calibration, str) else calibration.reason
        return [None] * len(logits), reason
    return calibration.curve.probabilities(logits).tolist(), ""


# --- Grounding: where on the image a sentence is answered; `data.heatmaps` has the geometry

_FINE = 8  # steps per cell at which a box's edge is traced
_ROUNDING = 1e-6  # of interpolated cosines, float32


@dataclass(frozen=True)
class Peak:
    """The best point: pixels of the image, and its score in [-1, 1]."""

    x: float
    y: float
    score: float


@dataclass(frozen=True)
class Box:
    """A rectangle, pixels of the image."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Grounding:
    """Heatmap of one sentence on one image, with its peak and box."""

    grid: Float[np.ndarray, "rows columns"]
    """Region-sentence cosines."""
    affine: tuple[float, float, float, float, float, float]
    """(a, b, c, d, e, f): cell (row, column) has its centre at x = a column + b row + c,
    y = d column + e row + f, pixels of the image."""
    peak: Peak
    """Centre of the best cell."""
    threshold: float
    """Score from which the box is traced."""
    box: Box | None
    """Smallest rectangle around what is connected to the peak and scores at least the threshold;
    None where the peak is below it."""


def locate(
    grid: Float[np.ndarray, "rows columns"],
    height_px: int,
    width_px: int,
    threshold: float | None,
) -> Grounding:
    """Turn a grid of scores into a peak and a box on the image.

    Args:
        grid: region-sentence cosines of one image and one sentence.
        height_px: height of the image.
        width_px: width of the image.
        threshold: score from which the box is traced; None: half way between the
            grid's mean and its peak.

    Returns:
        The grounding. The peak is a cell's centre: bilinear scores never exceed those
        at the centres.
    """
    rows, columns = grid.shape
    affine = grid_affine(rows, columns, height_px, width_px)
    row, column = np.unravel_index(int(grid.argmax()), grid.shape)
    best = float(grid[row, column])
    peak = Peak(affine[0] * column + affine[2], affine[4] * row + affine[5], best)
    level = (float(grid.mean()) + best) / 2 if threshold is None else threshold
    box = _box_around(grid, int(row), int(column), level) if best >= level else None
    if box is not None:
        box = Box(
            box.x * affine[0], box.y * affine[4], box.width * affine[0], box.height * affine[4]
        )
    return Grounding(grid, affine, peak, level, box)


def _box_around(grid: np.ndarray, row: int, column: int, level: float) -> Box:
    """Trace what is connected to a cell's centre and reaches the level, in cells."""
    rows, columns = grid.shape
    fine = upsample(grid, rows * _FINE, columns * _FINE)
    centre = (slice(row * _FINE, (row + 1) * _FINE), slice(column * _FINE, (column + 1) * _FINE))
    label, _ = ndimage.label(fine >= level - _ROUNDING)
    near = fine[centre].argmax()
    own = label[centre].ravel()[near]
    if own == 0:  # a peak thinner than one step
        return Box(column, row, 1, 1)
    ys, xs = np.nonzero(label == own)
    x, y = xs.min() / _FINE, ys.min() / _FINE
    return Box(x, y, (xs.max() + 1) / _FINE - x, (ys.max() + 1) / _FINE - y)


# --- The predictor

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
    ) -> None:
        self.model, self.engine = model, engine
        self.device = device = model.gamma.device
        self.digest, self.config, self.findings = digest, config, findings
        self._known = known
        self.calibration = calibration
        self.offsets = offsets
        self._bank = None if bank is None else bank.to(device).float()
        self._tokenizer = tokenizer

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
        """Encode sentences; longer ones than the model reads are truncated.

        Returns:
            Unit vectors in the order of the texts, on the model's device.

        Raises:
            QueryError: there is no text, or one is blank.
        """
        plain = [" ".join(text.split()) for text in texts]
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
                f"the image is of type {type(image).__name__}; give what open_image(path or bytes) "
                "returns, which knows what the greys mean"
            )
        images = self.config.images
        prepared: np.ndarray = square(image, images.size_px, images.equalize)
        return prepared

    @torch.inference_mode()
    def margins(
        self, regions: Float[Tensor, "images rows columns dim"], findings: Sequence[Finding]
    ) -> Float[Tensor, "findings images"]:
        """Compare the two prompts of each finding on each image from `embed_images`: `margins`."""
        return margins(self.model.score(regions, self._prompts(findings)), findings)

    def offsets_of(self, findings: Sequence[Finding]) -> list[float | None]:
        """Give the level of each finding's margin, above which it is decided to be present.

        Prompts of the model's own have it from publishing, others from its bank; None where it
        has neither.
        """
        return self._offsets(findings, self._prompts(findings))

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
        """Answer `classify` for images from `embed_images`, one list per image."""
        asked = self.findings if findings is None else findings
        prompts = self._prompts(asked)
        return finding_scores(
            margins(self.model.score(regions, prompts), asked),
            self.model.gamma.detach(),
            asked,
            calibrations_of(asked, self.findings, self.calibration),
            self._offsets(asked, prompts),
        )

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

    @torch.inference_mode()
    def ground_regions(
        self,
        regions: Float[Tensor, "rows columns dim"],
        phrases: Sequence[str],
        height_px: int,
        width_px: int,
        threshold: float | None = None,
    ) -> list[Grounding]:
        """Answer `ground` for one image from `embed_images`, in pixels of the original image."""
        grids = region_scores(regions[None], self.embed_sentences(phrases))[:, 0]
        return [locate(grid, height_px, width_px, threshold) for grid in grids.cpu().numpy()]

    @torch.inference_mode()
    def locate_findings(
        self,
        regions: Float[Tensor, "rows columns dim"],
        findings: Sequence[Finding],
        height_px: int,
        width_px: int,
    ) -> list[Grounding]:
        """Answer where each finding is seen, by the mean grid of its positive prompts.

        `regions` are those of one image from `embed_images`.
        """
        grids = region_scores(regions[None], self._prompts(findings))[:, 0].cpu().numpy()
        located, start = [], 0
        for finding in findings:  # of each, the positive prompts stand before the negative
            end = start + len(finding.positive)
            located.append(locate(grids[start:end].mean(axis=0), height_px, width_px, None))
            start = end + len(finding.negative)
        return located

    def _prompts(self, findings: Sequence[Finding]) -> Tensor:
        if findings is self.findings:
            return self._own_prompts  # most questions ask about them
        return self.embed_sentences(prompt_texts(findings))

    @torch.inference_mode()
    def _offsets(self, findings: Sequence[Finding], prompts: Tensor) -> list[float | None]:
        known = [self._own_offsets.get((item.positive, item.negative)) for item in findings]
        if self._bank is None or None not in known:
            return known
        levels = prompt_levels(self.model, self._bank, prompts, findings)
        gamma_squared = float(self.model.gamma.detach()) ** 2
        return ((levels[:, 0] - levels[:, 1]) / gamma_squared).tolist()

    @cached_property
    def _own_offsets(self) -> dict[tuple[tuple[str, ...], tuple[str, ...]], float]:
        if self.offsets is None:
            return {}
        gamma_squared = float(self.model.gamma.detach()) ** 2
        return {
            (item.positive, item.negative): (level.positive - level.negative) / gamma_squared
            for item, level in zip(self.findings, self.offsets.findings, strict=True)
        }

    @cached_property
    def _own_prompts(self) -> Tensor:
        return self.embed_sentences(prompt_texts(self.findings))

    def _encode(self, texts: list[str]) -> Tensor:
        tokens = self._tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self.config.model.text.max_tokens,
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
    _check_preprocessing(published)
    with hub_closed():
        text_config = packaged_text_config(published.text_folder)
        model = _build_model(published, text_config)
        tokenizer = read_tokenizer(published.text_folder, text_config)
    try:
        findings = parse_prompts(published.card["prompts"])
    except (KeyError, QueryError) as error:
        raise CheckpointError(
            f"card of model {published.digest[:12]} has no valid prompts; rerun train"
        ) from error
    model = model.to(device).eval().requires_grad_(requires_grad=False)
    # Faster on CPU and GPU; torch's stubs leave this keyword out.
    model.image.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    engine = choose_engine(
        model,
        inference or InferenceConfig(),
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
        read_input_range(published.path),
        read_offsets(published.path),
        read_bank(published.path),
    )


def _build_model(published: SavedModel, text_config: PreTrainedConfig) -> DualEncoder:
    weights, settings = published.weights(), published.config.model
    try:
        with torch.device("meta"):  # shapes alone: sizes may be anything, and take no memory here
            shapes = {
                name: value.shape
                for name, value in DualEncoder(settings, text_config).state_dict().items()
            }
    except ConfigError as error:
        raise CheckpointError(f"model {published.digest[:12]}: {error}") from error
    found = {name: value.shape for name, value in weights.items() if name != "bias"}
    if found != shapes:
        raise CheckpointError(
            f"weights of model {published.digest[:12]} do not fit its configuration; rerun train"
        )
    model = build_dual_encoder(settings, text_config, seed=0)
    if "bias" in weights:
        model.add_bias(0.0)
    model.load_state_dict(weights)
    return model


@torch.inference_mode()
def fit_offsets(
    predictor: Predictor,
    images: Iterable[UInt8[np.ndarray, "_ size size"]],
    image_ids: Sequence[str],
    split: Literal["validate", "train"],
) -> tuple[PromptOffsets, Float16[Tensor, "images rows columns dim"]]:
    """Encode a bank of prepared images, and fit the levels of the predictor's own prompts to it.

    The images come some at a time, their ids all together in the same order.
    """
    bank = torch.cat([predictor.embed_images(part).half() for part in images])
    prompts = predictor.embed_sentences(prompt_texts(predictor.findings))
    levels = prompt_levels(predictor.model, bank.float(), prompts, predictor.findings).tolist()
    named = "".join(f"{image_id}\n" for image_id in image_ids)
    return PromptOffsets(
        split=split,
        images=len(bank),
        digest=hashlib.sha256(named.encode()).hexdigest(),
        findings=tuple(
            PromptOffset(finding=finding.name, positive=positive, negative=negative)
            for finding, (positive, negative) in zip(predictor.findings, levels, strict=True)
        ),
    ), bank


def _check_preprocessing(published: SavedModel) -> None:
    trained_on = published.card.get("preprocessing", {})
    here = preprocessing_facts(published.config.images, published.config.model)
    differing = sorted(name for name in here if trained_on.get(name) != here[name])
    if differing:
        name = differing[0]
        raise CheckpointError(
            f"model {published.digest[:12]} was trained with preprocessing {name} = "
            f"{trained_on.get(name)}, this version uses {here[name]}; use the version that "
            "published it, or train again"
        )
