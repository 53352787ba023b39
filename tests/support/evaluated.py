"""A work folder that can be evaluated: a tiny corpus with labels and boxes, and a tiny model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support import published
from tests.support.corpus import write_config, write_corpus
from tests.support.jobs import run
from tests.support.published import publish
from tests.support.tiny_models import random_images

PROMPTS = f"format_version: 1\nfindings: {published.PROMPTS}\n"
"""Two findings; no test image has an effusion."""


def write_evaluated(work: Path, subjects: Iterable[str] = ("elsewhere",), **corpus: Any) -> Path:
    """Write a corpus of 40 studies, 8 of them for testing, and a model with offsets.

    The model says that it was trained on `subjects`; `corpus` is for `write_corpus`.
    """
    write_corpus(work, **{"with_truth": True, **corpus})
    publish(work / "model", subjects, bank=random_images(8, 64))
    return work


def run_here(stage: str, work: Path, *settings: str, code: int = 0, **sections: Any) -> Path:
    """Run a stage on a folder of `write_evaluated`; every setting is `key=value`."""
    (work / "prompts.yaml").write_text(PROMPTS)
    tree: dict[str, Any] = {
        "evaluate": {"bootstrap": 20, "prompts": str(work / "prompts.yaml")},
        "probabilities": {"least_per_class": 2},
        "source": {"root": str(work)},
    }
    for name, section in sections.items():
        tree[name] = tree.get(name, {}) | section
    write_config(work.with_name(f"{work.name}.yaml"), work, **tree)
    run(stage, work, *settings, code=code)
    return work
