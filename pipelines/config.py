"""The whole configuration, one frozen tree, from a YAML file and key=value overrides."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.files import find_config
from medclip_dcl.core.plugins import load_plugins, locate_plugins
from medclip_dcl.core.settings import (
    LOCAL,
    NO_EFFECT,
    Section,
    check_settings,
    parse_value,
    read_yaml,
)
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.source_settings import ClaimsConfig, SourceConfig
from medclip_dcl.evaluation import EvaluateConfig
from medclip_dcl.likelihood import EtaConfig, LanguageModelConfig, LikelihoodConfig
from medclip_dcl.models.settings import InferenceConfig, ModelConfig, ProbabilitiesConfig
from medclip_dcl.retrieval import IndexConfig, RetrievalConfig
from medclip_dcl.synthetic import GenerateConfig
from medclip_dcl.text.sentences import SentencesConfig
from medclip_dcl.training.settings import ObjectiveConfig, PretrainConfig, TrainConfig

from .report.preflight import CardConfig, ReportConfig


class Config(Section):
    """Every setting, section by section; what each is about stands in its class."""

    work: str
    """Folder that receives every artifact, `runs/NAME` of the config's file by default; `${WORK}`
    in other paths means it."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of everything that is drawn."""
    workers: Annotated[int, Field(ge=0), NO_EFFECT] = 0
    """Processes that draw studies, decode images or score sentences, and threads of torch in
    training; 0: one per core, and one per GPU for scores. Fewer take less memory."""
    jobs: tuple[str, ...] = ()
    """Jobs that `medclip run` runs, in order; empty: all but `generate_studies`."""
    plugins: Annotated[tuple[str, ...], LOCAL] = ()
    """Modules of your own, or files that end in .py, relative to the config: they are imported, and
    register losses, sources, encoders or metrics; name what you trust."""
    generate: GenerateConfig = GenerateConfig()
    source: SourceConfig = SourceConfig()
    images: ImagesConfig = ImagesConfig()
    sentences: SentencesConfig = SentencesConfig()
    claims: ClaimsConfig = ClaimsConfig()
    language_model: LanguageModelConfig = LanguageModelConfig()
    likelihood: LikelihoodConfig = LikelihoodConfig()
    eta: EtaConfig = EtaConfig()
    model: ModelConfig = ModelConfig()
    pretrain: PretrainConfig = PretrainConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    train: TrainConfig = TrainConfig()
    probabilities: ProbabilitiesConfig = ProbabilitiesConfig()
    inference: InferenceConfig = InferenceConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    index: IndexConfig = IndexConfig()
    retrieval: RetrievalConfig = RetrievalConfig()
    card: CardConfig = CardConfig()
    report: ReportConfig = ReportConfig()


WITHDRAWN: dict[str, object] = {
    "eta.fit": "none",
    "objective.place_weight": 0,
    "probabilities.method": "platt",
    "retrieval.timeout_s": 10,
    "source.modalities": ["CR", "DX"],
    "train.image_frozen_steps": 0,
    "train.text_frozen_steps": 0,
    "train.torch_threads": 0,
}
"""Setting that earlier versions had -> the value that holds now: configs that say it go on."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file and apply `section.key=value` overrides.

    A file that says `base: FILE`, relative to itself, changes that one section by section; that one
    may have a base too. A value is parsed as JSON, and taken as a plain string where it is not
    JSON: `1e-5` is a number, `no` and `00123` are strings. ConfigError where a file cannot be read
    or is its own base, a key is unknown, or a value breaks its rule.
    """
    tree = _read_config(path)
    tree.setdefault("work", f"runs/{path.stem}")
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(f"override {override!r} must read section.key=value")
        tree = laid_over(tree, setting_tree(key, parse_value(text)))
    return check_config(tree, str(path))


def check_config(tree: dict[str, Any], name: str) -> Config:
    """Make a config from a tree of plain values; errors call it `config NAME`.

    ConfigError where a key is unknown, or a value breaks its rule.
    """
    for key, held in WITHDRAWN.items():
        section, _, leaf = key.partition(".")
        given = tree.get(section)
        if isinstance(given, dict) and leaf in given and given[leaf] == held:
            tree = {**tree, section: {name: given[name] for name in given if name != leaf}}
    plugins = tree.get("plugins", ())
    if isinstance(plugins, list | tuple) and all(isinstance(item, str) for item in plugins):
        load_plugins(plugins)  # the names that they register are values of settings below
    return check_settings(Config, tree, f"config {name}")


def _read_config(path: Path) -> dict[str, Any]:
    file, what = find_config(path), "config"
    read: list[Path] = []
    tree: dict[str, Any] = {}
    while True:
        read.append(file.resolve())
        under = read_yaml(file, what)
        if not under:
            raise ConfigError(
                f"{what} {file} is empty; `medclip init TABLE` writes one for a table, "
                "configs/README.md lists others"
            )
        base = under.pop("base", None)
        if "plugins" in under:
            under["plugins"] = locate_plugins(under["plugins"], file.parent)
        tree = laid_over(under, tree)
        if base is None:
            return tree
        # `base: demo` in a `demo.yaml` of one's own means the one that came with the package.
        places = [find_config(file.parent / str(base)), find_config(Path(str(base)))]
        there = [place for place in places if place.is_file()]
        if there and all(place.resolve() in read for place in there):
            raise ConfigError(f"config {path} is, by way of its bases, its own base: {there[0]}")
        what = f"base of {file},"
        file = next((place for place in there if place.resolve() not in read), places[0])


def laid_over(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Change a tree of settings section by section."""
    laid = dict(under)
    for name, value in over.items():
        below = under.get(name)
        both = isinstance(value, dict) and isinstance(below, dict)
        laid[name] = laid_over(below, value) if both else value  # type: ignore[arg-type]
    return laid


def setting_tree(name: str, value: Any) -> dict[str, Any]:
    """Make the tree of one dotted setting."""
    for key in reversed(name.split(".")):
        value = {key: value}
    tree: dict[str, Any] = value
    return tree
