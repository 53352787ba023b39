"""Real images before a published model: a label that needs no skill, and where the lungs lie.

    make demo && TEST_DATA=... python -m benchmarks.real_images [--quick] [--model FOLDER]

Children's images (`peds_cxr`), pneumonia against normal: the model's prompts, a linear probe
of its vectors, the same with shuffled labels, with random weights, and two logistic
regressions that see no model: 32 x 32 grey levels, and the file's width and height. Whoever
reads a high AUC of this set as skill has to explain the last two first.

Boxes of lungs (`covid_cxr`): a perfect map of each box, on the grid of the model at hand and
on that of the paper's sizes, in either geometry, brought back to the image and compared with
the box; then what a covered lung changes in the encoder's grid, and where the model points for
"left lung" and "right lung". Two controls: with the names exchanged, and on mirrored images,
where a model that knows the lungs has to fail, and one that knows the places alone does not.
The demo's model has seen generated images alone, so no bar asks it for skill.
`--quick`: fewer samples.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.method.real_images import labels, lungs
from benchmarks.method.real_images.lungs import Figures, LungImage, Shape
from benchmarks.record import Bars, finish, judge
from medclip_dcl import model_package
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.errors import MedclipError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure
from medclip_dcl.evaluation.evaluated_model import (
    EncodedImages,
    EvaluatedModel,
    Geometry,
    evaluated_model,
)
from medclip_dcl.evaluation.probe import image_features
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.settings import resolve_path
from pipelines.config import Config, load_config

DEMO, LUNGS = Path("configs/demo.yaml"), Path("configs/covid_cxr.yaml")
GEOMETRIES: tuple[Geometry, ...] = ("whole", "biovil")
PAPER = Shape(512, 480, 15)
SEED = 0
SHUFFLED = (0.45, 0.55)
PERFECT_BARS = {"pointed": "= 1", "left_is_right": "= 1", "mirrored": "= 0", "off_most": "< 0.5"}


class Effort(NamedTuple):
    """Bootstrap samples, and deals of shuffled labels."""

    samples: int
    shuffles: int


FULL, QUICK = Effort(1000, 20), Effort(200, 2)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where there are no data or no model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_images")
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--model", type=Path, help="a published model; the demo's if not given")
    arguments = parser.parse_args(argv)
    folder = os.environ.get("TEST_DATA", "")
    if not folder:
        print("TEST_DATA is not set; export the folder that holds peds_cxr/", file=sys.stderr)
        return 1
    demo = load_config(DEMO)
    model = arguments.model or model_package.ARTIFACT.at(resolve_path(demo.work, demo.work))
    if not model.is_dir():
        print(f"no model at {model}; run `make demo`, or name one", file=sys.stderr)
        return 1
    effort = QUICK if arguments.quick else FULL
    torch.set_num_threads(1)
    try:
        figures = judge_label(Path(folder) / "peds_cxr", model, effort)
        figures |= judge_lungs(load_config(LUNGS), load(model), effort)
    except MedclipError as error:
        print(error, file=sys.stderr)
        return 1
    return finish("real_images", figures, bars_of(figures))


def judge_label(folder: Path, model: Path, effort: Effort) -> Figures:
    """Ask for pneumonia on children's images, with the model and without: AUCs with intervals."""
    predictor, bootstrap = load(model), BootstrapOptions(effort.samples, SEED)
    found = labels.read_labelled_images(folder, predictor.config.images)
    evaluated = evaluated_model(predictor)
    images = _encoded(evaluated, found)
    folds = labels.split_patients(found.labels, found.subject_ids, np.random.default_rng(SEED))
    finding = labels.finding_of(predictor.findings, "Pneumonia")
    untrained = load(model)
    untrained.model.initialise(torch.Generator().manual_seed(SEED))
    features = image_features(images)
    sides = np.log(np.array(found.sizes_px, dtype=np.float64))
    probed = {
        "probe": features,
        "random_probe": image_features(_encoded(evaluated_model(untrained), found)),
        "pixels": found.thumbnails,
        "shape": sides,
    }
    aucs = {
        "zero_shot": labels.zero_shot_auc(evaluated, images, finding, found.labels, bootstrap),
        **{
            name: labels.probed_auc(vectors, found.labels, folds, found.subject_ids, bootstrap)
            for name, vectors in probed.items()
        },
    }
    shuffled = labels.shuffled_aucs(features, found.labels, folds, effort.shuffles, SEED)
    low, high = np.quantile(shuffled, [0.025, 0.975]).tolist()
    aucs["shuffled_probe"] = Figure(float(shuffled.mean()), len(images.image_ids), 0, low, high)
    return _flat(aucs, "auc")


def judge_lungs(config: Config, predictor: Predictor, effort: Effort) -> Figures:
    """Bring boxes of lungs to the grid and back; see where the model points.

    Gives shares of boxes, overlaps and distances.
    """
    images = lungs.read_lung_images(config)
    model, settings = evaluated_model(predictor), predictor.config
    encoded = {
        geometry: lungs.encode_images(model, images, geometry, settings.images)
        for geometry in GEOMETRIES
    }
    cells = encoded["whole"].regions.shape[1]
    own = Shape(settings.images.size_px, settings.model.image.input_px, cells)
    metrics: Figures = {"lung_images": len(images)}
    for name, shape in (("model", own), ("paper", PAPER)):
        for geometry in GEOMETRIES:
            found = lungs.perfect_figures(images, geometry, shape)
            metrics |= {f"{name}_{geometry}_{key}": value for key, value in found.items()}
    located = lungs.located_figures(images, own)
    metrics |= {f"located_{key}": value for key, value in located.items()}
    for geometry in GEOMETRIES:
        metrics |= _judge_model(model, encoded[geometry], images, settings.images, effort)
    return metrics


def bars_of(metrics: Figures) -> Bars:
    """Say which bars are met; none asks the model for skill."""
    low, high = SHUFFLED
    bars = {"auc_pixels": ">= 0.95"} | {
        f"{name}_{geometry}_{key}": bar
        for name in ("model", "paper")
        for geometry in GEOMETRIES
        for key, bar in PERFECT_BARS.items()
    }
    shuffled = (f"{low} to {high}", low <= metrics["auc_shuffled_probe"] <= high)
    return {"auc_shuffled_probe": shuffled} | judge(metrics, bars)


def _judge_model(
    model: EvaluatedModel,
    encoded: EncodedImages,
    images: Sequence[LungImage],
    settings: ImagesConfig,
    effort: Effort,
) -> Figures:
    """See what a covered lung changes, and where the model points for the lungs' names."""
    geometry, bootstrap = encoded.geometry, BootstrapOptions(effort.samples, SEED)
    covered = lungs.evaluate_covered(model, encoded, images, settings, bootstrap)
    figures = _flat(covered, f"covered_{geometry}")
    turned = lungs.encode_images(model, lungs.turn(images), geometry, settings)
    for kind in ("named", "exchanged", "turned"):
        asked, chance = lungs.evaluate_names(
            model,
            turned if kind == "turned" else encoded,
            images,
            bootstrap,
            exchanged=kind == "exchanged",
        )
        found = {name: asked[name] for name in ("side", "pointing", "cnr_signed", "miou")}
        figures |= _flat(found, f"{kind}_{geometry}") | {f"{kind}_{geometry}_chance": chance}
    return figures


def _encoded(model: EvaluatedModel, found: labels.LabelledImages, batch: int = 60) -> EncodedImages:
    parts = [
        model.embed_images(found.pixels[start : start + batch])
        for start in range(0, len(found.pixels), batch)
    ]
    return EncodedImages(found.image_ids, found.subject_ids, found.sizes_px, torch.cat(parts))


def _flat(figures: Mapping[str, Figure], name: str) -> Figures:
    """Give value and interval of each figure under flat names; what is undefined is left out."""
    found = {}
    for key, figure in figures.items():
        for end, value in (("", figure.value), ("_low", figure.low), ("_high", figure.high)):
            if value is not None:
                found[f"{name}_{key}{end}"] = value
    return found


if __name__ == "__main__":
    sys.exit(main())
