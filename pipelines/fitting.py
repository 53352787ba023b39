"""What is fitted next to training: the image encoder's first weights, probabilities and heads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from medclip_dcl.core.artifact import Artifact, make_fingerprint, open_artifact
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.errors import ArtifactError, ArtifactStale, ConfigError
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.core.tables import SPLITS, read_table
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.data.records import read_truth, truth_digests
from medclip_dcl.evaluation.classification import CORRELATION_LIMIT, REMEDY, Truth, pair_correlation
from medclip_dcl.evaluation.decisions import add_calibration, calibrate_findings, share_changed
from medclip_dcl.evaluation.evaluated_model import encode, evaluated_model
from medclip_dcl.evaluation.metrics import BootstrapOptions
from medclip_dcl.evaluation.probe import (
    HeadRules,
    Labelled,
    image_features,
    labelled_images,
    make_head,
)
from medclip_dcl.evaluation.questions import read_image_rows, refuse_contaminated, truth_of
from medclip_dcl.evaluation.results import Rows
from medclip_dcl.inference import model_package
from medclip_dcl.inference.heads import Head, read_heads, write_heads
from medclip_dcl.inference.model_package import ARTIFACT, ScoreCalibration, read_calibration
from medclip_dcl.inference.predictor import load, published_folder
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.models.settings import multiplies_bfloat16, settle_inference
from medclip_dcl.training import pretraining
from medclip_dcl.training.checkpoint import CheckpointStore

from .evaluate import prepare_for
from .job import Job

_SEED = 0  # of resamples and draws, as in an evaluation: seeds of runs stay comparable


def pretrain_images(job: Job) -> None:
    """Learn the image encoder from images alone, before any report, by SimCLR.

    Reads the prepared images of the training patients; writes `image_weights`. A config that names
    these, `model.image.pretrained: ${WORK}/image_weights`, has this stage before training. A killed
    run resumes from its last checkpoint.
    """
    config = job.config
    listed, images = job.open(manifest.ARTIFACT), job.open(prepared.ARTIFACT)
    inputs: dict[str, Artifact | str] = {item.kind: item for item in (listed, images)}
    settings = {
        "seed": config.seed,
        "pretrain": config.pretrain,
        "image": config.model.image.model_dump(mode="json", exclude={"pretrained"}),
    }
    fingerprint = make_fingerprint(pretraining.ARTIFACT, settings, inputs)
    store = CheckpointStore(job.work / "image_checkpoints", fingerprint)

    def write(writer: ArtifactWriter) -> dict[str, Any]:
        pictures = PreparedImages(images)
        table = read_table(listed.path, manifest.IMAGES, ["image_id", "split"])
        rows = [
            pictures.row_of[row["image_id"]]
            for row in table.to_pylist()
            if row["split"] == "train" and row["image_id"] in pictures.row_of
        ]
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with store.locked():
            if job.force:
                store.remove_of_other_code()
            learner, summary = pretraining.pretrain(
                config.pretrain, config.model.image, pictures, rows, config.seed, store, device,
                save_every_steps=config.train.save_every_steps, workers=config.workers,
            )  # fmt: skip
        pretraining.write_weights(writer.directory, learner)
        return summary

    job.make(pretraining.ARTIFACT, settings, inputs, write)
    store.clear()


def calibrate_scores(job: Job) -> None:
    """Turn a model's scores into probabilities, by the validation images whose truth is known.

    Reads the model, manifest and prepared images; writes `calibration.json` into the model,
    which is committed again: its digest changes with its answers, and so results and index are made
    again too. A finding with too few images keeps its score alone, with the reason. One whose
    prompt pair does not decide, or that is read upside down, is refused and warned of. A
    probability holds where a finding is as common as among those images. Where the processor
    multiplies in bfloat16, the calibration also has the share of decisions that bfloat16 changes:
    the service goes by it.
    """
    model = job.open(ARTIFACT)
    wanted = (job.config.probabilities, _inputs_of_fit(job, model), CORRELATION_LIMIT)
    fitted, state = read_calibration(model), "reused"
    if (
        job.force
        or fitted is None
        or (fitted.settings, fitted.inputs, fitted.correlation_limit) != wanted
    ):
        fitted, state = _calibrate(job, wanted[1]), "made"
        add_calibration(model, fitted)
    calibrated = sum(item.curve is not None for item in fitted.findings)
    job.say(
        artifact=ARTIFACT.name,
        state=state,
        truth=fitted.truth,
        calibrated=calibrated,
        uncalibrated=len(fitted.findings) - calibrated,
        refused=sum(item.is_refused for item in fitted.findings),
    )
    for item in fitted.findings:
        if item.is_refused:
            job.say(
                warning=f"{item.finding} is not calibrated: {item.reason}; {REMEDY}",
                finding=item.finding,
                correlation=item.correlation,
                auc=item.auc,
            )


def _inputs_of_fit(job: Job, model: Artifact) -> dict[str, str]:
    """Name what a fit is made from; of the model all but what fits add to it."""
    parts = model_package.WEIGHTS, model_package.CARD
    own = {name: model.files[name]["sha256"] for name in parts}
    root = resolve_path(job.config.source.root, job.config.work)
    images = {kind.name: job.open(kind).digest for kind in (manifest.ARTIFACT, prepared.ARTIFACT)}
    return own | images | truth_digests(root)


def _calibrate(job: Job, inputs: dict[str, str]) -> ScoreCalibration:
    folder, config = ARTIFACT.at(job.work), job.config
    predictor = load(folder)
    model, data = evaluated_model(predictor), _open_data(job)
    prepared.require_fit(data.prepared, predictor.config.images)
    # Training images do not show what the model can do, and test images must stay unseen.
    rows, images = data.rows["validate"], data.images
    allowed = config.evaluate.allow_contaminated
    refuse_contaminated(folder, data.source, rows, images, allowed=allowed)
    # Encoded as the service sees them.
    encoded = encode(model.embed_images, rows, images, config.images.fit)
    truth, origin = truth_of(config, data.source, rows, predictor.findings)
    logits = np.zeros((len(predictor.findings), len(rows)))
    correlations: list[float | None] = [None] * len(predictor.findings)
    if rows:
        sides = model.side_scores(encoded.regions, predictor.findings)
        logits = (model.gamma_squared * (sides[0::2] - sides[1::2])).double().cpu().numpy()
        scores = sides.double().cpu().numpy()
        correlations = [
            pair_correlation(*pair) for pair in zip(scores[0::2], scores[1::2], strict=True)
        ]
    changed = None
    if multiplies_bfloat16():
        other = load(folder, predictor.device, precision="bfloat16")
        if other.engine.precision == "bfloat16":  # else the log says why not
            own = encode(evaluated_model(other).embed_images, rows, images, config.images.fit)
            changed = share_changed(predictor, encoded.regions, other, own.regions)
    return ScoreCalibration(
        truth=origin,
        settings=config.probabilities,
        inputs=inputs,
        correlation_limit=CORRELATION_LIMIT,
        changed_in_bfloat16=changed,
        findings=calibrate_findings(
            predictor.findings,
            logits,
            truth,
            encoded.subject_ids,
            config.probabilities,
            correlations,
        ),
    )


def fit_head(job: Job) -> None:
    """Fit classifiers to labels of one's own, and put them into the model that answers by them.

    Reads the model, manifest and prepared images; a head for each of the source's labels is fitted
    on the training patients, chosen and calibrated on validation, and measured on test. The model
    is committed again: its digest changes with its answers, and so results and index are made again
    too. `evaluate.model` names a model of another run: a config of `source` and it is enough, and
    the copy that has the heads is this run's own model.
    """
    config, folder = job.config, ARTIFACT.at(job.work)
    source = folder
    if config.evaluate.model:
        source = published_folder(resolve_path(config.evaluate.model, config.work))
        job = prepare_for(job, source)
    model = open_artifact(source, ARTIFACT)
    target = _own_model(folder, model) or model
    labels, inputs = _labels(job), _inputs_of_fit(job, model)
    resamples = BootstrapOptions(job.config.evaluate.bootstrap, _SEED)
    rules = HeadRules(job.config.probabilities, resamples)
    made_from = (rules.plain(), inputs)
    before = {head.card.name: head for head in read_heads(target.path)}
    heads = [before[name] for name in labels if name in before]
    heads = [head for head in heads if (head.card.settings, head.card.inputs) == made_from]
    state = "reused"
    if job.force or target.path != folder or len(heads) < len(labels):
        heads, state = _fit_heads(job, model, labels, rules, inputs), "made"
        every = [head for name, head in before.items() if name not in labels] + heads
        names = (model_package.HEADS_FILE, model_package.HEAD_ARRAYS_FILE)
        model_package.rewrite_package(target, folder, names, lambda path: write_heads(path, every))
    job.say(artifact=ARTIFACT.name, state=state, heads=len(heads))
    for head in heads:
        card, auc = head.card, head.card.figures["auc"]
        refused = card.calibration.is_refused
        job.say(
            head=card.name,
            images_with=card.images_with,
            images_without=card.images_without,
            auc=auc.value,
            low=auc.low,
            high=auc.high,
            calibrated=card.calibration.curve is not None,
            **({"warning": card.calibration.reason} if refused else {}),
        )


def _own_model(folder: Path, model: Artifact) -> Artifact | None:
    """Open this run's model where it is the same as another, but for what was added to it."""
    try:
        own = open_artifact(folder, ARTIFACT)
    except ArtifactError:
        return None
    weights = [item.files[model_package.WEIGHTS]["sha256"] for item in (own, model)]
    if weights[0] != weights[1] and own.path != model.path:
        raise ConfigError(
            f"{folder} holds another model than evaluate.model; give these heads a folder of "
            "their own (--set work=FOLDER)"
        )
    return own


def _labels(job: Job) -> list[str]:
    """Name the labels that have training and validation images of both classes, which a head needs.

    ConfigError where there is none.
    """
    truth = read_truth(resolve_path(job.config.source.root, job.config.work))
    table = manifest.read_labels(job.open(manifest.ARTIFACT, verify=False))
    names = list(manifest.label_names(table))
    if truth is not None:
        names = sorted(frozenset[str]().union(*truth.values()))
    elif not table.num_rows:
        raise ConfigError("no study has labels; set source.columns.labels or source.labels")
    data = _open_data(job)
    able = np.ones(len(names), dtype=bool)
    for split in SPLITS[:2]:
        shown = _truth(job, data, split, names)
        able &= (shown == 1).any(axis=1) & (shown == 0).any(axis=1)
    if not able.any():
        raise ConfigError(
            "no label has training and validation images of both classes; give more labels, or "
            "more patients to validation (source.validate_share)"
        )
    return [name for name, is_able in zip(names, able.tolist(), strict=True) if is_able]


class _Data(NamedTuple):
    """Manifest and prepared images, which are verified, and the manifest's rows of each split."""

    source: Artifact
    prepared: Artifact
    images: PreparedImages
    rows: dict[str, Rows]


def _open_data(job: Job) -> _Data:
    source, made = (job.open(kind, verify=False) for kind in (manifest.ARTIFACT, prepared.ARTIFACT))
    images = PreparedImages(made)
    return _Data(
        source, made, images, {split: read_image_rows(source, images, split) for split in SPLITS}
    )


def _truth(job: Job, data: _Data, split: str, labels: Sequence[str]) -> Truth:
    findings = [Finding(name, (name,), (name,), label=name) for name in labels]
    return truth_of(job.config, data.source, data.rows[split], findings)[0]


def _fit_heads(
    job: Job, model: Artifact, labels: list[str], rules: HeadRules, inputs: dict[str, str]
) -> list[Head]:
    config, data = job.config, _open_data(job)
    held_out = data.rows["validate"] + data.rows["test"]
    allowed = config.evaluate.allow_contaminated
    refuse_contaminated(model.path, data.source, held_out, data.images, allowed=allowed)
    _refuse_repeated(data)
    inference = settle_inference(config.inference)
    predictor = load(model.path, engine=inference.engine, precision=inference.precision)
    prepared.require_fit(data.prepared, predictor.config.images)
    embed = evaluated_model(predictor).embed_means
    parts: dict[str, list[Labelled]] = {name: [] for name in labels}
    for split in SPLITS:
        # Encoded as the service sees them.
        encoded = encode(embed, data.rows[split], data.images, config.images.fit)
        features = image_features(encoded)
        for name, truth in zip(labels, _truth(job, data, split, labels), strict=True):
            parts[name].append(labelled_images(features, truth, encoded.subject_ids))
    return [make_head(name, each, rules, inputs) for name, each in parts.items()]


def _refuse_repeated(data: _Data) -> None:
    # A patient is in one split; a picture may be in two, under two names.
    fitted, tested = data.rows["train"] + data.rows["validate"], data.rows["test"]
    among, queries = (
        [data.images.row_of[row["image_id"]] for row in part] for part in (fitted, tested)
    )
    if repeated := len(data.images.find_repeats(queries, among)):
        raise ArtifactStale(
            f"the picture of {repeated} of {len(tested)} test images is in the heads' training; "
            "take out the images that check_data calls repeated"
        )
