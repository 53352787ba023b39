"""The stages of a run in the order in which data flows through them, and the tools next to them.

A new stage is a line here and a file of its name, whose `build` is the job.
"""

from typing import TYPE_CHECKING

from medclip_dcl.errors import ConfigError

if TYPE_CHECKING:  # a table of contents does not wait for it
    from .config import Config

STAGES = {
    "generate_studies": "draw studies with known truth, in MIMIC-CXR's own shape",
    "build_manifest": "raw studies -> one row per usable image",
    "prepare_images": "DICOM or JPEG -> square 8-bit images",
    "split_sentences": "reports -> sentences",
    "read_claims": "sentences -> findings asserted, negated or hedged",
    "fit_language_model": "the corpus -> a masked language model",
    "score_sentences": "each distinct sentence -> its pseudo-log-likelihood",
    "build_eta_cache": "likelihood -> eta = min(a * p**k, eta_max)",
    "export_dataset": "prepared studies -> Parquet that `datasets` loads, on this machine",
    "pretrain_images": "images alone -> weights that the image encoder starts from",
    "train": "images, sentences, eta -> a model; one process or many",
    "calibrate_scores": "scores -> probabilities, by the validation images",
    "evaluate": "zero-shot findings, grounding, retrieval",
    "write_cards": "the cards without which no model is published",
    "build_index": "vectors of all images and sentences, bound to the model",
    "answer_images": "the model's answers on every image: a table, and DICOM objects if asked",
    "ask_service": "the service, started for real, answers three requests",
    "write_report": "one page to look at",
}
"""The jobs in order, with what each does."""
_ON_REQUEST = {
    "generate_studies",
    "pretrain_images",
    "answer_images",
    "export_dataset",
    "write_cards",
    "ask_service",
}
TOOLS = {
    "doctor": "whether this machine can run a config",
    "plan": "what a config will take: memory, hours, disk",
    "bound": "how far the debiased loss can be from that of known labels",
    "check_data": "what a source holds, its faults and its leaks",
    "sweep": "a grid of settings over several seeds, with a figure per axis",
    "table1": "every row of the paper's Table 1 over several seeds, rivals tuned",
    "compare": "which of two configs is better, in which figure",
    "embed": "vectors of a folder's images, or of a table's images or sentences",
    "export": "a model as transformers or ONNX Runtime loads it",
    "push_model": "a model on a model hub, without patients or texts",
}
"""Commands that answer a question; no config runs them by itself."""
REPORT = "report.html"
"""The page that `write_report` writes into the work folder."""


def stages_of(config: "Config") -> tuple[str, ...]:
    """Give the stages that a config runs, in order: those that `jobs` names, else all but a few.

    A config that evaluates the model of another run has that evaluation alone.

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
    return tuple(name for name in STAGES if name not in _ON_REQUEST)
