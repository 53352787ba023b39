"""Is an image within the range of the images that a model was trained on?

An image's features are the mean greys of 8 x 8 blocks, which hold the layout of a chest, and the
strength of detail at three scales. Their squared Mahalanobis distance is held against a quantile
of images that are like those the mean and the covariance come from, but are not among them; so
images of the same kind are called out of range at the stated rate. Pixels alone are looked at: a
model does not know its own training images from others by them.

Source: ours; the threshold is that of split conformal prediction (Vovk et al. 2005), the
covariance that of Ledoit and Wolf 2004.

A published model that answers questions.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, UInt8
from sklearn.covariance import LedoitWolf
from torch import Tensor
from transformers import BertConfig, BertTokenizer

from medclip_dcl.data.grayscale import GreyImage, square
from medclip_dcl.errors import CheckpointError, QueryError
from medclip_dcl.inference.heatmap import Grounding, locate
from medclip_dcl.inference.zero_shot import (
    Finding,
    FindingScore,
    answers,
    calibrations_of,
    margins,
    parse_prompts,
    prompt_texts,
)
from medclip_dcl.model_package import (
    InputRange,
    PackagedConfig,
    SavedModel,
    ScoreCalibration,
    read_input_range,
    read_model_package,
)
from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.preprocessing import preprocessing_facts, to_input
from medclip_dcl.models.similarity import region_scores

RATE = 0.01
"""Share of images like the training images that is called out of range."""

_BLOCKS, _SCALES = 8, 3
_Reals = npt.NDArray[np.float64]


def describe_image(image: npt.NDArray[np.uint8]) -> _Reals:
    """Give the features of an image.

    Args:
        image: square image (size, size), at least 16 pixels wide.

    Returns:
        (67,): block means in [0, 1], and logarithms of the detail at three scales.
    """
    edge = _BLOCKS * (len(image) // _BLOCKS)
    level = image[:edge, :edge].astype(np.float64) / 255
    detail = []
    blocks = level.reshape(_BLOCKS, edge // _BLOCKS, _BLOCKS, edge // _BLOCKS).mean(axis=(1, 3))
    for _ in range(_SCALES):
        even = 2 * (len(level) // 2)
        level = level[:even, :even]
        coarse = level.reshape(even // 2, 2, even // 2, 2).mean(axis=(1, 3))
        detail.append(np.std(level - coarse.repeat(2, axis=0).repeat(2, axis=1)))
        level = coarse
    return np.concatenate([blocks.ravel(), np.log(np.array(detail) + 1e-3)])


def fit_input_range(
    images: Sequence[npt.NDArray[np.uint8]], patients: Sequence[str], rate: float = RATE
) -> InputRange:
    """Learn the range of images.

    Args:
        images: square images of one size.
        patients: whose image each is; a patient's images are all fitted to, or all held back.
        rate: share of like images that may be beyond the threshold.

    Returns:
        The range. With fewer than 1 / rate images held back the farthest of them is the
        threshold, and the stated rate is 1 / (images held back + 1).

    Raises:
        QueryError: fewer than two patients.
    """
    features = np.stack([describe_image(image) for image in images])
    index_of = {name: number for number, name in enumerate(sorted(set(patients)))}
    held_back = np.array([index_of[name] % 2 == 1 for name in patients])
    if not held_back.any():
        raise QueryError("the range of images needs two patients or more; give more images")
    fitted = LedoitWolf().fit(features[~held_back])
    distances = np.sort(_distances(features[held_back], fitted.location_, fitted.precision_))
    rank = int(np.ceil((len(distances) + 1) * (1 - rate)))
    return InputRange(
        mean=tuple(fitted.location_.tolist()),
        precision=tuple(map(tuple, fitted.precision_.tolist())),
        threshold=float(distances[min(rank, len(distances)) - 1]),
        images=len(images),
        rate=max(rate, 1 / (len(distances) + 1)),
    )


def is_out_of_range(image: npt.NDArray[np.uint8], known: InputRange) -> bool:
    """Return whether an image is beyond the range.

    Args:
        image: square image of the size that the range was learnt at.
        known: the range.

    Returns:
        Whether its distance exceeds the threshold.
    """
    features = describe_image(image)[None]
    distance = _distances(features, np.array(known.mean), np.array(known.precision))
    return bool(distance[0] > known.threshold)


def _distances(features: _Reals, mean: _Reals, precision: _Reals) -> _Reals:
    away = features - mean
    distances: _Reals = np.einsum("nf,fg,ng->n", away, precision, away)
    return distances


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
    """

    def __init__(
        self,
        model: DualEncoder,
        tokenizer: BertTokenizer,
        config: PackagedConfig,
        findings: tuple[Finding, ...],
        digest: str,
        device: torch.device,
        calibration: ScoreCalibration | None = None,
        known: InputRange | None = None,
    ) -> None:
        self.model = model.to(device).eval().requires_grad_(requires_grad=False)
        # Faster on CPU and GPU; torch's stubs leave this keyword out.
        self.model.image.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.digest, self.config, self.findings, self.device = digest, config, findings, device
        self._known = known
        self.calibration = calibration
        self._tokenizer = tokenizer

    @torch.inference_mode()
    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Encode prepared images, all in one forward pass.

        Args:
            images: square 8-bit images from `square` or the prepared images.

        Returns:
            Unit region vectors, on the model's device.
        """
        inputs = to_input(images, self.config.model.image.input_px).to(self.device)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        return self.model.encode_images(inputs)

    @torch.inference_mode()
    def embed_sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Encode sentences.

        Args:
            texts: sentences; longer ones than the model reads are truncated.

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
        """Return whether an image is unlike those that the model was trained on.

        Args:
            image: prepared image from `square`.

        Returns:
            Whether it is beyond the range that the model was published with; False where
            it was published without one.
        """
        return self._known is not None and is_out_of_range(image, self._known)

    def square(self, image: GreyImage) -> UInt8[np.ndarray, "size size"]:
        """Bring a decoded image into the form that the model was trained on.

        Args:
            image: the image.

        Returns:
            The prepared image, by the same code as `prepare_images`.
        """
        prepared: np.ndarray = square(
            image, self.config.images.size_px, self.config.images.equalize
        )
        return prepared

    @torch.inference_mode()
    def margins(
        self, regions: Float[Tensor, "images rows columns dim"], findings: Sequence[Finding]
    ) -> Float[Tensor, "findings images"]:
        """Compare the two prompts of each finding on each image.

        Args:
            regions: from `embed_images`.
            findings: the findings.

        Returns:
            f(positive) - f(negative), in [-2, 2].
        """
        own = findings is self.findings
        prompts = self._own_prompts if own else self.embed_sentences(prompt_texts(findings))
        return margins(self.model.score(regions, prompts), findings)

    def classify(
        self, image: GreyImage, findings: Sequence[Finding] | None = None
    ) -> list[FindingScore]:
        """Answer which findings an image shows.

        Args:
            image: the image.
            findings: the findings asked for; None: those that the model was published with.

        Returns:
            One answer per finding.
        """
        return self.classify_regions(self.embed_images(self.square(image)[None]), findings)[0]

    def classify_regions(
        self,
        regions: Float[Tensor, "images rows columns dim"],
        findings: Sequence[Finding] | None = None,
    ) -> list[list[FindingScore]]:
        """Answer `classify` for images that are encoded already.

        Args:
            regions: from `embed_images`.
            findings: the findings asked for; None: those that the model was published with.

        Returns:
            One list per image, with one answer per finding.
        """
        asked = self.findings if findings is None else findings
        calibrations = calibrations_of(asked, self.findings, self.calibration)
        gamma = self.model.gamma.detach()
        return answers(self.margins(regions, asked), gamma, asked, calibrations)

    def ground(
        self, image: GreyImage, phrases: Sequence[str], threshold: float | None = None
    ) -> list[Grounding]:
        """Answer where each phrase is seen on an image.

        Args:
            image: the image.
            phrases: sentences.
            threshold: score from which boxes are traced; None: half way between each
                grid's mean and its peak.

        Returns:
            One grounding per phrase, in pixels of the image.

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
        """Answer `ground` for an image that is encoded already.

        Args:
            regions: of one image, from `embed_images`.
            phrases: sentences.
            height_px: height of the original image.
            width_px: width of the original image.
            threshold: as for `ground`.

        Returns:
            One grounding per phrase, in pixels of the original image.

        Raises:
            QueryError: there is no phrase, or one is blank.
        """
        grids = region_scores(regions[None], self.embed_sentences(phrases))[:, 0]
        return [locate(grid, height_px, width_px, threshold) for grid in grids.cpu().numpy()]

    @cached_property
    def _own_prompts(self) -> Tensor:
        """Vectors of the published prompts, which most questions ask about."""
        return self.embed_sentences(prompt_texts(self.findings))

    def _encode(self, texts: list[str]) -> Tensor:
        tokens = self._tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self.config.model.text.max_tokens,
            return_tensors="pt",
        ).to(self.device)
        return self.model.encode_sentences(tokens["input_ids"], tokens["attention_mask"])


def load(path: Path | str, device: torch.device | str | None = None) -> Predictor:
    """Load a published model.

    Args:
        path: its folder.
        device: where it shall run; None: the first GPU where there is one, else the CPU.

    Returns:
        The model, ready for questions.

    Raises:
        ArtifactError: the folder holds no whole published model.
        CheckpointError: weights and configuration do not fit each other.
    """
    published = read_model_package(Path(path))
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return build_predictor(published, torch.device(device))


def build_predictor(published: SavedModel, device: torch.device) -> Predictor:
    """Build the predictor of a published model that has been read already.

    Args:
        published: the model's facts and weights.
        device: where it shall run.

    Returns:
        The model, ready for questions.

    Raises:
        CheckpointError: weights and configuration do not fit each other, or images were
            prepared otherwise than this version prepares them.
    """
    _check_preprocessing(published)
    folder = published.text_folder
    text_config = BertConfig.from_json_file(folder / "config.json")
    model = build_dual_encoder(published.config.model, text_config, seed=0)
    try:
        model.load_state_dict(published.weights())
    except RuntimeError as error:
        raise CheckpointError(
            f"weights of model {published.digest[:12]} do not fit its configuration; rerun train"
        ) from error
    tokenizer = BertTokenizer.from_pretrained(str(folder), local_files_only=True)
    try:
        findings = parse_prompts(published.card["prompts"])
    except (KeyError, QueryError) as error:
        raise CheckpointError(
            f"card of model {published.digest[:12]} has no valid prompts; rerun train"
        ) from error
    return Predictor(
        model,
        tokenizer,
        published.config,
        findings,
        published.digest,
        device,
        published.calibration,
        read_input_range(published.path),
    )


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
