"""The whole configuration, one frozen tree, from a YAML file and key=value overrides."""

import difflib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError

from medclip_dcl.data.claims_table import ClaimsConfig
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
from medclip_dcl.files import config_names, find_config
from medclip_dcl.likelihood.settings import EtaConfig, LanguageModelConfig, LikelihoodConfig
from medclip_dcl.models.settings import InferenceConfig, ModelConfig
from medclip_dcl.reporting.settings import CardConfig, ReportConfig
from medclip_dcl.retrieval.settings import IndexConfig, RetrievalConfig
from medclip_dcl.section import Section
from medclip_dcl.text.sentences import SentencesConfig
from medclip_dcl.training.settings import ObjectiveConfig, PretrainConfig, TrainConfig

_Settings = TypeVar("_Settings", bound=Section)
_CREDENTIALS = re.compile(r"\s*[A-Za-z][\w+.-]*://[^/?#]*@")
_SHOWN = 60  # characters of a refused value
_LONG_NUMBER = re.compile(r"[-+]?\d[\da-fA-Fxob_:.]{64,}")
_MOST_DEPTH = 32
_MOST_VALUES = 100_000
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Config(Section):
    """Every setting, section by section."""

    work: str
    """Folder that receives every artifact, `runs/NAME` of the config's file by default; `${WORK}`
    in other paths means it."""
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
    claims: ClaimsConfig = ClaimsConfig()
    """Claims."""
    language_model: LanguageModelConfig = LanguageModelConfig()
    """Masked language model."""
    likelihood: LikelihoodConfig = LikelihoodConfig()
    """Pseudo-log-likelihoods."""
    eta: EtaConfig = EtaConfig()
    """Class probabilities of sentences."""
    model: ModelConfig = ModelConfig()
    """Encoders and similarity."""
    pretrain: PretrainConfig = PretrainConfig()
    """Weights of the image encoder from images alone."""
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
        ConfigError: it cannot be read, or holds something else, aliases that grow, a number of more
            than 64 digits, or lists and keys more than 32 deep.
    """
    try:
        text = find_config(path).read_text(encoding="utf-8")
        if (fault := _yaml_fault(text)) is not None:
            raise ConfigError(f"{what} {path} has {fault}")
        tree = yaml.safe_load(text)
    except FileNotFoundError as error:
        raise ConfigError(f"{what} {path} does not exist; {_other_file(path)}") from error
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {path} is not UTF-8 text; save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        place = f", line {at.line + 1}, column {at.column + 1}" if at else ""
        raise ConfigError(f"{what} {path}{place}: {_problem(error)}; correct it") from error
    except (ValueError, yaml.YAMLError) as error:  # such as a character that no YAML file may have
        raise ConfigError(f"{what} {path} is not a YAML file; give one") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{what} {path} holds a {type(tree).__name__}; it must hold keys")
    return tree


def _problem(error: yaml.MarkedYAMLError) -> str:
    # Without names of tags and anchors, which are words of the file.
    return re.sub(r"'[^'<]{3,}'", "a name", error.problem or "it is not YAML")


def _other_file(path: Path) -> str:
    name = path.with_suffix("").as_posix().removeprefix("configs/")
    near = difflib.get_close_matches(name, config_names(), n=1)
    return f"did you mean {near[0]}?" if near else "give a file, or a name such as demo"


def _yaml_fault(text: str) -> str | None:
    """Name what a few bytes of YAML can make of unbounded size, before anything is built of it."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            return f"lists or keys more than {_MOST_DEPTH} deep; flatten them"
        if isinstance(event, yaml.ScalarEvent) and _LONG_NUMBER.fullmatch(event.value):
            return "a number of more than 64 digits; give one that a setting can hold"
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None and _written_out(root, {}) > _MOST_VALUES:
        return f"aliases that stand for more than {_MOST_VALUES} values; write them out"
    return None


def _written_out(node: yaml.Node, counts: dict[int, float]) -> float:
    """Count the values that a node stands for without aliases: infinite where it holds itself."""
    if id(node) not in counts:
        counts[id(node)] = math.inf
        held: list[yaml.Node] = []
        if isinstance(node, yaml.CollectionNode):
            pairs = isinstance(node, yaml.MappingNode)
            held = [item for pair in node.value for item in pair] if pairs else node.value
        counts[id(node)] = 1 + sum(_written_out(item, counts) for item in held)
    return counts[id(node)]


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file and apply `section.key=value` overrides.

    A file that says `base: FILE`, relative to itself, changes that one section by section; that
    one may have a base too.
    A value is parsed as JSON, and taken as a plain string where it is not JSON: `1e-5` is a
    number, `no` and `00123` are strings.

    Raises:
        ConfigError: a file cannot be read or is its own base, a key is unknown, or a value
            breaks its rule.
    """
    tree = _read_config(path)
    tree.setdefault("work", f"runs/{path.stem}")
    for override in overrides:
        _apply(tree, override)
    return check_config(tree, str(path))


def check_config(tree: dict[str, Any], name: str) -> Config:
    """Make a config from a tree of plain values; errors call it `config NAME`.

    Raises:
        ConfigError: a key is unknown, or a value breaks its rule.
    """
    _refuse_credentials(tree, f"config {name}")
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"config {name}: {explain(error, Config)}") from error


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
    _refuse_credentials(tree, "settings")
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"settings: {explain(error, schema, values=False)}") from error


def parse_value(text: str) -> Any:
    """Parse a setting that was given as text: JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # not JSON, a number of thousands of digits, or too deep
        return text


def _read_config(path: Path) -> dict[str, Any]:
    file, what = path, "config"
    read: list[Path] = []
    tree: dict[str, Any] = {}
    while True:
        read.append(find_config(file).resolve())
        under = read_yaml(file, what)
        base = under.pop("base", None)
        tree = _laid_over(under, tree)
        if base is None:
            return tree
        what, file = f"base of {file},", find_config(file).parent / str(base)
        if file.resolve() in read:
            raise ConfigError(f"config {path} is, by way of its bases, its own base: {file}")


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


def explain(error: ValidationError, schema: type[Section], *, values: bool = True) -> str:
    """Say on one line which settings break which rule, and how an unknown one may be meant.

    `values`: whether the refused values are shown; those of a service may be secret.
    """
    known = list(_dotted_names(schema))
    said = []
    for item in error.errors(include_url=False, include_context=False):
        name = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            said.append(f"{name} is not a setting; {_meant(name, known)}")
        elif item["type"] == "missing":
            said.append(f"{name} is missing; set it")
        else:
            value = repr(item["input"])
            shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
            hint = _as_json(item["input"])
            said.append(f"{name or 'file'}{f' = {shown}' if values else ''}: {item['msg']}{hint}")
    return "; ".join(said)


def _dotted_names(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _dotted_names(field.annotation, f"{prefix}{name}.")


def _meant(name: str, known: Sequence[str]) -> str:
    leaf = name.rpartition(".")[2]
    # The same name in another section is likelier than one that only looks alike.
    elsewhere = [item for item in known if item.rpartition(".")[2] == leaf]
    near = elsewhere or difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"did you mean {' or '.join(near[:3])}?" if near else "remove it, or correct the name"


def _refuse_credentials(tree: Any, name: str, key: str = "") -> None:
    """Refuse addresses with a user or password: settings are copied, compared and shown."""
    if isinstance(tree, str) and _CREDENTIALS.match(tree):
        raise ConfigError(
            f"{name}: {key} is an address with a user or password; give the address alone, and "
            "name the file of a key where there is a setting for it"
        )
    children: dict[Any, Any] = tree if isinstance(tree, dict) else {}
    if isinstance(tree, list):
        children = dict(enumerate(tree))
    for child, value in children.items():
        _refuse_credentials(value, name, f"{key}.{child}".lstrip("."))


def _as_json(given: Any) -> str:
    # What --set took as plain text because the words of a list or a map had no quotes.
    if not isinstance(given, str) or given[:1] not in {"[", "{"}:
        return ""
    return """; quote it as JSON, such as --set 'table1.rows=["lse_nl", "dcl_lm"]'"""
