"""What an engine and a precision change in the answers of a trained model.

    python -m benchmarks.precision [--config configs/demo.yaml]

Of a finished run: the headline figures of its evaluation, the decisions on its test images that
differ from PyTorch's in float32, and how many of the ten best images of each test sentence are the
same ones. Every engine that is installed is asked, in each precision that it has on this device.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.record import finish, judge
from medclip_dcl import model_package
from medclip_dcl.artifact import open_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import ConfigError, MedclipError
from medclip_dcl.evaluation.evaluated_model import evaluated_model
from medclip_dcl.evaluation.questions import Evaluation, read_image_rows
from medclip_dcl.evaluation.results import headline_values
from medclip_dcl.inference.predictor import load
from medclip_dcl.models.settings import EngineName, Precision
from medclip_dcl.settings import resolve_path
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from pipelines.config import Config, load_config

WAYS: tuple[tuple[EngineName, Precision], ...] = (
    ("torch", "float32"),
    ("openvino", "float32"),
    ("torch", "bfloat16"),
    ("openvino", "bfloat16"),
    ("torch", "float16"),
)
"""Engines and precisions; the first is what the others are compared with."""

_BEST = 10
_BATCH = 64


@dataclass(frozen=True)
class Answers:
    """What a model answered in one engine and precision."""

    headlines: dict[str, float]
    present: list[bool]
    """Decisions, image by image and finding by finding."""
    best: Tensor
    """(sentences, 10), the images that fit each sentence best."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; the error's exit code where the run is not finished."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision")
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    arguments = parser.parse_args(argv)
    figures: dict[str, float] = {}
    try:
        config = load_config(arguments.config, ["evaluate.bootstrap=0"])
        plain = answers_of(config, *WAYS[0])
        figures |= {f"torch_float32 {name}": value for name, value in plain.headlines.items()}
        for engine, precision in WAYS[1:]:
            try:
                found = answers_of(config, engine, precision)
            except ConfigError as error:
                print(f"{engine} {precision}: {error}", file=sys.stderr)
                continue
            named = {f"{engine}_{precision} {name}": x for name, x in differences(found, plain)}
            figures |= named
    except MedclipError as error:
        print(f"benchmarks.precision: {error}", file=sys.stderr)
        return error.exit_code
    return finish("precision", figures, judge(figures, {}))


def differences(found: Answers, plain: Answers) -> list[tuple[str, float]]:
    """Give the headlines, the share of decisions that differ and that of best images kept."""
    changed = [here != there for here, there in zip(found.present, plain.present, strict=True)]
    pairs = zip(found.best.tolist(), plain.best.tolist(), strict=True)
    kept = [len(set(here) & set(there)) for here, there in pairs]
    return [
        *found.headlines.items(),
        ("decisions changed", sum(changed)),
        ("decisions", len(changed)),
        ("recall of the ten best", sum(kept) / plain.best.numel()),
    ]


def answers_of(config: Config, engine: EngineName, precision: Precision) -> Answers:
    """Evaluate the model of a finished run, and ask it about every test image and sentence.

    Raises:
        ConfigError: the engine is not installed, has not that precision, or was refused.
        ArtifactError: the run is not finished.
    """
    work = resolve_path(config.work, config.work)
    source, texts = (
        open_artifact(kind.at(work), kind, verify=False)
        for kind in (manifest.ARTIFACT, sentences.ARTIFACT)
    )
    images = PreparedImages(open_artifact(prepared.ARTIFACT.at(work), prepared.ARTIFACT))
    predictor = load(model_package.ARTIFACT.at(work), None, engine, precision)
    if (predictor.engine.name, predictor.engine.precision) != (engine, precision):
        raise ConfigError(f"{engine} in {precision} was refused; the log says why")
    rows = read_image_rows(source, images, "test")
    tree = Evaluation(config, evaluated_model(predictor), source, images, texts).put_questions(rows)
    numbers = [images.row_of[row["image_id"]] for row in rows]
    regions = torch.cat(
        [
            predictor.embed_images(np.stack([images.pixels(row) for row in part]))
            for part in (numbers[i : i + _BATCH] for i in range(0, len(numbers), _BATCH))
        ]
    )
    tested = {row["study_id"] for row in rows}
    said = read_table(texts.path, sentences.SENTENCES).to_pylist()
    asked = sorted({row["text"] for row in said if row["study_id"] in tested})
    scores = predictor.model.score(regions, predictor.embed_sentences(asked))
    answers = predictor.classify_regions(regions)
    return Answers(
        {name: value for name, value in headline_values(tree).items() if value is not None},
        [item.is_present for found in answers for item in found],
        scores.topk(min(_BEST, len(rows)), dim=1).indices,
    )


if __name__ == "__main__":
    sys.exit(main())
