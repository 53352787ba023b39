"""Fit classifiers to labels of one's own, and put them into the model that answers by them.

Reads the model, manifest and prepared images; a head for each of the source's labels is fitted on
the training patients, chosen and calibrated on validation, and measured on test. The model is
committed again: its digest changes with its answers, and so results and index are made again too.
`evaluate.model` names a model of another run: a config of `source` and it is enough, and the copy
that has the heads is this run's own model.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from medclip_dcl import model_package
from medclip_dcl.artifact import Artifact, open_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.ground_truth import read_truth
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import ArtifactError, ConfigError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.classification import UNKNOWN
from medclip_dcl.evaluation.evaluated_model import EncodedImages, encode, evaluated_model
from medclip_dcl.evaluation.head_fitting import (
    HeadRules,
    HeadSplits,
    make_head,
    refuse_shared_patients,
)
from medclip_dcl.evaluation.operating_point import ThresholdRule
from medclip_dcl.evaluation.probe import Labelled, image_features
from medclip_dcl.evaluation.questions import read_image_rows, refuse_contaminated, truth_of
from medclip_dcl.inference.heads import Head, read_heads, write_heads
from medclip_dcl.inference.predictor import load, published_folder
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.model_package import ARTIFACT, HEAD_ARRAYS_FILE, HEADS_FILE, WEIGHTS
from medclip_dcl.settings import resolve_path
from medclip_dcl.tables import SPLITS

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
    job.say(artifact=ARTIFACT.name, state=state, kind=rules.heads.kind, heads=len(found))
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
        ThresholdRule(config.evaluate.threshold, config.evaluate.sensitivity),
        BootstrapOptions(config.evaluate.bootstrap, _SEED),
    )


def _labels(job: Job) -> list[str]:
    """Name the labels that get a head; ConfigError where one is not the source's."""
    config = job.config
    truth = read_truth(resolve_path(config.source.root, config.work))
    table = manifest.read_labels(job.open(manifest.ARTIFACT, verify=False))
    known = sorted(truth.types) if truth else list(manifest.label_names(table))
    if unknown := sorted(set(config.heads.labels) - set(known)):
        raise ConfigError(f"heads.labels names {unknown}; the source has {', '.join(known)}")
    if truth is None and not table.num_rows:
        raise ConfigError("no study has labels; set source.columns.labels or source.labels")
    asked = config.heads.labels or tuple(known)
    findings = [_finding(name) for name in asked]
    if config.heads.labels:
        return list(asked)
    source = job.open(manifest.ARTIFACT, verify=False)
    images = PreparedImages(job.open(prepared.ARTIFACT, verify=False))
    able = np.ones(len(asked), dtype=bool)
    for split in SPLITS[:2]:
        rows = read_image_rows(source, images, split)
        shown, _ = truth_of(config, source, rows, findings)
        able &= (shown == 1).any(axis=1) & (shown == 0).any(axis=1)
    if not able.any():
        raise ConfigError(
            "no label has training and validation images of both classes; give more labels, or "
            "more patients to validation (source.validate_share)"
        )
    return [name for name, is_able in zip(asked, able.tolist(), strict=True) if is_able]


def _finding(name: str) -> Finding:
    return Finding(name, (name,), (name,), label=name)


def _fit(
    job: Job, model: Artifact, labels: list[str], rules: HeadRules, inputs: dict[str, str]
) -> list[Head]:
    config = job.config
    source = job.open(manifest.ARTIFACT, verify=False)
    images = PreparedImages(job.open(prepared.ARTIFACT, verify=False))
    rows = {split: read_image_rows(source, images, split) for split in SPLITS}
    held_out = rows["validate"] + rows["test"]
    allowed = config.evaluate.allow_contaminated
    refuse_contaminated(model.path, source, held_out, images, allowed=allowed)
    _refuse_shared(rows, images)
    encoders = evaluated_model(load(model.path, engine=config.inference.engine,
                                    precision=config.inference.precision))  # fmt: skip
    embed = encoders.embedding_of(rules.heads.features)
    findings = [_finding(name) for name in labels]
    encoded = {split: encode(embed, rows[split], images, "whole") for split in SPLITS}
    truth = {split: truth_of(config, source, rows[split], findings)[0] for split in SPLITS}
    features = {split: image_features(part) for split, part in encoded.items()}
    heads = []
    for index, name in enumerate(labels):
        parts = [
            _labelled(features[split], truth[split][index], encoded[split]) for split in SPLITS
        ]
        splits = HeadSplits(*parts)
        if splits.lacking:
            raise ConfigError(f"heads.labels: {name}: {splits.lacking}")
        heads.append(make_head(name, splits, rules, inputs))
    return heads


def _refuse_shared(rows: dict[str, Any], images: PreparedImages) -> None:
    fitted, tested = rows["train"] + rows["validate"], rows["test"]
    among, asked = ([images.row_of[row["image_id"]] for row in part] for part in (fitted, tested))
    subjects = ([row["subject_id"] for row in part] for part in (fitted, tested))
    refuse_shared_patients(*subjects, repeated=len(images.find_repeats(asked, among)))


def _labelled(features: np.ndarray, truth: np.ndarray, images: EncodedImages) -> Labelled:
    known = np.flatnonzero(truth != UNKNOWN)
    return Labelled(features, truth.astype(np.int64), images.subject_ids).take(known)


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
