"""Model package: what evaluation, index and service load, and nothing that can run code.

    model.safetensors   weights of both encoders and gamma
    config.json         the whole configuration, `work` left out
    model.json          the card: what it is, was made from, is for and is not for
    calibration.json    how a score becomes a probability, finding by finding; there once
                        calibrate_scores has run
    offsets.json        level of each prompt over a bank of images, which decisions are taken by,
                        and which images these are
    bank.safetensors    region vectors of those images, float16, for prompts of other people's
    heads.json          classifiers on labels of one's own, and what they reached; there once
    heads.safetensors   fit_head has run, with their arrays
    subjects.json       hashes of the training patients' ids, to refuse contaminated tests
    input_range.json    mean and precision of the training images' features, and the distance
                        beyond which an image is out of range; from two patients on
    text/               BERT configuration and tokenizer: config.json, tokenizer.json,
                        tokenizer_config.json

The artifact's digest names the model everywhere.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from medclip_dcl.core.artifact import Artifact, ArtifactType, open_artifact
from medclip_dcl.core.errors import ArtifactCorrupt, CheckpointError
from medclip_dcl.core.files import write_bytes, write_text
from medclip_dcl.core.settings import Section
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.models.settings import ModelConfig, ProbabilitiesConfig

ARTIFACT = ArtifactType("model", 3, "train")

WEIGHTS, CONFIG, CARD, SUBJECTS = "model.safetensors", "config.json", "model.json", "subjects.json"
TEXT = "text"
TEXT_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""Files of `text/`, as transformers reads them."""
CALIBRATION_FILE, INPUT_RANGE_FILE = "calibration.json", "input_range.json"
OFFSETS_FILE, BANK_FILE = "offsets.json", "bank.safetensors"
HEADS_FILE, HEAD_ARRAYS_FILE = "heads.json", "heads.safetensors"


class Curve(Section):
    """A rising map from the logit of a score to a probability, the logistic function."""

    slope: Annotated[float, Field(ge=0)]
    intercept: float = 0.0
    """Log odds at a score of one half."""

    def probabilities(self, logits: Float[np.ndarray, " images"]) -> Float[np.ndarray, " images"]:
        """Turn log odds of each image's score, gamma**2 times the margin, into probabilities."""
        # without overflow on either side
        probability: np.ndarray = (1 + np.tanh((self.slope * logits + self.intercept) / 2)) / 2
        return probability


class FindingCalibration(Section):
    """Calibration of one finding, asked with the prompts that the model was published with."""

    finding: str
    """Name of the finding."""
    curve: Curve | None
    """None where the validation images do not suffice, or the prompts do not decide."""
    reason: str
    """Why there is no curve; empty where there is one."""
    images_with: int
    """Validation images with the finding."""
    images_without: int
    """Validation images without it."""
    patients: int
    """Patients of these images."""
    score_error: float | None
    """Expected calibration error of the score itself, on the same images; None: no image."""
    fitted_error: float | None
    """That of the probability on the images it was fitted to, and so too low; None: no curve."""
    correlation: float | None = None
    """Of the scores of its two prompts over the validation images; None: undefined, or fitted by a
    version that did not look."""
    auc: float | None = None
    """Of the score on these images; None: fewer than `least_per_class`, or not looked at either."""
    is_refused: bool = False
    """Whether its prompt pair does not decide, or it is read upside down."""


class ScoreCalibration(Section):
    """Calibration that `calibrate_scores` leaves in a model's folder."""

    format_version: Literal[2] = 2
    split: Literal["validate"] = "validate"
    """Split that it was fitted on; there is no other."""
    truth: Literal["exact", "labels", "none"]
    """Where the labels come from."""
    settings: ProbabilitiesConfig
    """How it was fitted."""
    inputs: dict[str, str]
    """Digests of what it was made from, by name."""
    correlation_limit: float | None = None
    """Correlation of two prompts above which a finding was refused; None: none was."""
    changed_in_bfloat16: float | None = None
    """Share of the decisions on the split's images that bfloat16 changes; None: unknown, as where
    the processor that it was fitted on does not multiply in it."""
    findings: tuple[FindingCalibration, ...]
    """One entry per finding of the model."""

    def of(self, finding: str) -> FindingCalibration | None:
        """Find the calibration of a finding; None where it was not among the model's."""
        return next((item for item in self.findings if item.finding == finding), None)


def read_calibration(model: Artifact) -> ScoreCalibration | None:
    """Read the calibration of an opened model; None where it has none."""
    return _read_section(model, CALIBRATION_FILE, ScoreCalibration, "calibrate_scores")


class PromptOffset(Section):
    """Levels of one finding's prompts over the bank, log mean e^s, nats."""

    finding: str
    """Name of the finding."""
    positive: float
    """Of the prompts that assert it, their scores averaged."""
    negative: float
    """Of those that deny it; without any, that of the others."""


class PromptOffsets(Section):
    """Levels of a published model's prompts: `offsets.json`."""

    format_version: Literal[1] = 1
    split: Literal["validate", "train"]
    """Split of the bank's images."""
    images: int
    """How many they are."""
    digest: str
    """SHA-256 of their ids in order, one a line."""
    findings: tuple[PromptOffset, ...]
    """One entry per finding of the model, in its order."""


def write_offsets(folder: Path, offsets: PromptOffsets, bank: Tensor) -> None:
    """Write offsets and the region vectors of the bank into the draft of a model."""
    write_text(folder / OFFSETS_FILE, offsets.model_dump_json(indent=1) + "\n")
    write_bytes(folder / BANK_FILE, save({"regions": bank.cpu().contiguous()}))


def read_offsets(source: Path | Artifact) -> PromptOffsets | None:
    """Read the offsets of a model whose bytes have been checked; None: an earlier version's."""
    return _read_section(source, OFFSETS_FILE, PromptOffsets)


def read_bank(source: Path | Artifact) -> Float[Tensor, "images rows columns dim"] | None:
    """Read the bank's region vectors, float16; None where there is none, as in an export."""
    content = read_part(source, BANK_FILE)
    if content is None:
        return None
    try:
        regions: Tensor = load(content)["regions"]
    except (KeyError, SafetensorError) as error:
        raise _unreadable(source, BANK_FILE) from error
    return regions


class InputRange(Section):
    """Range of images like those that a model was trained on."""

    features: Literal["edges"]
    """What images are described by: `input_range.describe_pixels`."""
    mean: tuple[float, ...]
    """Of each feature."""
    precision: tuple[tuple[float, ...], ...]
    """Inverse covariance of the features, rows."""
    threshold: float
    """Squared Mahalanobis distance beyond which an image is out of range."""
    images: int
    """Training images that all this comes from."""
    rate: float
    """Expected share of images like these beyond the threshold."""

    @cached_property
    def arrays(self) -> tuple[Float[np.ndarray, " _"], Float[np.ndarray, "_ _"]]:
        """Mean and precision, to compute with."""
        return np.array(self.mean), np.array(self.precision)


def write_input_range(folder: Path, fitted: InputRange) -> None:
    """Write the range into the draft of a model."""
    write_text(folder / INPUT_RANGE_FILE, json.dumps(fitted.model_dump()) + "\n")


def read_input_range(source: Path | Artifact) -> InputRange | None:
    """Read the range of a model whose bytes have been checked; None where it has none."""
    return _read_section(source, INPUT_RANGE_FILE, InputRange)


_Part = TypeVar("_Part", bound=Section)


def read_part(source: Path | Artifact, name: str) -> bytes | None:
    """Read a file of a model whole; None where it has none.

    Of an opened artifact it is hashed again, since the folder may have been replaced since. Of a
    folder, such as a draft's, it is taken as it stands.

    Raises:
        ArtifactCorrupt: it is no longer the file that the artifact's digest is made of.
    """
    if isinstance(source, Path):
        return (source / name).read_bytes() if (source / name).is_file() else None
    if name not in source.files:
        return None
    content = source.file(name).read_bytes()
    if hashlib.sha256(content).hexdigest() != source.files[name]["sha256"]:
        raise ArtifactCorrupt(
            f"{name} of {source.path} was replaced while model {source.digest[:12]} was read; "
            "read it again"
        )
    return content


def _read_section(
    source: Path | Artifact, name: str, kind: type[_Part], job: str = "train"
) -> _Part | None:
    try:
        content = read_part(source, name)
        return None if content is None else kind.model_validate_json(content)
    except (OSError, ValueError) as error:
        raise _unreadable(source, name, job) from error


def _unreadable(source: Path | Artifact, name: str, job: str = "train") -> CheckpointError:
    folder = getattr(source, "path", source)
    return CheckpointError(f"{name} of {folder} cannot be read by this version; rerun {job}")


class PackagedConfig(Section):
    """The sections that a finished model is used by; those of other stages may change."""

    model_config = ConfigDict(extra="ignore")

    seed: int
    images: ImagesConfig
    model: ModelConfig

    @classmethod
    def of(cls, config: Section) -> Self:
        """Take them out of the whole configuration."""
        return cls(**{name: getattr(config, name) for name in cls.model_fields})


class _Card(BaseModel):
    # What is read of it, whoever wrote it; the rest is shown.
    model_config = ConfigDict(extra="allow")

    preprocessing: dict[str, Any] = {}
    grid: dict[str, Any] = {}
    training: dict[str, Any] = {}
    data: dict[str, Any] = {}
    eta: dict[str, Any] = {}


_UNKNOWN_ENCODER = ("model", "image", "kind", "value_error")  # where and how pydantic refuses it
_HASHES = TypeAdapter(list[str] | None)


@dataclass(frozen=True)
class SavedModel:
    """A model package whose bytes have been checked."""

    path: Path
    """Its folder."""
    digest: str
    """Digest of all its files."""
    config: PackagedConfig
    """Settings that it was trained with."""
    card: Mapping[str, Any]
    """Facts about it."""
    subject_hashes: frozenset[str] | None
    """`subject_hash` of every training patient; None in an export."""
    calibration: ScoreCalibration | None = None
    """How its scores become probabilities; None where nobody has fitted that."""
    artifact: Artifact | None = None
    """Header that its files are held to; None of a draft, which has none yet."""

    @property
    def source(self) -> Path | Artifact:
        """Origin of its files, as `read_part` takes it."""
        return self.artifact or self.path

    @contextmanager
    def text_folder(self) -> Iterator[Path]:
        """Folder with the text encoder's configuration and tokenizer, there while they are read.

        transformers reads by path, and the model's folder may be replaced meanwhile: of an artifact
        it is a copy, which holds words of reports and so is removed at once.
        """
        if self.artifact is None:
            yield self.path / TEXT
            return
        with TemporaryDirectory(prefix="medclip-text-") as folder:
            for name in TEXT_FILES:
                content = read_part(self.source, f"{TEXT}/{name}")
                if content is not None:
                    write_bytes(Path(folder) / name, content)
            yield Path(folder)

    def weights(self) -> dict[str, Tensor]:
        """Read parameters and buffers by name, on the CPU; CheckpointError where not finite."""
        try:
            tensors: dict[str, Tensor] = load(read_part(self.source, WEIGHTS) or b"")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"weights of {self.path} cannot be read; rerun train") from error
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise CheckpointError(f"weight {name} of {self.path} is not finite; rerun train")
        return tensors


def subject_hash(subject_id: str) -> str:
    """Hash a patient's id to 32 hexadecimal digits, so that a model names no patient in clear.

    Ids are few, so this hides them from readers, not from someone who tries them all.
    """
    return hashlib.sha256(f"medclip-dcl subject {subject_id}".encode()).hexdigest()[:32]


def write_model_package(
    folder: Path,
    weights: Mapping[str, Tensor],
    config: Section,
    card: Mapping[str, Any],
    subject_ids: Iterable[str] | None,
    write_text_files: Callable[[Path], None],
) -> None:
    """Write the files of a model package.

    Args:
        folder: the draft's directory.
        weights: parameters and buffers by name.
        config: the configuration; its `work` is not a property of the model, and may name
            people: it is left out.
        card: facts about the model, JSON-serialisable.
        subject_ids: patients whose studies were trained on; None: nobody here knows.
        write_text_files: fills a folder with `TEXT_FILES`.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    write_bytes(folder / WEIGHTS, save(plain))
    tree = config.model_dump(mode="json", exclude={"plugins"})  # a model names no code
    _write_json(folder / CONFIG, {**tree, "work": "."})
    _write_json(folder / CARD, card)
    hashes = None if subject_ids is None else sorted(map(subject_hash, subject_ids))
    _write_json(folder / SUBJECTS, hashes)
    (folder / TEXT).mkdir(exist_ok=True)
    write_text_files(folder / TEXT)


def rewrite_package(
    model: Artifact, folder: Path, names: Collection[str], write: Callable[[Path], None]
) -> Artifact:
    """Commit a model into `folder` with some of its files written again; its digest is new.

    `names` are those files, whether the model has them or not; the others are linked. The folder
    may be the model's own. What is said of its training stays.
    """
    from medclip_dcl.core.artifact_writer import write_artifact  # who only reads needs no writer

    with write_artifact(folder, ARTIFACT, model.fingerprint) as writer:
        for name in set(model.files) - set(names):
            _link(model.path / name, writer.directory / name)
        for name in names:
            (writer.directory / name).unlink(missing_ok=True)  # of a killed run
        write(writer.directory)
        facts = {"seconds", "code"} & set(model.origin)
        writer.carried = {name: model.origin[name] for name in facts}
        return writer.commit(model.summary)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def read_model_package(path: Path) -> SavedModel:
    """Open a model after checking every byte; `weights()` reads the rest.

    Raises:
        ArtifactError: it is missing, damaged or of another version.
        CheckpointError: its configuration or card cannot be read by this version.
    """
    artifact = open_artifact(path, ARTIFACT)
    try:
        texts = [read_part(artifact, name) or b"" for name in (CONFIG, CARD, SUBJECTS)]
        config = PackagedConfig.model_validate_json(texts[0])
        card = _Card.model_validate_json(texts[1]).model_dump(exclude_unset=True)
        hashes = _HASHES.validate_json(texts[2])
    except (OSError, ValueError, RecursionError) as error:
        remedy = "this version cannot read; rerun train"
        if isinstance(error, ValidationError) and _lacks_encoder(error):
            remedy = (
                "needs the image encoder of a plugin that is not loaded here; name the module that "
                "registers it in `plugins`, or install its package"
            )
        raise CheckpointError(f"model in {path} has a configuration that {remedy}") from error
    subjects = None if hashes is None else frozenset(hashes)
    fitted = read_calibration(artifact)
    return SavedModel(path, artifact.digest, config, card, subjects, fitted, artifact)


def _lacks_encoder(error: ValidationError) -> bool:
    faults = error.errors(include_url=False)
    return any((*item["loc"], item["type"]) == _UNKNOWN_ENCODER for item in faults)


def _write_json(path: Path, tree: Any) -> None:
    write_text(path, json.dumps(tree, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
