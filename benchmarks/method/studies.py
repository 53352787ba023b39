"""Generated studies from pixels with a BERT: the product's own jobs, one corpus a seed.

The preparation of a seed is shared by all its rows: studies are generated, prepared, split
into sentences, read, and scored by a language model that is fitted on them. A row then
builds its eta, trains and is evaluated in a folder of its own that links to the rest.

Controls alter what is read from the training reports; images and sentences stay paired, and
so do the validation reports that stop a row. Of `shuffled` reports the relation alone sees
the claims of another study: places go by the own report. `dropped` and `invented` are the
claims of a worse reader, for relation and places. A relation of `asserting` sentences alone
leaves the others to plain InfoNCE.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from benchmarks.method.phantom_world import DROPPED_BY_WORSE, INVENTED_BY_WORSE, worsen
from benchmarks.method.rows import Row
from benchmarks.processes import options
from medclip_dcl import model_package
from medclip_dcl.artifact import make_fingerprint, open_artifact
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.ground_truth import read_truth
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.metrics import balanced_accuracy, value_of
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.inference.zero_shot import prompt_offset
from medclip_dcl.likelihood import masked_lm, scoring
from medclip_dcl.losses.relations import ASSERTED, DIFFERENT, encode_claims
from medclip_dcl.tables import read_table, write_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.labels import FINDINGS, ReportLabels
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.objective import ContrastiveObjective
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
PLACE_WEIGHT = 0.3
STOPPED: tuple[str, ...] = (
    "generate.patients=1100",
    "generate.validate_share=0.09",
    "generate.test_share=0.27",
    "language_model.steps=700",
    "train.best_metric=validation_report_auc",
    "train.validate_every_steps=100",
    "train.validate_images=1000",
)
"""Settings of the confirmatory round: every row is published at its own best step, by the AUC
of the prompts against what the validation reports say, which needs no labels."""
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
    """Make what the rows of a seed share, or go on where a stopped run left off; give its folder.

    `settings` are further ones, `key=value`.
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
    """Train with one row's loss, `steps` unless it stops early, and evaluate the model.

    Gives headline figures of the evaluation; `acc offset`, balanced accuracy with each prompt
    corrected by its level over the validation images, where there are any; `map`, the mean average
    precision of plain sentences over the held-out images; `r1 by claim`, the share of boxes whose
    first sentence of the gallery claims what the true one does; `r1 within claim`, how often the
    first sentence with the true claim is the true one; and `floor`, the last logged share of
    anchors on the floor.
    """
    folder = prepare(work, seed, settings)
    own = folder / row.name.replace(" ", "-").replace(",", "")
    shutil.rmtree(own, ignore_errors=True)  # a killed run's; rows are short
    own.mkdir(parents=True)
    for artifact in _SHARED:
        link = artifact.ARTIFACT.at(own)
        link.symlink_to(os.path.relpath(artifact.ARTIFACT.at(folder / "shared"), own))
    altered = altered_claims(folder / "shared", row.relation, seed)
    if altered and row.relation != "shuffled":
        labels.ARTIFACT.at(own).unlink()
        _write_claims(folder / "shared", own, altered, row.relation)
    related: AbstractContextManager[None] = nullcontext()
    if row.relation in {"shuffled", "asserting"}:
        related = relation_to(altered, asserting_alone=row.relation == "asserting")
    every = [*settings, *_settings_of(row, folder, steps)]
    _run(build_eta_cache.main, own, folder, seed, every)
    with related:
        _run(train.main, own, folder, seed, every)
    _run(evaluate.main, own, folder, seed, every)
    predictor = load(model_package.ARTIFACT.at(own))
    figures = _figures(own) | _by_claim(own) | _offset_accuracy(predictor, own)
    figures |= {"map": _average_precision(predictor, own, folder / "studies")}
    shutil.rmtree(own)
    return figures


def _settings_of(row: Row, folder: Path, steps: int) -> list[str]:
    count = round(steps * EARLY_SHARE) if row.early else steps
    read = row.relation in {"shuffled", "dropped", "invented", "asserting"}
    settings = [
        f"train.steps={count}",
        f"train.warmup_steps={count // 10}",
        f"objective.kind={row.kind}",
        f"objective.floor={row.floor}",
        f"objective.relation={'claims' if read else row.relation}",
        f"objective.negatives={row.negatives}",
        f"objective.directions={row.directions}",
        f"objective.image_anchor={row.image_anchor}",
        f"eta.table={folder / 'studies' / 'truth' / 'eta.csv'}",
    ]
    if row.places:
        settings += [f"objective.place_weight={PLACE_WEIGHT}", f"objective.places={row.places}"]
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
    with redirect_stdout(sys.stderr):  # the last line of a benchmark is its own
        code = job(["--config", str(CONFIG), *options(given)])
    if code:
        raise RuntimeError(f"{job.__module__} ended with exit code {code}")


def altered_claims(shared: Path, kind: str, seed: int) -> dict[str, ReportLabels]:
    """Read the claims of a seed's reports, with those of training reports altered; by study.

    `shuffled`: every training study has the claims of another; `dropped`: a tenth of the findings
    is missed; `invented`: each finding is read into a twentieth of the reports; nothing for
    another.
    """
    if kind not in {"shuffled", "dropped", "invented"}:
        return {}
    source = open_artifact(labels.ARTIFACT.at(shared), labels.ARTIFACT)
    rows = read_table(source.path, labels.REPORT_CLAIMS).to_pylist()
    claims = {row["study_id"]: ReportLabels.from_row(row) for row in rows}
    reports = read_table(manifest.ARTIFACT.at(shared), manifest.REPORTS, ["study_id", "split"])
    training = {row["study_id"] for row in reports.to_pylist() if row["split"] == "train"}
    studies = [study for study in claims if study in training]
    generator = np.random.default_rng(seed)
    if kind == "shuffled":
        order = generator.permutation(len(studies)).tolist()
        others = {study: studies[index] for study, index in zip(studies, order, strict=True)}
        return claims | {study: claims[other] for study, other in others.items()}
    dropped, invented = (DROPPED_BY_WORSE, 0.0) if kind == "dropped" else (0.0, INVENTED_BY_WORSE)
    return claims | {
        study: worsen(claims[study], FINDINGS, generator, dropped=dropped, invented=invented)
        for study in studies
    }


def _write_claims(
    shared: Path, own: Path, claims: Mapping[str, ReportLabels], altered: str
) -> None:
    source = open_artifact(labels.ARTIFACT.at(shared), labels.ARTIFACT)
    columns = labels.REPORT_CLAIMS.schema.names
    rows = [{"study_id": study, **said.to_row()} for study, said in claims.items()]
    fingerprint = make_fingerprint(labels.ARTIFACT, {"altered": altered}, {"claims": source})
    with write_artifact(labels.ARTIFACT.at(own), labels.ARTIFACT, fingerprint) as writer:
        table = [{name: row[name] for name in columns} for row in rows]
        write_table(writer.directory, labels.REPORT_CLAIMS, table)
        said = read_table(source.path, labels.SENTENCE_CLAIMS)
        write_table(writer.directory, labels.SENTENCE_CLAIMS, said)
        writer.commit({})


@contextmanager
def relation_to(
    claims: Mapping[str, ReportLabels], *, asserting_alone: bool = False
) -> Iterator[None]:
    """Let the relation of a training run see other claims of the reports than the place loss.

    Without `claims` those that the reports make. `asserting_alone`: sentences that assert nothing
    are related to no report, so that their anchors have plain InfoNCE.
    """
    codes = dict(zip(claims, encode_claims(list(claims.values())), strict=True))
    plain = ContrastiveObjective._relation

    def relation(
        self: ContrastiveObjective, batch: ImageTextBatch, *, from_text: bool
    ) -> Tensor | None:
        if codes:
            turned = torch.stack([codes[study] for study in batch.study_ids])
            batch = replace(batch, report_codes=turned)
        found = plain(self, batch, from_text=from_text)
        if asserting_alone and found is not None and batch.sentence_codes is not None:
            findings = batch.sentence_codes[batch.mine, :-1]
            found[(findings & ASSERTED == 0).all(dim=1)] = DIFFERENT
        return found

    # An experiment, for which the objective has no setting and needs none.
    with mock.patch.object(ContrastiveObjective, "_relation", relation):
        yield


@torch.inference_mode()
def _average_precision(predictor: Predictor, own: Path, root: Path) -> float:
    """Rank the held-out images for the plainest sentence of every fine finding."""
    truth = read_truth(root)
    assert truth is not None, "generated studies know their truth"
    image_ids, regions = _regions(predictor, own, "test")
    sentences = predictor.embed_sentences(list(truth.gallery.values()))
    scores = predictor.model.score(regions, sentences).numpy()
    shown = np.array(
        [[fine in truth.findings_of[image_id] for image_id in image_ids] for fine in truth.gallery]
    )
    known = shown.any(axis=1)
    pairs = zip(shown[known], scores[known], strict=True)
    return float(np.mean([average_precision_score(*pair) for pair in pairs]))


@torch.inference_mode()
def _offset_accuracy(predictor: Predictor, own: Path) -> dict[str, float]:
    """Decide by prompts whose level over the validation images is taken off."""
    image_ids, regions = _regions(predictor, own, "validate")
    if not image_ids:
        return {}
    path = open_artifact(results.ARTIFACT.at(own), results.ARTIFACT).path
    rows = read_table(path, results.SCORES, ["finding", "margin", "truth"]).to_pylist()
    gamma_squared = predictor.model.gamma**2
    found = []
    for finding in predictor.findings:
        sides = [
            predictor.model.score(regions, predictor.embed_sentences(side)).mean(dim=0)
            for side in (finding.positive, finding.negative)
        ]
        levels = prompt_offset(gamma_squared * torch.stack(sides)) / gamma_squared
        asked = [row for row in rows if row["finding"] == finding.name and row["truth"] is not None]
        margins = np.array([row["margin"] for row in asked]) - float(levels[0] - levels[1])
        found.append(
            value_of(balanced_accuracy(margins, np.array([row["truth"] == 1 for row in asked])))
        )
    return {"acc offset": float(np.mean([value for value in found if value is not None]))}


def _regions(predictor: Predictor, own: Path, split: str) -> tuple[list[str], Tensor]:
    images = prepared.PreparedImages(open_artifact(prepared.ARTIFACT.at(own), prepared.ARTIFACT))
    rows = read_table(manifest.ARTIFACT.at(own), manifest.IMAGES, ["image_id", "split"]).to_pylist()
    image_ids = [row["image_id"] for row in rows if row["split"] == split]
    image_ids = [image_id for image_id in image_ids if image_id in images.row_of]
    if not image_ids:
        return [], torch.empty(0)
    pixels = np.stack([images.pixels(images.row_of[image_id]) for image_id in image_ids])
    return image_ids, torch.cat(
        [predictor.embed_images(part) for part in np.array_split(pixels, 8)]
    )


def _by_claim(own: Path) -> dict[str, float]:
    """Whether the first sentence of each box names the finding and side, if not the lobe."""
    path = open_artifact(results.ARTIFACT.at(own), results.ARTIFACT).path
    gallery = read_table(path, results.GALLERY)["sentence"].to_pylist()
    claimed = [labels.read_claims(sentence).asserted for sentence in gallery]
    rows = read_table(path, results.BOX_ANSWERS, ["gallery_true", "gallery_best"]).to_pylist()
    asked = [row for row in rows if row["gallery_true"] is not None]
    right = [claimed[row["gallery_best"][0]] == claimed[row["gallery_true"]] for row in asked]
    first = [
        next((n for n in row["gallery_best"] if claimed[n] == claimed[row["gallery_true"]]), None)
        for row in asked
    ]
    within = [
        n == row["gallery_true"] for n, row in zip(first, asked, strict=True) if n is not None
    ]
    return {"r1 by claim": float(np.mean(right)), "r1 within claim": float(np.mean(within))}


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
