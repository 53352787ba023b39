"""Write the model card and the data card, without which a model is not published.

Reads the model, manifest, and whatever else there is; writes `cards`. Refused while the
config does not say what the model is for, what it cannot do, and on which terms it is given:
the model itself stays as it is, and can be tried.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.files import write_text
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.data import manifest
from medclip_dcl.data.ground_truth import truth_files
from medclip_dcl.inference import model_package

from . import cards
from .job import Job, job_main
from .report.cards import KINDS, data_card, data_facts, model_card, model_facts
from .report.sources import find_sources


def build(job: Job) -> None:
    """Write the cards; a ConfigError while intended use, limits or licence are empty."""
    words = job.config.card
    missing = words.missing()
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} empty: a model is not published without saying what it is for, "
            "what it cannot do and on which terms; write that into the config"
        )
    needed = {kind.name: job.open(kind) for kind in (model_package.ARTIFACT, manifest.ARTIFACT)}
    root = job.config.source.root
    is_generated = bool(root) and bool(truth_files(resolve_path(root, job.config.work)))
    sources = find_sources(job.work, job.config.report, is_generated, {}, 0, KINDS)
    inputs = {**sources.artifacts, **needed}

    def write(writer: ArtifactWriter) -> dict[str, Any]:
        model, data = model_facts(sources, words), data_facts(sources, words)
        files = {
            cards.MODEL_CARD: model_card(model),
            cards.DATA_CARD: data_card(data),
            cards.MODEL_FACTS: _json(model),
            cards.DATA_FACTS: _json(data),
        }
        for name, text in files.items():
            write_text(writer.directory / name, text)
        return {"model": model["model"], "evaluated": model["evaluation"] is not None}

    settings = {"card": words, "is_generated": is_generated}
    job.make(cards.CARDS, settings, inputs, write)


def _json(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


main = job_main("write_cards", build)

if __name__ == "__main__":
    sys.exit(main())
