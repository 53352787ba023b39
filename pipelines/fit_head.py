"""Fit classifiers to labels of one's own, and put them into the model that answers by them.

Reads the model, manifest and prepared images; a head for each of the source's labels is fitted on
the training patients, chosen and calibrated on validation, and measured on test. The model is
committed again: its digest changes with its answers, and so results and index are made again too.
`evaluate.model` names a model of another run: a config of `source` and it is enough, and the copy
that has the heads is this run's own model.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medclip_dcl.core.artifact import Artifact, open_artifact
from medclip_dcl.core.errors import ArtifactError, ConfigError
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.core.tables import SPLITS
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.data.records import read_truth
from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.classification import UNKNOWN, Truth
from medclip_dcl.evaluation.evaluated_model import encode, evaluated_model
from medclip_dcl.evaluation.head_fitting import (
    HeadRules,
    HeadSplits,
    make_head,
    refuse_shared_patients,
)
from medclip_dcl.evaluation.operating_point import ThresholdRule
from medclip_dcl.evaluation.probe import Labelled, image_features
from medclip_dcl.evaluation.questions import read_image_rows, refuse_contaminated, truth_of
from medclip_dcl.evaluation.results import Rows
from medclip_dcl.inference import model_package
from medclip_dcl.inference.heads import Head, read_heads, write_heads
from medclip_dcl.inference.model_package import ARTIFACT, HEAD_ARRAYS_FILE, HEADS_FILE, WEIGHTS
from medclip_dcl.inference.predictor import Predictor, load, published_folder
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.models.settings import HeadFeatures, settle_inference

from .calibrate_scores import fitting_inputs
from .evaluate import prepare_for
from .job import Job, job_main

_SEED = 0  # of resamples and draws, as in an evaluation: seeds of runs stay comparable


def build(job: Job) -> None:
    """Fit the heads unless the model has them already."""
    config, folder = job.config, ARTIFACT.at(job.work)
    source = folder
    if config.evaluate.model:
        source = published_folder(resolve_path(config.evaluate.model, config.work))
        job = prepare_for(job, source)
    model = open_artifact(source, ARTIFACT)
    target = _own_model(folder, model) or model
    labels = _labels(job)
    inputs, rules = fitting_inputs(job, model), _rules(job)
    known = {head.card.name: head for head in read_heads(target.path)}
    wanted = rules.plain()
    found = [known[name] for name in labels if name in known]
    is_there = [head.card.name for head in found] == labels and target.path == folder
    state = "reused"
    if (
        job.force
        or not is_there
        or any((head.card.settings, head.card.inputs) != (wanted, inputs) for head in found)
    ):
        found = _fit(job, model, labels, rules, inputs)
        others = [head for name, head in known.items() if name not in labels]
        names = (HEADS_FILE, HEAD_ARRAYS_FILE)
        heads = [*others, *found]
        model_package.rewrite_package(target, folder, names, lambda path: write_heads(path, heads))
        state = "made"
    job.say(artifact=ARTIFACT.name, state=state, heads=len(found))
    for head in found:
        job.say(**_facts(head))


def _own_model(folder: Path, model: Artifact) -> Artifact | None:
    """Open this run's model where it is the same as another, but for what was added to it."""
    try:
        found = open_artifact(folder, ARTIFACT)
    except ArtifactError:
        return None
    same = found.files[WEIGHTS]["sha256"] == model.files[WEIGHTS]["sha256"]
    if not same and found.path != model.path:
        raise ConfigError(
            f"{folder} holds another model than evaluate.model; give these heads a folder of "
            "their own (--set work=FOLDER)"
        )
    return found


def _rules(job: Job) -> HeadRules:
    config = job.config
    return HeadRules(
        config.heads,
        config.probabilities,
        ThresholdRule(config.evaluate.threshold),
        BootstrapOptions(config.evaluate.bootstrap, _SEED),
    )


def _labels(job: Job) -> list[str]:
    """Name the labels that get a head; ConfigError where one is not the source's, or there is none.

    Those that are not asked for by name need training and validation images of both classes.
    """
    config = job.config
    truth = read_truth(resolve_path(config.source.root, config.work))
    table = manifest.read_labels(job.open(manifest.ARTIFACT, verify=False))
    known = sorted(truth.types) if truth else list(manifest.label_names(table))
    if truth is None and not table.num_rows:
        raise ConfigError("no study has labels; set source.columns.labels or source.labels")
    if unknown := sorted(set(config.heads.labels) - set(known)):
        raise ConfigError(f"heads.labels names {unknown}; the source has {', '.join(known)}")
    if config.heads.labels:
        return list(config.heads.labels)
    source, _, rows = rows_by_split(job)
    able = np.ones(len(known), dtype=bool)
    for split in SPLITS[:2]:
        shown = _truth(job, source, rows[split], known)
        able &= (shown == 1).any(axis=1) & (shown == 0).any(axis=1)
    if not able.any():
        raise ConfigError(
            "no label has training and validation images of both classes; give more labels, or "
            "more patients to validation (source.validate_share)"
        )
    return [name for name, is_able in zip(known, able.tolist(), strict=True) if is_able]


def _truth(job: Job, source: Artifact, rows: Rows, labels: Sequence[str]) -> Truth:
    findings = [Finding(name, (name,), (name,), label=name) for name in labels]
    return truth_of(job.config, source, rows, findings)[0]


def rows_by_split(job: Job) -> tuple[Artifact, PreparedImages, dict[str, Rows]]:
    """Open manifest and images, which are verified, and list the manifest's rows of each split."""
    source = job.open(manifest.ARTIFACT, verify=False)
    images = PreparedImages(job.open(prepared.ARTIFACT, verify=False))
    return source, images, {split: read_image_rows(source, images, split) for split in SPLITS}


def read_splits(
    job: Job, predictor: Predictor, features: HeadFeatures, labels: Sequence[str]
) -> dict[str, HeadSplits]:
    """Encode the images of every split, and give those that each label is known of."""
    source, images, rows = rows_by_split(job)
    embed = evaluated_model(predictor).embedding_of(features)
    parts: dict[str, list[Labelled]] = {name: [] for name in labels}
    for split in SPLITS:
        encoded = encode(
            embed, rows[split], images, job.config.images.fit
        )  # as the service sees them
        found = image_features(encoded)
        for name, truth in zip(labels, _truth(job, source, rows[split], labels), strict=True):
            known = np.flatnonzero(truth != UNKNOWN)
            every = Labelled(found, truth.astype(np.int64), encoded.subject_ids)
            parts[name].append(every.take(known))
    return {name: HeadSplits(*own) for name, own in parts.items()}


def _fit(
    job: Job, model: Artifact, labels: list[str], rules: HeadRules, inputs: dict[str, str]
) -> list[Head]:
    config = job.config
    source, images, rows = rows_by_split(job)
    held_out, allowed = rows["validate"] + rows["test"], config.evaluate.allow_contaminated
    refuse_contaminated(model.path, source, held_out, images, allowed=allowed)
    _refuse_shared(rows, images)
    inference = settle_inference(config.inference)
    predictor = load(model.path, engine=inference.engine, precision=inference.precision)
    made = job.open(prepared.ARTIFACT, verify=False)
    prepared.require_fit(made, predictor.config.images)
    splits = read_splits(job, predictor, rules.heads.features, labels)
    for name, parts in splits.items():
        if parts.lacking:
            raise ConfigError(f"heads.labels: {name}: {parts.lacking}")
    return [make_head(name, parts, rules, inputs) for name, parts in splits.items()]


def _refuse_shared(rows: dict[str, Rows], images: PreparedImages) -> None:
    fitted, tested = rows["train"] + rows["validate"], rows["test"]
    among, asked = ([images.row_of[row["image_id"]] for row in part] for part in (fitted, tested))
    trained, held_out = ([row["subject_id"] for row in part] for part in (fitted, tested))
    refuse_shared_patients(trained, held_out, len(images.find_repeats(asked, among)))


def _facts(head: Head) -> dict[str, Any]:
    card, calibration = head.card, head.card.calibration
    auc = card.figures["auc"]
    facts: dict[str, Any] = {"head": card.name, "images_with": card.images_with}
    facts |= {"images_without": card.images_without, "auc": auc.value}
    facts |= {"low": auc.low, "high": auc.high, "calibrated": calibration.curve is not None}
    return facts | ({"warning": calibration.reason} if calibration.is_refused else {})


main = job_main("fit_head", build)

if __name__ == "__main__":
    sys.exit(main())
