"""Does a published model, or an index with its key, reveal whose studies are in it?

    python -m benchmarks.membership [--quick] [--work FOLDER]

Patients of generated studies are dealt at random into three parts of one size: members, held out,
and a reference. The demo's recipe trains one model on the members' studies, for as many epochs as
the demo, and another on the reference's. The last study of a patient who has several is seen by
no model and no index. Fixed before the first run: parts, recipe, scores, figures, seed.

    loss             who has the model, and a patient's own training image and report: mean
                     log-softmax of its sentences among all sentences of members and held out
    similarity       the same, mean similarity of the image with its own sentences
    calibrated       the loss less that of the reference model, which knows neither part
    other_study      `calibrated`, of the study that nobody trained on
    index            who has a key, and that study's image: similarity of the nearest image in an
                     index of the members' training studies
    index_own_image  the same with the indexed image itself: what an index is made to find
    null             the reference model's loss alone, which must not tell members apart

Figures are the area under the ROC curve of members against held out, a score a patient, and the
true positive rate at 1 % false positives, with 95 % intervals over patients. Bodies of generated
patients stay the same from study to study.
"""

import argparse
import csv
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from pyarrow.csv import read_csv

from benchmarks.method.demo import CONFIG
from benchmarks.record import finish, judge
from medclip_dcl import model_package
from medclip_dcl.artifact import open_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Samples, Weights, estimate
from medclip_dcl.evaluation.metrics import roc_auc
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval import embeddings
from medclip_dcl.retrieval.search import Query, RetrievalIndex
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from testing.processes import options

EPOCHS = 28  # as in the demo
SEED = 0
PARTS = ("members", "held_out", "reference")
_STAGES = ("build_manifest", "prepare_images", "split_sentences", "read_claims")
_STAGES += ("fit_language_model", "score_sentences", "build_eta_cache", "train")
_COLUMNS = ("study_id", "subject_id", "path", "report", "view", "split")
_BACK = "-back"  # what ends the id of a patient whose last study nobody trains on
Row = dict[str, str]


def run(work: Path, *stages: str, settings: Iterable[str]) -> None:
    """Run stages of the demo's recipe in `work`."""
    words = (f"work={work}", f"generate.root={work.parent / 'studies'}", *settings)
    given = ["--config", str(CONFIG), *options(words)]
    for stage in stages:
        subprocess.run(
            [sys.executable, "-m", "pipelines", stage, *given], check=True, stdout=sys.stderr
        )


def read_studies(root: Path) -> list[Row]:
    """List a generated tree's studies, the first frontal image of each, and deal the patients."""
    table = read_csv(root / "mimic-cxr-2.0.0-metadata.csv.gz").to_pylist()
    of_patient: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in table:
        if row["ViewPosition"] in {"AP", "PA"}:
            of_patient[str(row["subject_id"])].setdefault(str(row["study_id"]), row)
    dealt = np.random.default_rng(SEED).permutation(len(of_patient)) % len(PARTS)
    rows = []
    for patient, part in zip(sorted(of_patient), dealt, strict=True):
        studies = of_patient[patient]
        for study, image in sorted(studies.items()):
            folder = f"files/p{patient[:2]}/p{patient}/s{study}"
            row = {"study_id": study, "part": PARTS[part], "view": image["ViewPosition"]}
            row["subject_id"] = patient + _BACK * (len(studies) > 1 and study == max(studies))
            row["path"] = f"{root.name}/{folder}/{image['dicom_id']}.dcm"
            row["report"] = (root / f"{folder}.txt").read_text(encoding="utf-8")
            rows.append(row)
    return rows


def train(base: Path, rows: Sequence[Row], part: str, *, quick: bool) -> Path:
    """Train a model on a part, all else being its `test` split; gives the work folder."""
    work, table = base / part, base / f"{part}.csv"
    taken = [row["part"] == part and _BACK not in row["subject_id"] for row in rows]
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, _COLUMNS, extrasaction="ignore")
        writer.writeheader()
        for row, is_taken in zip(rows, taken, strict=True):
            writer.writerow(row | {"split": "train" if is_taken else "test"})
    batch = 16 if quick else 64
    steps = 10 if quick else EPOCHS * sum(taken) // batch
    columns = "{" + ", ".join(f'"{name}": "{name}"' for name in _COLUMNS) + "}"
    settings = (f"source.root={base}", "source.kind=table", f"source.table={table.name}")
    settings += ("source.boxes=", f"source.columns={columns}", 'index.splits=["train"]')
    settings += (f"train.steps={steps}", f"train.warmup_steps={max(1, steps * 60 // 750)}")
    settings += (f"train.global_batch={batch}", "train.torch_threads=1")
    run(work, *_STAGES, *(["build_index"] if part == "members" else []), settings=settings)
    return work


@torch.inference_mode()
def look(
    work: Path, studies: Sequence[str], model: Predictor
) -> dict[str, tuple[torch.Tensor, float, float]]:
    """Give each study's region vectors, and log-softmax and similarity of its own sentences."""
    images = PreparedImages(open_artifact(prepared.ARTIFACT.at(work), prepared.ARTIFACT))
    listed = read_table(manifest.ARTIFACT.at(work), manifest.IMAGES).to_pylist()
    row_of = {row["study_id"]: images.row_of.get(row["image_id"]) for row in listed}
    own: dict[str, set[str]] = defaultdict(set)
    for row in read_table(sentences.ARTIFACT.at(work), sentences.SENTENCES).to_pylist():
        own[row["study_id"]].add(row["text"])
    texts = sorted(set().union(*(own[name] for name in studies)))
    vectors, similarity = model.embed_sentences(texts), model.config.model.similarity
    found = {}
    for name in studies:
        row = row_of.get(name)
        if row is None or not own[name]:
            continue
        (regions,) = model.embed_images(images.pixels(row)[None].copy())
        scores = image_sentence_scores(regions.flatten(0, 1)[None], vectors, similarity)[:, 0]
        shares = (similarity.gamma_squared * scores).log_softmax(dim=0)
        mine = torch.tensor([text in own[name] for text in texts])
        found[name] = (regions, float(shares[mine].mean()), float(scores[mine].mean()))
    return found


def attack(scores: Mapping[str, float], members: set[str], samples: int) -> dict[str, float]:
    """Measure a score a patient: area under the curve and rate at 1 %, each with its interval."""
    patients = sorted(scores)
    values = np.array([scores[name] for name in patients])
    positive = np.array([name in members for name in patients])
    order = np.argsort(-values, kind="stable")

    def measure(weights: Weights) -> dict[str, Samples]:
        hits = np.cumsum(weights[:, order] * positive[order], axis=1)
        alarms = np.cumsum(weights[:, order] * ~positive[order], axis=1)
        last = (alarms <= 0.01 * alarms[:, -1:]).sum(axis=1) - 1
        caught = np.where(last < 0, 0, hits[np.arange(len(hits)), last]) / hits[:, -1]
        return {"auc": roc_auc(values, positive, weights), "tpr_at_fpr_1": caught}

    shown: dict[str, float] = {"members": positive.sum(), "held_out": (~positive).sum()}
    found = estimate(measure, patients, BootstrapOptions(samples, SEED), "one part is empty")
    for name, figure in found.items():
        low, high = figure.low or 0.0, figure.high or 0.0
        shown |= {name: figure.value or 0.0, f"{name}_low": low, f"{name}_high": high}
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Train, attack, and print a line for every attack; give 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.membership")
    parser.add_argument("--quick", action="store_true", help="plumbing alone: nothing is learned")
    parser.add_argument("--work", type=Path, default=Path("runs/membership"))
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    base = arguments.work.absolute() / ("quick" if quick else "full")
    drawn = ("generate.coverage_images=0", "generate.validate_share=0", "generate.test_share=0")
    patients = f"generate.patients={90 if quick else 1500}"
    run(base / "draw", "generate_studies", settings=(*drawn, patients, f"seed={SEED}"))
    rows = read_studies(base / "studies")
    works = [train(base, rows, part, quick=quick) for part in ("members", "reference")]
    model, reference = (load(model_package.ARTIFACT.at(work)) for work in works)
    asked = [row for row in rows if row["part"] != "reference"]
    names = [row["study_id"] for row in asked]
    target, calibration = (look(works[0], names, one) for one in (model, reference))
    index = RetrievalIndex.open(embeddings.ARTIFACT.at(works[0]), model.digest)
    loss = {name: found[1] for name, found in target.items()}
    null = {name: found[1] for name, found in calibration.items()}
    calibrated = {name: loss[name] - null[name] for name in loss}
    nearest = {
        name: index.search(Query("image", 1, regions=found[0]))[0].score
        for name, found in target.items()
    }
    attacks: dict[str, tuple[dict[str, float], bool]] = {
        "loss": (loss, False),
        "similarity": ({name: found[2] for name, found in target.items()}, False),
        "calibrated": (calibrated, False),
        "other_study": (calibrated, True),
        "index": (nearest, True),
        "index_own_image": (nearest, False),
        "null": (null, False),
    }
    figures: dict[str, float] = {}
    for name, (scores, is_back) in attacks.items():
        of_patient: dict[str, list[float]] = defaultdict(list)
        members = set()
        for row in asked:
            if row["study_id"] in scores and (_BACK in row["subject_id"]) == is_back:
                of_patient[row["subject_id"]].append(scores[row["study_id"]])
                members |= {row["subject_id"]} if row["part"] == "members" else set()
        means = {patient: float(np.mean(found)) for patient, found in of_patient.items()}
        found = attack(means, members, 50 if quick else 1000)
        figures |= {f"{name}_{key}": value for key, value in found.items()}
    holds = figures["null_auc_low"] <= 0.5 <= figures["null_auc_high"]
    judge(figures, {})
    return finish("membership", figures, {"null_auc": ("interval holds 0.5", holds)})


if __name__ == "__main__":
    sys.exit(main())
