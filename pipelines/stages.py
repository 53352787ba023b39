"""Every command of `medclip`: the stages of a run in the order of their data, tools, programs.

A new command is a line here and a module of its name, whose `build` is the job of a stage and whose
`command` is any other's function.
"""

from typing import TYPE_CHECKING, NamedTuple

from medclip_dcl.errors import ConfigError

if TYPE_CHECKING:  # a table of contents does not wait for it
    from .config import Config

HEADINGS = START, DATA, TRAINING, EVALUATION, SERVING = (
    "Begin here",
    "Data",
    "Training",
    "Evaluation",
    "Serving",
)
"""Headings of `medclip --help`, in order."""


class Command(NamedTuple):
    """A command's heading in the help, and its line."""

    heading: str
    line: str


STAGES = {
    "generate_studies": Command(DATA, "draw studies with known truth, in MIMIC-CXR's own shape"),
    "build_manifest": Command(DATA, "raw studies -> one row per usable image"),
    "prepare_images": Command(DATA, "DICOM or JPEG -> square 8-bit images"),
    "split_sentences": Command(DATA, "reports -> sentences"),
    "read_claims": Command(DATA, "sentences -> findings asserted, negated or hedged"),
    "fit_language_model": Command(DATA, "the corpus -> a masked language model"),
    "score_sentences": Command(DATA, "each distinct sentence -> its pseudo-log-likelihood"),
    "build_eta_cache": Command(DATA, "likelihood -> eta = min(a * p**k, eta_max)"),
    "pretrain_images": Command(
        TRAINING, "images alone -> weights that the image encoder starts from"
    ),
    "train": Command(TRAINING, "images, sentences, eta -> a model; one process or many"),
    "calibrate_scores": Command(TRAINING, "scores -> probabilities, by the validation images"),
    "fit_head": Command(TRAINING, "labels of your own -> classifiers that the model answers by"),
    "evaluate": Command(EVALUATION, "zero-shot findings, grounding, retrieval"),
    "write_cards": Command(SERVING, "the cards without which no model is published"),
    "build_index": Command(SERVING, "vectors of all images and sentences, bound to the model"),
    "ask_service": Command(SERVING, "the service, started for real, answers three requests"),
    "write_report": Command(EVALUATION, "one page to look at"),
}
"""The jobs in order, with what each does."""
_ON_REQUEST = {
    "generate_studies", "pretrain_images", "fit_head",
    "write_cards", "ask_service",
}  # fmt: skip
OWN_WEIGHTS = "${WORK}/image_weights"
"""`model.image.pretrained` of a run that has `pretrain_images` as a stage."""
TOOLS = {
    "schema": Command(START, "the JSON schema of a config, for editors"),
    "plan": Command(TRAINING, "what a config will take: device, memory, hours, disk"),
    "check_data": Command(DATA, "what a source holds, its faults and its leaks"),
    "sweep": Command(TRAINING, "a grid of settings over several seeds, such as Table 1"),
    "compare": Command(EVALUATION, "which of two configs is better, in which figure"),
    "embed": Command(SERVING, "vectors of a folder's images, or of a table's images or sentences"),
    "export": Command(SERVING, "a model as transformers or ONNX Runtime loads it"),
    "push_model": Command(SERVING, "publish a model on a hub, without patients' data or texts"),
}
"""Commands that answer a question; no config runs them by itself."""
PROGRAMS = {
    "init": Command(START, "a config for your own table: columns are guessed"),
    "demo": Command(START, "every stage on generated studies, in minutes"),
    "run": Command(START, "every stage of a config; what is valid already is reused"),
    "show": Command(START, "the figures of a run, and its report"),
    "serve": Command(START, "the service and its viewer, on a run's model; else the demo's"),
    "ask": Command(SERVING, "ask a running service: classify, ground, embed, retrieve"),
}
"""Commands over whole runs and services."""
SHARES = {
    "generate_studies": 27.0, "prepare_images": 7.0, "fit_language_model": 35.0,
    "score_sentences": 12.0, "train": 110.0, "calibrate_scores": 9.0, "evaluate": 20.0,
    "build_index": 20.0, "ask_service": 12.0, "write_report": 9.0,
}  # fmt: skip
"""Seconds that longer stages of the demo took: how one stage's time tells that of the others."""
REPORT = "report.html"
"""The page that `write_report` writes into the work folder."""


def stages_of(config: "Config") -> tuple[str, ...]:
    """Give the stages that a config runs, in order: those that `jobs` names, else all but a few.

    A config that evaluates the model of another run has that evaluation alone. One whose
    `model.image.pretrained` is `OWN_WEIGHTS` has `pretrain_images` too.

    Raises:
        ConfigError: a name in `jobs` is not a stage.
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
    return tuple(name for name in STAGES if name not in _ON_REQUEST - own)
