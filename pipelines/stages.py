"""Every command of `medclip`: the stages of a run in the order of their data, tools, programs.

A new command is a line here and a function of its name in the module that the line names: that of
a stage takes a `Job`, any other the options of its command line. What a stage reads is listed here
alone, each input next to the settings that ask for it: a job opens its inputs by this table, and
the fingerprint of what it makes has their digests.
"""

import importlib
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from medclip_dcl.core.errors import ConfigError

if TYPE_CHECKING:  # a table of contents does not wait for them
    from medclip_dcl.core.artifact import Artifact, ArtifactType

    from .config import Config

    OpenArtifact = Callable[[ArtifactType], Artifact]

HEADINGS = START, DATA, TRAINING, EVALUATION, SERVING = (
    "Begin here",
    "Data",
    "Training",
    "Evaluation",
    "Serving",
)
"""Headings of `medclip --help`, in order."""


class Input(NamedTuple):
    """Input of a stage: its name in the fingerprint, how it is opened, and when it is read."""

    name: str
    open: Callable[["Config", "OpenArtifact"], tuple[Any, "Artifact | str"]]
    """Config, and what opens artifacts of the run -> what the stage gets, and its digest."""
    when: Callable[["Config"], object]  # such as a setting, which is empty where it is not


class Command(NamedTuple):
    """A command: a stage of a run, or another."""

    heading: str
    line: str  # what the help says of it
    module: str
    makes: str = ""  # name of a stage's artifact; empty: it makes another thing
    inputs: tuple[Input, ...] = ()
    on_request: bool = False  # whether a config without `jobs` leaves the stage out


ARTIFACTS = {
    "manifest": "medclip_dcl.data.manifest",
    "prepared": "medclip_dcl.data.prepared",
    "sentences": "medclip_dcl.text.sentences",
    "claims": "medclip_dcl.text.labeler.labels",
    "language_model": "medclip_dcl.likelihood.masked_lm",
    "likelihoods": "medclip_dcl.likelihood.scoring",
    "eta_cache": "medclip_dcl.likelihood.eta",
    "model": "medclip_dcl.inference.model_package",
}
"""Artifact that a stage reads -> the module that declares it, as `ARTIFACT`."""


def artifact_type(name: str) -> "ArtifactType":
    """Import the type of an artifact."""
    kind: ArtifactType = importlib.import_module(ARTIFACTS[name]).ARTIFACT
    return kind


def _always(_config: "Config") -> bool:
    return True


def artifact(name: str, when: Callable[["Config"], bool] = _always) -> Input:
    """Read an artifact of the run."""

    def opened(_config: "Config", open_artifact: "OpenArtifact") -> "tuple[Artifact, Artifact]":
        item = open_artifact(artifact_type(name))
        return item, item

    return Input(name, opened, when)


def file(name: str, setting: str, when: Callable[["Config"], object] | None = None) -> Input:
    """Read the file that a setting names; by default where it names one."""

    def opened(config: "Config", _open: "OpenArtifact") -> tuple[Path, str]:
        from medclip_dcl.core.files import sha256_file
        from medclip_dcl.core.settings import resolve_path

        path = resolve_path(attrgetter(setting)(config), config.work)
        if not path.is_file():
            raise ConfigError(f"{name} is read from {path}, which is not a file; correct its path")
        return path, sha256_file(path)

    return Input(name, opened, when or attrgetter(setting))


def weights(name: str, setting: str) -> Input:
    """Read the folder of weights, or the name of a hub, that a setting has, and its other files."""

    def opened(config: "Config", _open: "OpenArtifact") -> tuple[Path, str]:
        from medclip_dcl.core.artifact import json_digest
        from medclip_dcl.core.files import sha256_file
        from medclip_dcl.core.settings import resolve_path
        from medclip_dcl.models.public.encoders import files_digest
        from medclip_dcl.models.public.weights import fetch_weights, weights_file

        path = fetch_weights(resolve_path(attrgetter(setting)(config), config.work))
        return path, json_digest([sha256_file(weights_file(path)), files_digest(path)])

    return Input(name, opened, attrgetter(setting))


# --- Inputs of training, each next to the settings that ask for it


def _reads_claims(config: "Config") -> bool:
    objective = config.objective
    is_judge = config.train.best_metric == "validation_report_auc"
    return is_judge or objective.relation != "none"


def _text_weights(config: "Config", open_artifact: "OpenArtifact") -> "tuple[Path, Artifact | str]":
    for setting in ("model.pretrained", "model.text.pretrained"):
        if attrgetter(setting)(config):
            return weights("text_weights", setting).open(config, open_artifact)
    model = open_artifact(artifact_type("language_model"))
    return model.path, model


def _prompts(config: "Config", open_artifact: "OpenArtifact") -> tuple[Any, "Artifact | str"]:
    from medclip_dcl.inference.prompts import read_prompts

    path, digest = file("prompts", "evaluate.prompts").open(config, open_artifact)
    return read_prompts(path), digest


_TRAIN = (
    *map(artifact, ("manifest", "prepared", "sentences", "eta_cache")),
    Input("text_weights", _text_weights, _always),
    Input("prompts", _prompts, _always),
    artifact("claims", _reads_claims),
    weights("image_weights", "model.image.pretrained"),
)

_ETA = (
    artifact("sentences"),
    artifact("likelihoods", lambda config: config.eta.source == "pll"),
    file("table", "eta.table", lambda config: config.eta.source == "table"),
)


# fmt: off
STAGES = {
    "generate_studies": Command(
        DATA, "draw studies with known truth, in MIMIC-CXR's own shape", "data", "studies",
        on_request=True),
    "build_manifest": Command(
        DATA, "raw studies -> one row per usable image", "data", "manifest"),
    "prepare_images": Command(
        DATA, "DICOM or JPEG -> square 8-bit images", "data", "prepared",
        (artifact("manifest"),)),
    "split_sentences": Command(
        DATA, "reports -> sentences", "data", "sentences", (artifact("manifest"),)),
    "read_claims": Command(
        DATA, "sentences -> findings asserted, negated or hedged", "data", "claims",
        (artifact("sentences"), file("claims_table", "claims.table"))),
    "fit_language_model": Command(
        DATA, "the corpus -> a masked language model", "eta", "language_model",
        (artifact("sentences", lambda config: config.language_model.steps > 0),)),
    "score_sentences": Command(
        DATA, "each distinct sentence -> its pseudo-log-likelihood", "eta", "likelihoods",
        (artifact("sentences"), artifact("language_model"))),
    "build_eta_cache": Command(
        DATA, "likelihood -> eta = min(a * p**k, eta_max)", "eta", "eta_cache", _ETA),
    "pretrain_images": Command(
        TRAINING, "images alone -> weights that the image encoder starts from", "fitting",
        "image_weights", on_request=True),
    "train": Command(
        TRAINING, "images, sentences, eta -> a model; one process or many", "train", "model",
        _TRAIN),
    "calibrate_scores": Command(
        TRAINING, "scores -> probabilities, by the validation images", "fitting"),
    "fit_head": Command(
        TRAINING, "labels of your own -> classifiers that the model answers by", "fitting",
        on_request=True),
    "evaluate": Command(
        EVALUATION, "zero-shot findings, grounding, retrieval", "evaluate", "results"),
    "write_cards": Command(
        SERVING, "the cards without which no model is published", "pages", on_request=True),
    "build_index": Command(
        SERVING, "vectors of all images and sentences, bound to the model", "build_index", "index",
        tuple(map(artifact, ("model", "manifest", "prepared", "sentences", "claims")))),
    "write_report": Command(EVALUATION, "one page to look at", "pages"),
}
# fmt: on
"""The jobs in order: what each does, makes and reads."""
DATA_ARTIFACTS = tuple(
    stage.makes for stage in STAGES.values() if stage.makes and stage.heading == DATA
)
"""Artifacts of the stages before those that train."""
OWN_WEIGHTS = "${WORK}/image_weights"
"""`model.image.pretrained` of a run that has `pretrain_images` as a stage."""
TOOLS = {
    "plan": Command(TRAINING, "what a config will take: device, memory, hours, disk", "plan"),
    "check_data": Command(DATA, "what a source holds, its faults and its leaks", "check_data"),
    "sweep": Command(TRAINING, "a grid of settings over several seeds, such as Table 1", "sweep"),
    "compare": Command(EVALUATION, "which of two configs is better, in which figure", "results"),
    "adopt": Command(
        SERVING, "a model of a public checkpoint: CLIP, SigLIP, open_clip, BioViL", "publish"
    ),
    "export": Command(SERVING, "a model as transformers or ONNX Runtime loads it", "publish"),
    "push_model": Command(
        SERVING, "publish a model on a hub, without patients' data or texts", "publish"
    ),
}
"""Commands that answer a question; no config runs them by itself."""
PROGRAMS = {
    "init": Command(START, "a config for your own table: columns are guessed", "init"),
    "run": Command(
        START, "every stage of a config, such as `demo`; what is valid is reused", "run"
    ),
    "show": Command(START, "the figures of a run, and its report", "results"),
    "serve": Command(
        START, "the service and its viewer, on a run's model; else the demo's", "__main__"
    ),
    "ask": Command(SERVING, "ask a running service: classify, ground, embed, retrieve", "ask"),
}
"""Commands over whole runs and services."""
LISTED = PROGRAMS | STAGES | TOOLS
"""Every command by its name."""


def function_of(name: str) -> Callable[..., Any]:
    """Import the function of a command, with the module that has it."""
    module = importlib.import_module(f".{LISTED[name].module}", __package__)
    function: Callable[..., Any] = getattr(module, name)
    return function


REPORT = "report.html"
"""The page that `write_report` writes into the work folder."""


def stages_of(config: "Config") -> tuple[str, ...]:
    """Return the stages that a config runs, in order: those that `jobs` names, else all but a few.

    A config that evaluates the model of another run has that evaluation alone. One whose
    `model.image.pretrained` is `OWN_WEIGHTS` has `pretrain_images` too. ConfigError where a name in
    `jobs` is not a stage.
    """
    unknown = set(config.jobs) - set(STAGES)
    if unknown:
        raise ConfigError(
            f"jobs names {sorted(unknown)}, which are not jobs; use those of {tuple(STAGES)}"
        )
    if config.jobs:
        return tuple(name for name in STAGES if name in config.jobs)
    if config.evaluate.model:
        return ("evaluate", "write_report")
    own = {"pretrain_images"} if config.model.image.pretrained == OWN_WEIGHTS else set()
    return tuple(name for name, stage in STAGES.items() if name in own or not stage.on_request)
