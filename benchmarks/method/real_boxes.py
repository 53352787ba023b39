"""Are heatmaps of a model of Open-i in the boxes of real images from elsewhere?

    TEST_DATA=FOLDER python -m benchmarks.real_boxes NAME=MODEL ... [--work FOLDER]

Each model is evaluated by configs/evaluate/boxes.yaml on three sets, asked by the name of each
box's finding, and once more by a sentence that does not apply. Next to the figures of an
evaluation, with intervals by image and the chance that heatmaps of other images give, a map without
any model is judged: the mean of the boxes of the same finding on the other half of the images. It
knows the usual place alone. NIH's labels are asked of images of 64 pixels.
"""

import argparse
import csv
import json
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.method.real_studies.runs import rounded
from benchmarks.record import finish, judge
from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.grounding import box_mask, is_pointed_at, signed_cnr
from medclip_dcl.inference.input_range import is_out_of_range
from medclip_dcl.inference.model_package import read_input_range
from medclip_dcl.inference.predictor import published_folder
from medclip_dcl.inference.prompts import read_prompts
from pipelines.job import main_of

SETS = {
    "tbx11k": ("active tuberculosis", "obsolete pulmonary tuberculosis"),
    "covid_lesions": ("ground glass opacity", "consolidation"),
    "nih_mass50": ("mass", "nodule"),
}
"""Folder -> findings whose boxes count; those of anatomy and devices do not."""
UNRELATED = "There is a pneumothorax."
_LABELLED = (
    "source.columns.labels=finding_labels",
    "source.columns.subject_id=patient_id",
    "source.boxes=",
    "evaluate.prompts=configs/prompts/nih_chestxray14.yaml",
    "evaluate.retrieval_pool=0",
)
_MAP_PX = 128  # side of the maps of boxes, which know no more
_DRAWS = 2000
_CONFIGS = Path(__file__).parents[2] / "configs"

Boxes = dict[tuple[str, str], np.ndarray]


def lay_out(root: Path, folder: Path, findings: Sequence[str]) -> Boxes:
    """Make a source of these findings' boxes alone; the boxes of each finding and image, united."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(root / "images", folder / "images", dirs_exist_ok=True)
    shutil.copyfile(root / "labels.csv", folder / "labels.csv")
    with (root / "boxes.csv").open(encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = [row for row in reader if row["finding"] in findings]
    with (folder / "boxes.csv").open("w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, reader.fieldnames or ())
        writer.writeheader()
        writer.writerows(rows)
    boxes = defaultdict(list)
    for row in rows:
        ends = [float(row[name]) for name in ("x", "y", "width", "height")]
        sizes = [float(row[f"image_{name}"]) for name in ("width", "height")] * 2
        boxes[row["finding"], row["image"]].append(
            [_MAP_PX * end / size for end, size in zip(ends, sizes, strict=True)]
        )
    return {key: box_mask(np.array(each), _MAP_PX, _MAP_PX) for key, each in boxes.items()}


def mean_boxes(masks: Boxes) -> dict[tuple[str, str], tuple[float | None, bool | None]]:
    """Judge the mean of the boxes on the other half of the images: signed CNR, and pointing."""
    images = sorted({image for _, image in masks})
    half = {image: index % 2 for index, image in enumerate(images)}
    judged = {}
    for (finding, image), mask in masks.items():
        others = [
            each for (name, other), each in masks.items()
            if name == finding and half[other] != half[image]
        ]  # fmt: skip
        mean = np.mean(others, axis=0, dtype=np.float32)
        judged[finding, image] = signed_cnr(mean, mask), _points(mean, mask)
    return judged


def _points(mean: np.ndarray, mask: np.ndarray) -> bool | None:
    # A mean of few boxes has many highest pixels; the middle one of them is pointed at.
    rows, columns = np.nonzero(mean == mean.max())
    middle = np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2)
    pointed = np.zeros_like(mean)
    pointed[rows[middle], columns[middle]] = 1
    return is_pointed_at(pointed, mask)


def evaluate(model: str, root: Path, work: Path, *settings: str) -> Path:
    """Evaluate a model on a source by the recipe; the folder of its results."""
    os.environ |= {"BOXES": str(root), "MODEL": model}
    given = [f"work={work}", *settings]
    code = main_of("evaluate")(
        ["--config", str(_CONFIGS / "evaluate" / "boxes.yaml"), "--replace",
         *(part for each in given for part in ("--set", each))]
    )  # fmt: skip
    if code:
        raise SystemExit(code)
    return results.ARTIFACT.at(work)


def read_questions(made: Path) -> dict[str, Any]:
    """Read the figures of an evaluation, question by question."""
    return results.read_figures(open_artifact(made, results.ARTIFACT))["questions"]


def outside(model: str, work: Path) -> float:
    """Share of the images of an evaluation that a model takes for none of its kind."""
    images = PreparedImages(open_artifact(prepared.ARTIFACT.at(work), prepared.ARTIFACT))
    known = read_input_range(published_folder(Path(model)))
    assert known is not None
    pixels = (images.pixels(row) for row in images.row_of.values())
    return float(np.mean([is_out_of_range(each, known) for each in pixels]))


def interval(values: Mapping[str, list[float]]) -> list[float]:
    """Average values; the mean, and its 95 % interval by a bootstrap of their images."""
    sums = np.array([[sum(each), len(each)] for each in values.values()])
    rng = np.random.default_rng(0)
    drawn = sums[rng.integers(0, len(sums), (_DRAWS, len(sums)))].sum(axis=1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
    return [float(x) for x in (sums[:, 0].sum() / sums[:, 1].sum(), low, high)]


def judge_set(models: Mapping[str, str], root: Path, work: Path, name: str) -> dict[str, Any]:
    """Judge every model, and the mean of the boxes, on a set: figures with intervals by image."""
    source = work / name / "source"
    masks = lay_out(root / name, source, SETS[name])
    without = mean_boxes(masks)
    rows: dict[str, Any] = {"mean_boxes": _figures(without)}
    for model, folder in models.items():
        for asked, phrase in (("", "finding"), (" unrelated", f"={UNRELATED}")):
            made = evaluate(
                folder, source, work / name / model, f"source.box_columns.phrase={phrase}",
                "evaluate.bootstrap=0", "evaluate.retrieval_pool=0",
            )  # fmt: skip
            chance = read_questions(made)["grounding"]["chance"]
            table = read_table(made, results.GROUNDINGS).to_pylist()
            # by one sentence for all findings the boxes of an image are united
            row = {(each["category"], each["image_id"]): each for each in table}
            pairs = {key: (each["cnr_signed"], each["pointed"]) for key, each in row.items()}
            figures = _figures(pairs) | {
                "miou": _by_image({key: each["miou"] for key, each in row.items()}),
                "chance_cnr": chance["cnr_signed"],
                "chance_pointing": chance["pointing"],
            }
            if not asked:
                figures |= _minus(pairs, without)
                figures["out_of_range"] = outside(folder, work / name / model)
            rows[f"{model}{asked}"] = figures
    return rows


def _figures(judged: Mapping[tuple[str, str], tuple[float | None, bool | None]]) -> dict[str, Any]:
    return {
        "sentences": len(judged),
        "cnr": _by_image({key: pair[0] for key, pair in judged.items()}),
        "pointing": _by_image({key: pair[1] for key, pair in judged.items()}),
    }


def _minus(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[str, Any]:
    gaps: list[dict[Any, float | None]] = [{}, {}]
    for key in one.keys() & other.keys():
        for figure, gap in enumerate(gaps):
            pair = one[key][figure], other[key][figure]
            gap[key] = None if None in pair else float(pair[0]) - float(pair[1])
    return {"cnr_minus_mean": _by_image(gaps[0]), "pointing_minus_mean": _by_image(gaps[1])}


def _by_image(values: Mapping[tuple[str, str], Any]) -> list[float]:
    images: dict[str, list[float]] = defaultdict(list)
    for (_, image), value in sorted(values.items()):
        if value is not None:
            images[image].append(float(value))
    return interval(images)


def ask_labels(models: Mapping[str, str], root: Path, work: Path) -> dict[str, Any]:
    """Ask every model for NIH's labels, zero-shot: AUC of each finding and their mean."""
    prompts = _CONFIGS / "prompts" / "nih_chestxray14.yaml"
    names = [finding.label for finding in read_prompts(prompts)]
    asked = (*_LABELLED, f"source.findings={json.dumps(names)}")
    figures = {}
    for model, folder in models.items():
        made = evaluate(folder, root / "nih64", work / "nih64" / model, *asked)
        zero_shot = read_questions(made)["zero_shot"]
        groups = {name: each["auc"] for name, each in zero_shot["groups"].items()}
        figures[model] = {"mean_auc": zero_shot["figures"]["mean_auc"], **groups}
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Judge models and print the benchmark's line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_boxes")
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--work", type=Path, default=Path("runs/real_boxes"))
    options = parser.parse_args(argv)
    root, work = Path(os.environ["TEST_DATA"]).resolve(), options.work.resolve()
    models = dict(each.split("=", 1) for each in options.models)
    kept = {name: judge_set(models, root / "boxes", work, name) for name in SETS}
    labels = ask_labels(models, root, work)
    figures = {
        f"{name}.{model}.{figure}": row[figure][0]
        for name, rows in kept.items()
        for model, row in rows.items()
        for figure in ("cnr", "pointing")
    }
    bars = judge(figures, {})
    return finish("real_boxes", figures, bars, kept=rounded({**kept, "nih64": labels}))


if __name__ == "__main__":
    sys.exit(main())
