"""The whole configuration, one frozen tree, from a YAML file and key=value overrides."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import Field, ValidationError

from medclip_dcl.data.data_check import CheckConfig
from medclip_dcl.data.images import ImagesConfig
from medclip_dcl.data.sources.records import SourceConfig
from medclip_dcl.data.synthetic.settings import GenerateConfig
from medclip_dcl.dicom_results.settings import AnswerConfig
from medclip_dcl.errors import ConfigError
from medclip_dcl.evaluation.settings import (
    EvaluateConfig,
    ProbabilitiesConfig,
    Table1Config,
)
from medclip_dcl.files import find_config
from medclip_dcl.likelihood.settings import EtaConfig, LanguageModelConfig, LikelihoodConfig
from medclip_dcl.models.settings import InferenceConfig, ModelConfig
from medclip_dcl.reporting.settings import CardConfig, ReportConfig
from medclip_dcl.retrieval.settings import IndexConfig, RetrievalConfig
from medclip_dcl.section import Section
from medclip_dcl.text.sentences import SentencesConfig
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig

RENAMED = {
    "check.films": "check.images",
    "evaluate.films_per_finding": "evaluate.images_per_finding",
    "evaluate.geometry=paper": "evaluate.geometry=whole",
    "evaluate.pairs": "evaluate.retrieval_pool",
    "evaluate.people": "evaluate.demographics",
    "evaluate.probe_films": "evaluate.probe_images",
    "generate.coverage_films": "generate.coverage_images",
    "generate.second_film_share": "generate.second_image_share",
    "train.validate_films": "train.validate_images",
}
"""Renamed settings, sections and values: old dotted key, or key=value, -> the new one."""
REMOVED: dict[str, str] = {
    "calibrate": "use `python -m benchmarks.method.eta_calibration`",
    "check.unit": "the check resumes after every 256 images or sections",
    "eta.on_missing": "list every sentence in eta.table, with 0 for no correction",
    "evaluate.adapter.gamma_squared": "scores are scaled by 100, CLIP's largest logit scale",
    "evaluate.batch": "images are encoded 64 at a time",
    "evaluate.demographics.age_bands": "bands begin at 18, 40, 60 and 80 years",
    "evaluate.demographics.key": "the table names its column image_id, study_id or subject_id",
    "evaluate.demographics.least_patients": "figures of fewer than 10 patients are withheld",
    "evaluate.demographics.of": "the table names its column image_id, study_id or subject_id",
    "evaluate.per_class": "at most 200 images of a class are asked, as in CheXpert5x200",
    "evaluate.seed": "every evaluation draws with the same seed, so that runs can be compared",
    "generate.unit_patients": "the generator resumes after every 50 patients",
    "image_set": "the image-only experiment is examples/image_only",
    "index.anchors": "images are sketched at 1536 sentences and boxes",
    "index.batch": "32 images, or sentences, go through the model at a time",
    "index.landmarks": "images are sketched at 1536 sentences and boxes",
    "index.thumbnail_px": "thumbnails are 256 pixels long",
    "language_model.dropout": "a BERT trained here has none",
    "language_model.fit": "set language_model.steps to 0 to take a pretrained model as it is",
    "language_model.heads": "a BERT trained here has 4",
    "language_model.held_out_share": "it is always 0.05",
    "language_model.mask_share": "it is always 0.15, BERT's",
    "language_model.max_tokens": "it is always 128",
    "language_model.save_every_s": "a fit saves as often as 2 % of its time allow",
    "language_model.warmup_share": "it is always 0.1",
    "language_model.weight_decay": "it is always 0.01",
    "likelihood.flush_every_s": "every finished unit is written at once",
    "model.image.channels": "images have one channel",
    "model.image.stem": "its cifar stem is in examples/image_only",
    "model.similarity.learn_gamma": "gamma is learned",
    "objective.keep_share": "set objective.remove_share to 1 less it",
    "objective.sigmoid_bias": "it is learned",
    "objective.similarity_threshold": "set objective.remove_share; the threshold is measured",
    "probe": "set evaluate.probe_fractions; the rest is in examples/image_only",
    "sentences.deadline_s": "it is always 3",
    "sentences.max_characters": "it is always 1000",
    "sentences.max_section_characters": "it is always 20,000",
    "sentences.strip_numbers": "numbers of list items are always cut off",
    "source.image_suffix": "images end as the first one that is found",
    "table1.variants": "name the rows in table1.rows",
    "train.brightness": "it is 0.2",
    "train.channels_last": "images are always laid out so",
    "train.clip_norm": "it is 1",
    "train.contrast": "it is 0.2",
    "train.keep_checkpoints": "two are kept",
    "train.loader_workers": "one thread reads a batch ahead",
    "train.max_skipped": "ten steps in a row stop a run",
    "train.projection_frozen_steps": "the maps into the shared space always learn",
    "train.projection_learning_rate": "each map learns as the encoder before it",
    "train.validate_batches": "a validation loss takes 8 batches",
    "views": "the image-only experiment is examples/image_only",
}
"""Settings and sections that are gone: old dotted key -> what to know instead."""

_Settings = TypeVar("_Settings", bound=Section)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Config(Section):
    """Every setting, section by section."""

    work: str
    """Folder that receives every artifact; `${WORK}` in other paths means it."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of everything that is drawn."""
    jobs: tuple[str, ...] = ()
    """Jobs that `medclip run` runs, in order; empty: all but `generate_studies`."""
    generate: GenerateConfig = GenerateConfig()
    """Generated studies."""
    source: SourceConfig = SourceConfig()
    """Source of studies."""
    check: CheckConfig = CheckConfig()
    """Check of the source before anything is prepared."""
    images: ImagesConfig = ImagesConfig()
    """Prepared images."""
    sentences: SentencesConfig = SentencesConfig()
    """Sentences."""
    language_model: LanguageModelConfig = LanguageModelConfig()
    """Masked language model."""
    likelihood: LikelihoodConfig = LikelihoodConfig()
    """Pseudo-log-likelihoods."""
    eta: EtaConfig = EtaConfig()
    """Class probabilities of sentences."""
    model: ModelConfig = ModelConfig()
    """Encoders and similarity."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """Loss."""
    train: TrainConfig = TrainConfig()
    """Training loop."""
    probabilities: ProbabilitiesConfig = ProbabilitiesConfig()
    """Scores as probabilities."""
    inference: InferenceConfig = InferenceConfig()
    """Engine and precision of a finished model."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Evaluation."""
    table1: Table1Config = Table1Config()
    """Table 1."""
    index: IndexConfig = IndexConfig()
    """Retrieval index."""
    retrieval: RetrievalConfig = RetrievalConfig()
    """Engine of the candidates."""
    answer: AnswerConfig = AnswerConfig()
    """Answers on every image."""
    card: CardConfig = CardConfig()
    """Model card and data card."""
    report: ReportConfig = ReportConfig()
    """HTML report."""


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Read a YAML file of keys, found as `find_config` does; errors call it `what`.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        tree = yaml.safe_load(find_config(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = type(error).__name__
        raise ConfigError(f"{what} {path} cannot be read ({reason}); give a YAML file") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{what} {path} holds a {type(tree).__name__}; it must hold keys")
    return tree


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file and apply `section.key=value` overrides.

    A file that says `base: FILE`, relative to itself, changes that one section by section.
    A value is parsed as JSON, and taken as a plain string where it is not JSON: `1e-5` is a
    number, `no` and `00123` are strings.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, renamed or removed, or a
            value breaks its rule.
    """
    tree = _read_config(path)
    for override in overrides:
        _apply(tree, override)
    return check_config(tree, str(path))


def check_config(tree: dict[str, Any], name: str) -> Config:
    """Make a config from a tree of plain values; errors call it `config NAME`.

    Raises:
        ConfigError: a key is unknown, renamed or removed, or a value breaks its rule.
    """
    if gone := list(_gone(tree)):
        raise ConfigError(f"config {name}: {'; '.join(gone)}")
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"config {name}: {explain(error)}") from error


def resolve_path(text: str, config: Config) -> Path:
    """Turn a path setting into a path.

    `${WORK}` means `config.work`, any other `${NAME}` the environment variable NAME; ConfigError
    where it is not set, or the setting is empty. A file below `configs` that is not there is the
    one of the package.
    """
    if not text:
        raise ConfigError("a path setting is empty; set it in the config or with --set")

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "WORK":
            return str(resolve_path(config.work, config)) if text != config.work else ""
        if name not in os.environ:
            raise ConfigError(f"path setting uses ${{{name}}}, which is not set; export {name}")
        return os.environ[name]

    path = Path(_VARIABLE.sub(value, text)).expanduser()
    return find_config(path) if path.parts[:1] == ("configs",) else path


def read_settings_of(
    schema: type[_Settings],
    file: Path | None,
    environment: Mapping[str, str],
    prefix: str,
    **overrides: Any,
) -> _Settings:
    """Gather and validate the settings of a process: YAML file, variables, then `overrides`.

    With the prefix `MEDCLIP_` the variable `MEDCLIP_QUEUE=8` sets `queue`. Values of variables are
    parsed as JSON, and taken as plain strings where they are not JSON; an override that is None is
    left out.

    Raises:
        ConfigError: the file cannot be read, a key or variable is unknown, or a value
            breaks its rule.
    """
    tree = read_yaml(file, "settings file") if file is not None else {}
    known = {prefix + name.upper(): name for name in schema.model_fields}
    given = {name for name in environment if name.upper().startswith(prefix)}
    unknown = sorted(given - set(known))
    if unknown:
        raise ConfigError(f"variables {unknown} are not settings; unset them or correct the names")
    tree |= {known[name]: parse_value(environment[name]) for name in given}
    tree |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}" for item in error.errors()
        ]
        raise ConfigError(f"settings: {'; '.join(faults)}") from error


def parse_value(text: str) -> Any:
    """Parse a setting that was given as text: JSON, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _read_config(path: Path) -> dict[str, Any]:
    tree = read_yaml(path, "config")
    base = tree.pop("base", None)
    if base is None:
        return tree
    under = read_yaml(find_config(path).parent / str(base), f"base of {path},")
    if "base" in under:
        raise ConfigError(f"base {base} of config {path} has a base itself; name one that has none")
    return _laid_over(under, tree)


def _laid_over(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    laid = dict(under)
    for name, value in over.items():
        below = under.get(name)
        both = isinstance(value, dict) and isinstance(below, dict)
        laid[name] = _laid_over(below, value) if both else value  # type: ignore[arg-type]
    return laid


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    names = key.split(".")
    if not equals or not all(names):
        raise ConfigError(f"override {override!r} must read section.key=value")
    node = tree
    for name in names[:-1]:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {key!r}: {name!r} is not a section")
    node[names[-1]] = parse_value(text)


def _gone(tree: dict[str, Any], prefix: str = "") -> Iterable[str]:
    """Name the keys of a tree of an earlier version."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if f"{key}={value}" in RENAMED:
            key = f"{key}={value}"
        if key in RENAMED:
            yield f"{key} was renamed {RENAMED[key]}"
        elif key in REMOVED:
            yield f"{key} was removed: {REMOVED[key]}"
        elif isinstance(value, dict):
            yield from _gone(value, f"{key}.")


def explain(error: ValidationError) -> str:
    """Say on one line which settings break which rule."""
    said = []
    for item in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in item["loc"])
        said.append(f"{where or 'file'} = {item['input']!r}: {item['msg']}")
    return "; ".join(said)
