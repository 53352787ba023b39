"""Turn a model's scores into probabilities, by the validation images whose truth is known.

Reads the model, manifest and prepared images; writes `calibration.json` into the model,
which is committed again: its digest changes with its answers, and so results and index are made
again too. A finding with too few images keeps its score alone, with the reason. One whose prompt
pair does not decide, or that is read upside down, is refused and warned of. A probability holds
where a finding is as common as among those images. Where the processor multiplies in bfloat16,
the calibration also has the share of decisions that bfloat16 changes: the service goes by it.
"""

import sys
from typing import Any

import numpy as np

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.files import sha256_file
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.data.records import truth_files
from medclip_dcl.evaluation.classification import CORRELATION_LIMIT, REMEDY, pair_correlation
from medclip_dcl.evaluation.decisions import add_calibration, calibrate_findings, share_changed
from medclip_dcl.evaluation.evaluated_model import encode, evaluated_model
from medclip_dcl.evaluation.questions import read_image_rows, refuse_contaminated, truth_of
from medclip_dcl.inference import model_package
from medclip_dcl.inference.model_package import ScoreCalibration, read_calibration
from medclip_dcl.inference.predictor import load
from medclip_dcl.models.settings import multiplies_bfloat16

from .job import Job, job_main

SPLIT = "validate"
"""Training images do not show what the model can do, and test images must stay unseen."""


def build(job: Job) -> None:
    """Fit the calibration unless the model has it already."""
    model = job.open(model_package.ARTIFACT)
    inputs = fitting_inputs(job, model)
    found = read_calibration(model)
    asked = job.config.probabilities
    state = "reused"
    wanted = (asked, inputs, CORRELATION_LIMIT)
    if (
        job.force
        or found is None
        or (found.settings, found.inputs, found.correlation_limit) != wanted
    ):
        found = _fit(job, inputs)
        add_calibration(model, found)
        state = "made"
    job.say(artifact=model_package.ARTIFACT.name, state=state, truth=found.truth, **_counts(found))
    for item in found.findings:
        if item.is_refused:
            job.say(
                warning=f"{item.finding} is not calibrated: {item.reason}; {REMEDY}",
                finding=item.finding,
                correlation=item.correlation,
                auc=item.auc,
            )


def fitting_inputs(job: Job, model: Artifact) -> dict[str, str]:
    """Name what a calibration is made from; of the model all but the calibration itself."""
    own = {
        name: model.files[name]["sha256"] for name in (model_package.WEIGHTS, model_package.CARD)
    }
    root = resolve_path(job.config.source.root, job.config.work)
    images = {kind.name: job.open(kind).digest for kind in (manifest.ARTIFACT, prepared.ARTIFACT)}
    return own | images | {file.name: sha256_file(file) for file in truth_files(root)}


def _fit(job: Job, inputs: dict[str, str]) -> ScoreCalibration:
    folder = model_package.ARTIFACT.at(job.work)
    predictor = load(folder)
    model = evaluated_model(predictor)
    source = job.open(manifest.ARTIFACT, verify=False)
    made = job.open(prepared.ARTIFACT, verify=False)
    prepared.require_fit(made, predictor.config.images)
    images = PreparedImages(made)
    rows = read_image_rows(source, images, SPLIT)
    allowed = job.config.evaluate.allow_contaminated
    refuse_contaminated(folder, source, rows, images, allowed=allowed)
    encoded = encode(
        model.embed_images, rows, images, job.config.images.fit
    )  # as the service sees them
    truth, origin = truth_of(job.config, source, rows, predictor.findings)
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
            own = encode(evaluated_model(other).embed_images, rows, images, job.config.images.fit)
            changed = share_changed(predictor, encoded.regions, other, own.regions)
    return ScoreCalibration(
        truth=origin,
        settings=job.config.probabilities,
        inputs=inputs,
        correlation_limit=CORRELATION_LIMIT,
        changed_in_bfloat16=changed,
        findings=calibrate_findings(
            predictor.findings,
            logits,
            truth,
            encoded.subject_ids,
            job.config.probabilities,
            correlations,
        ),
    )


def _counts(calibration: ScoreCalibration) -> dict[str, Any]:
    fitted = [item for item in calibration.findings if item.curve is not None]
    refused = sum(item.is_refused for item in calibration.findings)
    counts = {"calibrated": len(fitted), "uncalibrated": len(calibration.findings) - len(fitted)}
    return counts | {"refused": refused}


main = job_main("calibrate_scores", build)

if __name__ == "__main__":
    sys.exit(main())
