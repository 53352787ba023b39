"""Generated studies from pixels with a BERT: the product's own jobs, one corpus a seed.

The preparation of a seed is shared by all its rows: studies are generated, prepared, split
into sentences, read, and scored by a language model that is fitted on them. A row then
builds its eta, trains and is evaluated in a folder of its own that links to the rest. The
row `multipositive shuffled` reads claims whose reports are shuffled over the training
studies; images and sentences stay paired.
"""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from benchmarks.method.rows import Row
from medclip_dcl import model_package
from medclip_dcl.artifact import make_fingerprint, open_artifact, write_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.ground_truth import read_truth
from medclip_dcl.evaluation import results
from medclip_dcl.inference import load
from medclip_dcl.likelihood import masked_lm, scoring
from medclip_dcl.tables import read_table, write_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from pipelines import (
    build_eta_cache,
    build_manifest,
    evaluate,
    fit_language_model,
    generate_studies,
    prepare_images,
    read_claims,
    score_sentences,
    split_sentences,
    train,
)

CONFIG = Path(__file__).with_name("studies.yaml")
STEPS, EARLY_SHARE = 600, 0.5
_PREPARATION = (
    generate_studies,
    build_manifest,
    prepare_images,
    split_sentences,
    read_claims,
    fit_language_model,
    score_sentences,
)
_SHARED = (labels, masked_lm, scoring, manifest, prepared, sentences)


def prepare(work: Path, seed: int, settings: Sequence[str]) -> Path:
    """Make what the rows of a seed share, or go on where a stopped run left off.

    Args:
        work: folder of the bed.
        seed: seed of the corpus.
        settings: further `key=value` settings.

    Returns:
        The folder of the seed.
    """
    folder = work / f"seed-{seed}"
    done = folder / "shared" / "done"
    if not done.exists():
        for job in _PREPARATION:
            _run(job.main, folder / "shared", folder, seed, settings)
        done.touch()
    return folder


def measure(
    row: Row, work: Path, seed: int, steps: int, settings: Sequence[str]
) -> dict[str, float]:
    """Train with one row's loss and evaluate the model.

    Args:
        row: the objective.
        work: folder of the bed.
        seed: seed of corpus and training.
        steps: training steps of a row that does not stop early.
        settings: further `key=value` settings.

    Returns:
        Headline figures of the evaluation; `map`, the mean average precision of plain
        sentences over the held-out images; `r1 by claim`, the share of boxes whose first
        sentence of the gallery claims what the true one does; and `floor`, the last
        logged share of anchors on the floor.
    """
    folder = prepare(work, seed, settings)
    own = folder / row.name.replace(" ", "-").replace(",", "")
    shutil.rmtree(own, ignore_errors=True)  # a killed run's; rows are short
    own.mkdir(parents=True)
    for artifact in _SHARED:
        link = artifact.ARTIFACT.at(own)
        link.symlink_to(os.path.relpath(artifact.ARTIFACT.at(folder / "shared"), own))
    if row.relation == "shuffled":
        labels.ARTIFACT.at(own).unlink()
        _shuffle_claims(folder / "shared", own, seed)
    every = [*settings, *_settings_of(row, folder, steps)]
    for job in (build_eta_cache, train, evaluate):
        _run(job.main, own, folder, seed, every)
    figures = _figures(own) | _by_claim(own) | {"map": _average_precision(own, folder / "studies")}
    shutil.rmtree(own)
    return figures


def _settings_of(row: Row, folder: Path, steps: int) -> list[str]:
    count = round(steps * EARLY_SHARE) if row.early else steps
    relation = "claims" if row.relation == "shuffled" else row.relation
    settings = [
        f"train.steps={count}",
        f"train.warmup_steps={count // 10}",
        f"objective.kind={row.kind}",
        f"objective.floor={row.floor}",
        f"objective.relation={relation}",
        f"objective.negatives={row.negatives}",
        f"objective.directions={row.directions}",
        f"objective.image_anchor={row.image_anchor}",
        f"eta.table={folder / 'studies' / 'truth' / 'eta.csv'}",
    ]
    if isinstance(row.eta, str):
        return [*settings, f"eta.source={row.eta}"]
    return [*settings, "eta.source=constant", f"eta.constant={row.eta}"]


def _run(
    job: Callable[[Sequence[str] | None], int],
    work: Path,
    folder: Path,
    seed: int,
    settings: Sequence[str],
) -> None:
    given = [
        f"work={work}",
        f"seed={seed}",
        f"generate.root={folder / 'studies'}",
        f"source.root={folder / 'studies'}",
        *settings,
    ]
    options = [word for setting in given for word in ("--set", setting)]
    with redirect_stdout(sys.stderr):  # the last line of a benchmark is its own
        code = job(["--config", str(CONFIG), *options])
    if code:
        raise RuntimeError(f"{job.__module__} ended with exit code {code}")


def _shuffle_claims(shared: Path, own: Path, seed: int) -> None:
    """Give every training study the claims of another's report."""
    source = open_artifact(labels.ARTIFACT.at(shared), labels.ARTIFACT)
    rows = read_table(source.path, labels.REPORT_CLAIMS).to_pylist()
    reports = read_table(manifest.ARTIFACT.at(shared), manifest.REPORTS, ["study_id", "split"])
    training = {row["study_id"] for row in reports.to_pylist() if row["split"] == "train"}
    indices = [index for index, row in enumerate(rows) if row["study_id"] in training]
    order = np.random.default_rng(seed).permutation(indices)
    turned = list(rows)
    for index, other in zip(indices, order.tolist(), strict=True):
        turned[index] = {**rows[other], "study_id": rows[index]["study_id"]}
    fingerprint = make_fingerprint(labels.ARTIFACT, {"shuffled": seed}, {"claims": source})
    with write_artifact(labels.ARTIFACT.at(own), labels.ARTIFACT, fingerprint) as writer:
        write_table(writer.directory, labels.REPORT_CLAIMS, turned)
        said = read_table(source.path, labels.SENTENCE_CLAIMS)
        write_table(writer.directory, labels.SENTENCE_CLAIMS, said)
        writer.commit({})


@torch.inference_mode()
def _average_precision(own: Path, root: Path) -> float:
    """Rank the held-out images for the plainest sentence of every fine finding."""
    truth = read_truth(root)
    assert truth is not None, "generated studies know their truth"
    images = prepared.PreparedImages(open_artifact(prepared.ARTIFACT.at(own), prepared.ARTIFACT))
    rows = read_table(manifest.ARTIFACT.at(own), manifest.IMAGES, ["image_id", "split"]).to_pylist()
    image_ids = [row["image_id"] for row in rows if row["split"] == "test"]
    image_ids = [image_id for image_id in image_ids if image_id in images.row_of]
    predictor = load(model_package.ARTIFACT.at(own))
    pixels = np.stack([images.pixels(images.row_of[image_id]) for image_id in image_ids])
    regions = torch.cat([predictor.embed_images(part) for part in np.array_split(pixels, 8)])
    sentences = predictor.embed_sentences(list(truth.gallery.values()))
    scores = predictor.model.score(regions, sentences).numpy()
    shown = np.array(
        [[fine in truth.findings_of[image_id] for image_id in image_ids] for fine in truth.gallery]
    )
    known = shown.any(axis=1)
    pairs = zip(shown[known], scores[known], strict=True)
    return float(np.mean([average_precision_score(*pair) for pair in pairs]))


def _by_claim(own: Path) -> dict[str, float]:
    """Whether the first sentence of each box names the finding and side, if not the lobe."""
    path = open_artifact(results.ARTIFACT.at(own), results.ARTIFACT).path
    gallery = read_table(path, results.GALLERY)["sentence"].to_pylist()
    claimed = [labels.read_claims(sentence).asserted for sentence in gallery]
    rows = read_table(path, results.BOX_ANSWERS, ["gallery_true", "gallery_best"]).to_pylist()
    asked = [row for row in rows if row["gallery_true"] is not None]
    right = [claimed[row["gallery_best"][0]] == claimed[row["gallery_true"]] for row in asked]
    return {"r1 by claim": float(np.mean(right))}


def _figures(own: Path) -> dict[str, float]:
    tree = results.read_figures(open_artifact(results.ARTIFACT.at(own), results.ARTIFACT))
    questions: dict[str, Any] = tree["questions"]
    summary = open_artifact(model_package.ARTIFACT.at(own), model_package.ARTIFACT).summary

    def of(question: str, figure: str, group: str = "") -> float:
        asked = questions[question]
        return float((asked["groups"][group] if group else asked["figures"])[figure]["value"])

    return {
        "auc": of("zero_shot", "mean_auc"),
        "acc": of("zero_shot", "mean_balanced_accuracy"),
        "r1": of("gallery", "recall_at_1"),
        "r5": of("gallery", "recall_at_5"),
        "s2b10": of("boxes", "recall_at_10", "sentence_to_box"),
        "b2s10": of("boxes", "recall_at_10", "box_to_sentence"),
        "cnr": of("grounding", "cnr_signed"),
        "cnr abs": of("grounding", "cnr"),
        "miou": of("grounding", "miou"),
        "point": of("grounding", "pointing"),
        "floor": float(summary["frac_floor"]),
        "train loss": float(summary["uncorrected_loss"]),
    }
