"""What a reader is given of a run: one page to look at, the model card and the data card."""

import json
from pathlib import Path
from typing import Any

from medclip_dcl.core.artifact import Artifact, ArtifactType, open_artifact
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.errors import ArtifactMissing, ArtifactStale, ConfigError
from medclip_dcl.core.files import write_text
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.data import manifest
from medclip_dcl.data.records import truth_digests
from medclip_dcl.inference import model_package

from .job import Job
from .report.cards import KINDS, data_card, data_facts, model_card, model_facts
from .report.page import render_report
from .report.sources import find_sources
from .stages import REPORT

CARDS = ArtifactType("cards", 2, "write_cards")

MODEL_CARD, MODEL_FACTS = "model_card.md", "model_card.json"
DATA_CARD, DATA_FACTS = "data_card.md", "data_card.json"


def write_report(job: Job) -> None:
    """Write one self-contained HTML page about a run.

    Reads every artifact that exists; writes `report.html` in the run's folder, each time.
    Sections appear where their artifact does. ArtifactMissing where there is nothing to report yet.
    """
    negatives = job.config.train.global_batch - 1
    sources = find_sources(job.work, job.config.report, _is_generated(job), negatives)
    if not sources.artifacts:
        raise ArtifactMissing(f"no artifact in {job.work}; run build_manifest first")
    page, path = render_report(sources), job.work / REPORT
    write_text(path, page)
    job.say(
        artifact="report",
        state="made",
        report=str(path),
        artifacts=len(sources.artifacts),
        megabytes=round(len(page.encode()) / 1e6, 2),
    )


def _is_generated(job: Job) -> bool:
    root = job.config.source.root
    return bool(root) and bool(truth_digests(resolve_path(root, job.config.work)))


def write_cards(job: Job) -> None:
    """Write the model card and the data card, without which a model is not published.

    Reads the model, manifest, and whatever else there is; writes `cards`. Refused while the
    config does not say what the model is for, what it cannot do, and on which terms it is given:
    the model itself stays as it is, and can be tried.

    model_card.md, model_card.json: intended use, limits, licence; how the model was made; what it
    reached. data_card.md, data_card.json: images, reports, labels and what was left out, split by
    split. ConfigError where intended use, limits or licence are empty.
    """
    words = job.config.card
    if missing := words.missing():
        raise ConfigError(
            f"{', '.join(missing)} empty: a model is not published without saying what it is for, "
            "what it cannot do and on which terms; write that into the config"
        )
    needed = {kind.name: job.open(kind) for kind in (model_package.ARTIFACT, manifest.ARTIFACT)}
    is_generated = _is_generated(job)
    sources = find_sources(job.work, job.config.report, is_generated, 0, KINDS)

    def write(writer: ArtifactWriter) -> dict[str, Any]:
        model, data = model_facts(sources, words), data_facts(sources, words)
        files = {
            MODEL_CARD: model_card(model),
            DATA_CARD: data_card(data),
            MODEL_FACTS: json_text(model),
            DATA_FACTS: json_text(data),
        }
        for name, text in files.items():
            write_text(writer.directory / name, text)
        return {"model": model["model"], "evaluated": model["evaluation"] is not None}

    settings = {"card": words, "is_generated": is_generated}
    job.make(CARDS, settings, {**sources.artifacts, **needed}, write)


def json_text(tree: Any) -> str:
    """Write plain values as a file has them."""
    return json.dumps(tree, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


def cards_of(work: Path, model: Artifact) -> Artifact:
    """Open the cards in `work`: without those of `model`, an ArtifactError, it is not published."""
    try:
        cards = open_artifact(CARDS.at(work), CARDS)
    except ArtifactMissing as error:
        raise ArtifactMissing(
            f"model {model.digest[:12]} has no card, and is not published without intended use, "
            "limits and licence; fill the config's card section and run write_cards"
        ) from error
    described = cards.fingerprint["inputs"]["model"]
    if described != model.digest:
        raise ArtifactStale(
            f"the cards describe model {described[:12]}, not {model.digest[:12]}; rerun write_cards"
        )
    return cards
