"""A published model that answers: which findings an image shows, and where a phrase is seen.

The same code serves evaluation and the service.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from medclip_dcl import schemas
from medclip_dcl.core.artifact import HEADER
from medclip_dcl.core.errors import CheckpointError, ConfigError, ImageError, QueryError
from medclip_dcl.data.grayscale import SquareImage, Window, window
from medclip_dcl.inference import model_package, zero_shot
from medclip_dcl.inference.grounding import PhraseGrids, Picture, locate
from medclip_dcl.inference.heads import read_heads
from medclip_dcl.inference.input_range import is_out_of_range
from medclip_dcl.inference.prompts import Finding, parse_prompts
from medclip_dcl.models.architectures import hub_closed
from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.engines import Engine, choose_engine
from medclip_dcl.models.image_encoder import preprocessing_facts, to_input
from medclip_dcl.models.public.encoders import packaged_text_config, read_tokenizer
from medclip_dcl.models.public.weights import PACKAGE, fetch_weights
from medclip_dcl.models.settings import EngineName, InferenceConfig, Precision, settle_inference
from medclip_dcl.models.similarity import global_vectors, score_grids
from medclip_dcl.models.text_encoder import list_texts

LOGGER = logging.getLogger("medclip.inference")

_OneAnswer = TypeVar("_OneAnswer", bound=schemas.Answer)

_LARGEST_BUFFERS = 1 << 26  # bytes
_LARGEST_LAYER = 1 << 29  # bytes that a layer reads and writes for one image, in float32
_LARGEST_GRID = 1 << 14  # regions
_TEXTS_PER_PASS = 128
_IMAGES_PER_PASS = 16
_PICTURES = 32  # answers of a list that keep a picture, to be shown


class _Asked(NamedTuple):
    """Findings as a model is asked for them."""

    prompts: Tensor
    """Vectors of `zero_shot.prompt_texts`."""
    levels: zero_shot.Levels
    bank_margins: Tensor | None
    """Margins of the images of the model's bank; None: it has none."""


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
        card: facts about it: what it was made from, is for, and is not for.
        folder: where its package is.
        engine: who runs the encoders.
    """

    def __init__(
        self,
        published: model_package.SavedModel,
        model: DualEncoder,
        tokenizer: PreTrainedTokenizerBase,
        findings: tuple[Finding, ...],
        engine: Engine,
    ) -> None:
        self.digest, self.config, self.card = published.digest, published.config, published.card
        self.folder, self.calibration = published.path, published.calibration
        self.model, self.findings, self.engine = model, findings, engine
        self.device = model.gamma.device
        self.offsets = model_package.read_offsets(published.source)
        self.heads = read_heads(published.source)
        self._input_range = model_package.read_input_range(published.source)
        bank = model_package.read_bank(published.source)
        self._bank = None if bank is None else bank.to(self.device).float()
        self._tokenizer, self._is_warned = tokenizer, False
        self._last_asked: tuple[tuple[Finding, ...], _Asked] | None = None

    def __repr__(self) -> str:
        image, similarity = self.config.model.image, self.config.model.similarity
        text = self.model.text.backbone.config
        training, data = self.card.get("training", {}), self.card.get("data", {})
        objective = self.card.get("objective", {}).get("kind", "an unknown objective")
        curves = [one.curve for one in self.calibration.findings] if self.calibration else []
        fitted = f"{sum(curve is not None for curve in curves)} calibrated"
        source = self.card.get("source", {})
        facts = {
            "images": f"{image.kind}, {self.config.images.size_px} px, read at {image.input_px} px",
            "text": f"{text.model_type}, {text.num_hidden_layers} layers of {text.hidden_size}",
            "space": f"{similarity.dim} numbers, similarity {similarity.kind}",
            "trained": f"elsewhere: {source['family']}, {source['name']}"
            if source
            else f"{training.get('steps', '?')} steps of {objective} on "
            f"{data.get('studies', '?')} studies of {data.get('patients', '?')} patients",
            "findings": ", ".join(item.name for item in self.findings) + f" ({fitted})",
            "heads": ", ".join(head.card.name for head in self.heads) or "none",
            "runs": f"{self.engine.name} {self.engine.precision} on {self.device}",
        }
        lines = [f"  {name:9} {words}" for name, words in facts.items()]
        return "\n".join([f"model {self.digest[:12]}", *lines])

    @torch.inference_mode()
    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Encode prepared images, or those from `square`, all in one forward pass.

        Returns:
            Unit region vectors, on the model's device.
        """
        return self.engine.encode_images(self.inputs(images))

    def inputs(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images 1 input input"]:
        """Turn prepared images into the encoder's input: `to_input`, on the model's device."""
        config = self.config
        return to_input(images, config.model.image.input_px, config.images.fit).to(self.device)

    @property
    def has_regions(self) -> bool:
        """Whether phrases can be located: parts of an image have vectors in the common space."""
        return self.model.has_regions

    @torch.inference_mode()
    def embed_regions(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Encode the regions of prepared images, by which phrases are located.

        Those of `embed_images`, but of a model that scores an image by its one own vector its
        patches, by PyTorch whatever the engine.

        Raises:
            QueryError: the model has no vectors of parts of an image.
        """
        self.require_regions()
        if not self.model.image.is_pooled:
            return self.embed_images(images)
        return self.model.encode_patches(self.inputs(images))

    def require_regions(self) -> None:
        """Raise a QueryError where no part of an image has a vector."""
        if not self.has_regions:
            raise QueryError(
                "this model has one vector of a whole image and none of its parts, such as "
                "SigLIP, whose pooling head stands between them: no phrase can be located; ask "
                "classify, or give a model with regions"
            )

    def window(self, height_px: int, width_px: int) -> Window:
        """Return the part of an image of this size that the model sees, in its pixels."""
        images = self.config.images
        return window(height_px, width_px, images.size_px, images.fit)

    @torch.inference_mode()
    def embed_features(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images features"]:
        """Return the image encoder's features of prepared images, averaged over the regions.

        Those before the map into the shared space, by PyTorch whatever the engine.
        """
        features: Tensor = self.model.image(self.inputs(images)).float().mean(dim=(2, 3))
        return features

    @torch.inference_mode()
    def embed_sentences(self, texts: str | Iterable[str]) -> Float[Tensor, "texts dim"]:
        """Encode sentences, a string being one; the log counts those that are truncated, once.

        Returns:
            Unit vectors in the order of the texts, on the model's device.

        Raises:
            QueryError: there is no text, or one is blank or not text.
        """
        plain = texts_of(texts)
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
        return self._input_range is not None and is_out_of_range(image, self._input_range)

    def square(self, image: Any) -> UInt8[np.ndarray, "size size"]:
        """Prepare an image, by the same code as `prepare_images`; what it may be: `classify`."""
        pixels: np.ndarray = self._prepare(image).pixels
        return pixels

    def _prepare(self, image: Any) -> SquareImage:
        from medclip_dcl.data.images import open_any  # as in `_listed`

        return open_any(image, self.config.images)

    @torch.inference_mode()
    def margins(
        self, regions: Float[Tensor, "images rows columns dim"], findings: Sequence[Finding]
    ) -> Float[Tensor, "findings images"]:
        """Compare the two prompts of each finding on each image from `embed_images`: `margins`.

        Raises:
            QueryError: a finding without a negative prompt has no level.
        """
        question = self._asked(findings)
        levels = zero_shot.required_levels(findings, question.levels)
        return zero_shot.margins(self.model.score(regions, question.prompts), findings, levels)

    def offsets_of(self, findings: Sequence[Finding]) -> list[float | None]:
        """Return the level of each finding's margin, above which it is decided to be present.

        Prompts of the model's own have it from publishing, others from its bank; None where it
        has neither. It is 0 where there is no negative prompt: the level is in the margin then.
        """
        return zero_shot.offsets_of_levels(self._asked(findings).levels)

    def negative_levels(self, findings: Sequence[Finding]) -> list[float | None]:
        """Return the usual score of each finding's negative prompts; None where unknown.

        Without a negative it is that of the positive.
        """
        return [None if level is None else level[1] for level in self._asked(findings).levels]

    def encode(self, images: Any) -> Float[np.ndarray, "*images dim"]:
        """Encode images as unit vectors, as the service's `/embed`: one, (dim,), or several.

        Args:
            images: as in `classify`.

        Returns:
            float32, (dim,) of one image and (images, dim) of several. An image that is unlike those
            of training is counted in the log.

        Raises:
            ImageError: an image is refused; a message names its number among several.
            QueryError: as in `classify`.
        """
        listed, alone = _listed(images)
        parts, beyond, total = [], 0, 0
        for batch in self._batches(listed):
            good = []
            for number, image in enumerate(batch, start=total):
                if isinstance(image, ImageError):
                    which = "" if alone else f"image {number}, counted from 0: "
                    raise ImageError(image.code, f"{which}{image.message}") from image
                beyond += self.is_out_of_range(image.pixels)
                good.append(image.pixels)
            total += len(batch)
            parts.append(global_vectors(self.embed_images(np.stack(good))).cpu().numpy())
        if beyond:
            LOGGER.warning("%d of %d images: %s", beyond, total, schemas.OUT_OF_RANGE_NOTE)
        vectors: np.ndarray = np.concatenate(parts)
        return vectors[0] if alone else vectors

    def encode_text(self, texts: str | Iterable[str]) -> Float[np.ndarray, "*texts dim"]:
        """Encode sentences as unit vectors of the space of `encode`: one, (dim,), or several.

        Raises:
            QueryError: there is none, or one is blank or not text.
        """
        vectors: np.ndarray = self.embed_sentences(texts).cpu().numpy()
        return vectors[0] if isinstance(texts, str) else vectors

    def classify(
        self, images: Any, findings: Any = None, *, explain: bool = False
    ) -> schemas.ClassifyAnswer | schemas.Answers:
        """Answer which findings an image shows: what the service's `/classify` answers.

        Args:
            images: a path, the bytes of a file, a DICOM data set of pydicom, a Pillow image, an
                array or tensor of pixels (`data.grayscale.grey_of_array`), what `open_image`
                returns, or several of these.
            findings: names, pairs of prompts, mappings or `Finding`, one or several, as
                `parse_prompts` takes them; None: those that the model was published with.
            explain: whether heatmaps are wanted, of a model with regions.

        Returns:
            The answer; of several images a list, with a `RefusedImage` for one that cannot be read.

        Raises:
            ImageError: the only image is refused.
            QueryError: an image or a finding is not one; a finding without a negative prompt has no
                level.
        """
        chosen = self.findings if findings is None else parse_prompts(findings, self.findings)

        return self._answer(
            images, lambda regions, own: self.answer_findings(regions, own, chosen, explain)
        )

    @torch.inference_mode()
    def classify_regions(
        self,
        regions: Float[Tensor, "images rows columns dim"],
        findings: Sequence[Finding] | None = None,
    ) -> list[list[schemas.FindingAnswer]]:
        """Answer `classify` for images from `embed_images`, one list per image.

        Raises:
            QueryError: a finding without a negative prompt has no level.
        """
        chosen = self.findings if findings is None else findings
        return zero_shot.finding_scores(
            self.margins(regions, chosen),
            self.model.gamma.detach(),
            chosen,
            zero_shot.calibrations_of(chosen, self.findings, self.calibration),
            self.offsets_of(chosen),
            self._asked(chosen).bank_margins,
        )

    def answer_findings(
        self,
        regions: Float[Tensor, "images rows columns dim"],
        images: Sequence[SquareImage],
        findings: Sequence[Finding],
        explain: bool,
    ) -> Iterator[schemas.ClassifyAnswer]:
        """Answer `classify` about images that `embed_images` has encoded.

        Out of range nothing has a probability.
        """
        scores, heads = self.classify_regions(regions, findings), self.answer_heads(regions)
        grids: Any = [[None] * len(findings)] * len(images)
        if explain and self.has_regions:
            grids = self.finding_grids(self.located(regions, images), findings)
        for image, own, maps, own_heads in zip(images, scores, grids, heads, strict=True):
            facts = self.facts_of(image)
            beyond, size = facts.is_out_of_range, (image.height_px, image.width_px)
            places = [
                None if grid is None else locate(grid, *size, None, self.window(*size))
                for grid in maps
            ]
            yield schemas.ClassifyAnswer(
                model=self.digest,
                image=facts,
                findings=[
                    finding.about(place, out_of_range=beyond)
                    for finding, place in zip(own, places, strict=True)
                ],
                heads=[
                    head.model_copy(update=schemas.UNLIKE if beyond else {}) for head in own_heads
                ],
                engine=self.engine.name,
                precision=self.engine.precision,
            )

    def answer_phrases(
        self,
        regions: Float[Tensor, "images rows columns dim"] | None,
        images: Sequence[SquareImage],
        phrases: Sequence[str],
        threshold: float | None,
    ) -> Iterator[schemas.GroundAnswer]:
        """Answer `ground` about images that `embed_images` has encoded; None: `located` does."""
        scored = self.phrase_grids(self.located(regions, images), phrases)
        for image, grids in zip(images, scored, strict=True):
            size = image.height_px, image.width_px
            places = [
                locate(grid, *size, threshold, self.window(*size), share)
                for grid, share in zip(grids.grids, grids.percentiles, strict=True)
            ]
            yield schemas.GroundAnswer(
                model=self.digest, image=self.facts_of(image), phrases=places
            )

    def facts_of(self, image: SquareImage) -> schemas.ImageFacts:
        """Describe a prepared image."""
        return schemas.ImageFacts.of(image, out_of_range=self.is_out_of_range(image.pixels))

    def answer_heads(
        self, regions: Float[Tensor, "images rows columns dim"]
    ) -> list[list[schemas.HeadAnswer]]:
        """Answer by every head of the model, one list per image; `regions` as of `embed_images`."""
        means = regions.flatten(1, 2).mean(dim=1).float().cpu().numpy()
        answers = [head.answer(means) for head in self.heads]
        return [[answer[image] for answer in answers] for image in range(len(regions))]

    def ground(
        self, images: Any, phrases: str | Iterable[str], threshold: float | None = None
    ) -> schemas.GroundAnswer | schemas.Answers:
        """Answer where each phrase is seen on an image: what the service's `/ground` answers.

        Args:
            images: as in `classify`.
            phrases: sentences, one or several.
            threshold: score from which boxes are traced; None: half way between each
                grid's mean and its peak.

        Returns:
            The answer, in pixels of the image, or a list as of `classify`.

        Raises:
            ImageError: the only image is refused.
            QueryError: there is no phrase, or one is blank or not text; the model has no regions;
                or as in `classify`.
        """
        self.require_regions()
        texts = texts_of(phrases)

        def answer(
            regions: Tensor, images: Sequence[SquareImage]
        ) -> Iterator[schemas.GroundAnswer]:
            for one in self.answer_phrases(regions, images, texts, threshold):
                yield one.about(texts)

        return self._answer(images, answer)

    def _answer(
        self,
        images: Any,
        answer: Callable[[Tensor, Sequence[SquareImage]], Iterator[_OneAnswer]],
    ) -> _OneAnswer | schemas.Answers:
        listed, alone = _listed(images)
        answers = schemas.Answers()
        for batch in self._batches(listed):
            good = [image for image in batch if isinstance(image, SquareImage)]
            given: Iterator[_OneAnswer] = iter(())
            if good:
                given = answer(self.embed_images(np.stack([one.pixels for one in good])), good)
            for image in batch:
                if isinstance(image, SquareImage):
                    one = next(given)
                    answers.append(
                        one.pictured(Picture(image)) if len(answers) < _PICTURES else one
                    )
                elif alone:
                    raise image
                else:
                    answers.append(schemas.RefusedImage(code=image.code, message=image.message))
        return answers[0] if alone else answers

    def located(
        self,
        regions: Float[Tensor, "images rows columns dim"] | None,
        images: Sequence[SquareImage],
    ) -> Float[Tensor, "images rows columns dim"]:
        """Return the regions by which phrases are located, of images with those that score them."""
        if regions is not None and not self.model.image.is_pooled:
            return regions
        return self.embed_regions(np.stack([image.pixels for image in images]))

    def _batches(self, images: Sequence[Any]) -> Iterator[list[SquareImage | ImageError]]:
        """Prepare images in parts; in the place of one that is refused is its error."""
        for start in range(0, len(images), _IMAGES_PER_PASS):
            part: list[SquareImage | ImageError] = []
            for image in images[start : start + _IMAGES_PER_PASS]:
                try:
                    part.append(self._prepare(image))
                except ImageError as error:
                    part.append(error)
            yield part

    @torch.inference_mode()
    def phrase_grids(
        self, regions: Float[Tensor, "images rows columns dim"], phrases: Sequence[str]
    ) -> list[PhraseGrids]:
        """Score every region of images from `embed_regions` against every phrase."""
        phrases = texts_of(phrases)
        vectors = self.embed_sentences(phrases)
        grids = score_grids(regions, vectors, self.model.similarity)
        shares: list[list[float | None]] = [[None] * len(phrases) for _ in grids]
        if self._bank is not None and self._bank.shape[1:3] == regions.shape[1:3]:
            scores = (self.model.score(images, vectors) for images in (regions, self._bank))
            shares = zero_shot.percentiles(*scores).T.tolist()
        return [PhraseGrids(grid, own) for grid, own in zip(grids, shares, strict=True)]

    @torch.inference_mode()
    def finding_grids(
        self, regions: Float[Tensor, "images rows columns dim"], findings: Sequence[Finding]
    ) -> Float[np.ndarray, "images findings rows columns"]:
        """Average the grids of each finding's positive prompts on images from `embed_regions`."""
        prompts = self._asked(findings).prompts
        grids = score_grids(regions, prompts, self.model.similarity).swapaxes(0, 1)
        means, start = [], 0
        for finding in findings:  # of each, the positive prompts stand before the negative
            means.append(grids[start : start + len(finding.positive)].mean(axis=0))
            start += len(finding.positive) + len(finding.negative)
        return np.stack(means, axis=1)

    def _asked(self, findings: Sequence[Finding]) -> _Asked:
        """Prepare findings to be asked for; the model's own, and the last others, are kept."""
        key, last = tuple(findings), self._last_asked
        if key == self.findings:  # most questions ask about them
            return self._own_asked
        if last is None or last[0] != key:
            last = self._last_asked = key, self._ask(key)
        return last[1]

    @cached_property
    def _own_asked(self) -> _Asked:
        return self._ask(self.findings)

    @torch.inference_mode()
    def _ask(self, findings: tuple[Finding, ...]) -> _Asked:
        prompts = self.embed_sentences(zero_shot.prompt_texts(findings))
        scale = float(self.model.gamma.detach()) ** 2
        published = {
            (item.positive, item.negative): (level.positive / scale, level.negative / scale)
            for item, level in zip(
                self.findings if self.offsets else (),
                self.offsets.findings if self.offsets else (),
                strict=True,
            )
        }
        levels: zero_shot.Levels
        levels = [published.get((item.positive, item.negative)) for item in findings]
        if self._bank is None:
            return _Asked(prompts, levels, None)
        if None in levels:
            scaled = zero_shot.prompt_levels(self.model, self._bank, prompts, findings)
            levels = [(positive, negative) for positive, negative in (scaled / scale).tolist()]
        scores = self.model.score(self._bank, prompts)
        required = zero_shot.required_levels(findings, levels)
        return _Asked(prompts, levels, zero_shot.margins(scores, findings, required))

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


def _listed(images: Any) -> tuple[Sequence[Any], bool]:
    from medclip_dcl.data.images import images_of  # whose workers the service starts by itself

    return images_of(images)


def texts_of(given: str | Iterable[str]) -> list[str]:
    """List sentences, a string being one, with single spaces between their words.

    Raises:
        QueryError: there is none, or one is blank or not text.
    """
    plain = [" ".join(text.split()) for text in list_texts(given)]
    if not plain or not all(plain):
        raise QueryError("a sentence is empty; give text with at least one word")
    return plain


def published_folder(path: Path) -> Path:
    """Find a published model: its folder, that of its run, or OWNER/NAME@COMMIT, which is fetched.

    Raises:
        ConfigError: there is no such folder, it holds another's model, or the hub does not send it.
    """
    folder = fetch_weights(path, PACKAGE)
    if not folder.exists():
        raise ConfigError(
            f"{path} is not a folder here, and no hub's name with its commit; name a run's folder, "
            f"a model's, or OWNER/NAME@COMMIT{_ADOPT}"
        )
    is_run = not (folder / HEADER).is_file() and model_package.ARTIFACT.at(folder).is_dir()
    if not is_run and any(folder.glob("*config.json")) and not (folder / HEADER).is_file():
        raise ConfigError(f"{path} holds a checkpoint, and no model package{_ADOPT}")
    return model_package.ARTIFACT.at(folder) if is_run else folder


_ADOPT = "; `medclip adopt` makes a model package of a public checkpoint"


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
    published = model_package.read_model_package(published_folder(Path(path)))
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        inference = InferenceConfig(engine=engine, precision=precision)
        place = torch.empty(0, device=device).device
    except (ValueError, RuntimeError, AssertionError) as error:  # pydantic's and torch's
        raise ConfigError(
            f"device {str(device)!r} with engine {engine!r} and precision {precision!r} is not to "
            "be had here; devices are cpu and, where torch has a GPU, cuda or cuda:0; engines "
            "auto, torch and openvino; precisions auto, float32, bfloat16 and float16"
        ) from error
    return build_predictor(published, place, inference)


def build_predictor(
    published: model_package.SavedModel,
    device: torch.device,
    inference: InferenceConfig | None = None,
) -> Predictor:
    """Build the predictor of a published model that has been read already.

    Raises:
        CheckpointError: weights and configuration do not fit each other, or images were
            prepared otherwise than this version prepares them.
        ConfigError: the engine asked for is not installed, or has not that precision.
    """
    _check_preprocessing(published)
    with hub_closed(), published.text_folder() as folder:  # nothing is fetched
        text_config = packaged_text_config(folder)
        model, tokenizer = _build_model(published, text_config), read_tokenizer(folder, text_config)
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
    return Predictor(published, model, tokenizer, findings, engine)


def warn_of_cut_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int) -> bool:
    """Log how many texts have more than `limit` word pieces; return whether any has."""
    # None has more than bytes, so most need not be cut into pieces here.
    long = [text for text in texts if len(text.encode()) > limit - 2]
    pieces = tokenizer(long, split_special_tokens=True, verbose=False)["input_ids"] if long else []
    if cut := sum(len(item) > limit for item in pieces):
        LOGGER.warning(
            "%d of %d texts are longer than the %d word pieces that the model reads: what is "
            "beyond is not read; give sentences (this is logged once)",
            *(cut, len(texts), limit),
        )
    return cut > 0


def _build_model(published: model_package.SavedModel, text_config: PreTrainedConfig) -> DualEncoder:
    weights, settings = published.weights(), published.config.model
    try:
        with torch.device("meta"):  # shapes alone: sizes may be anything, and take no memory here
            shadow = DualEncoder(settings, text_config)
    except ConfigError as error:
        raise CheckpointError(f"model {published.digest[:12]}: {error}") from error
    shapes = {name: value.shape for name, value in shadow.state_dict().items()}
    if {name: value.shape for name, value in weights.items()} != shapes:
        raise CheckpointError(
            f"weights of model {published.digest[:12]} do not fit its configuration; rerun train"
        )
    _check_memory(shadow, settings.image.input_px, sum(map(_bytes, weights.values())))
    model = build_dual_encoder(settings, text_config, seed=0)
    model.load_state_dict(weights)
    return model


@torch.no_grad()
def _check_memory(shadow: DualEncoder, input_px: int, weight_bytes: int) -> None:
    # What no weight bounds: buffers that are not stored, and the maps of an image of any size.
    stored = shadow.state_dict().keys()
    buffers = sum(_bytes(item) for name, item in shadow.named_buffers() if name not in stored)
    if buffers > _LARGEST_BUFFERS + weight_bytes:
        raise CheckpointError(
            f"the encoders hold {buffers:,} bytes besides their {weight_bytes:,} of weights, above "
            f"{_LARGEST_BUFFERS:,} more; the model is damaged, or not one of train"
        )
    most, grid = 0, 0

    def measure(_module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal most
        tensors = [item for item in (*inputs, output) if isinstance(item, Tensor)]
        most = max(most, sum(map(_bytes, tensors)))

    hooks = [module.register_forward_hook(measure) for module in shadow.image.modules()]
    try:
        pixels = torch.zeros(1, 1, input_px, input_px, device="meta")
        rows, columns = shadow.eval().encode_images(pixels).shape[1:3]
        grid = rows * columns
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"the image encoder takes no input of {input_px} pixels, its input_px; rerun train"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if most > _LARGEST_LAYER or grid > _LARGEST_GRID:
        raise CheckpointError(
            f"model.image.input_px {input_px} makes {grid:,} regions of an image, of at most "
            f"{_LARGEST_GRID:,}, and takes {most:,} bytes in a layer, of at most "
            f"{_LARGEST_LAYER:,}; train with a smaller one"
        )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _check_preprocessing(published: model_package.SavedModel) -> None:
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
