"""Questions to a model on the patients of its fold, by experts' labels; figures are plain numbers.

Axes
    findings  questions
    images    frontal images of tested patients
    studies   one image each, and the report
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import yaml
from jaxtyping import Bool, Float
from sklearn.metrics import average_precision_score
from torch import Tensor

from benchmarks.method.real_studies.studies import HERE, Fold
from medclip_dcl.core.tables import read_table
from medclip_dcl.data.sources.open_i import image_name
from medclip_dcl.evaluation.metrics import balanced_accuracy, best_ranks, roc_auc, value_of
from medclip_dcl.inference.prompts import read_prompts
from medclip_dcl.inference.zero_shot import prompt_texts
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.text.sentences import SENTENCES
from medclip_dcl.training.corpus import TokenTable
from medclip_dcl.training.setup import TrainInputs, TrainSetup

QUESTIONS = read_prompts(HERE / "prompts.yaml")
SEVERAL: dict[str, list[list[str]]] = yaml.safe_load(
    (HERE / "several_prompts.yaml").read_text(encoding="utf-8")
)
"""Name of each question -> its sentences, and those that deny it."""
SIX = ("Atelectasis", "Cardiomegaly", "Effusion", "Emphysema", "Nodule", "normal")
"""The questions that enough images of a fold show."""
_AT_ONCE = 64

Figures = dict[str, Any]


def ask(setup: TrainSetup, inputs: TrainInputs, fold: Fold) -> Figures:
    """Put every question to the model of a setup, which is in eval mode."""
    tested = [(patient.uid, path) for patient in fold.tested for path in patient.images]
    owners = [uid for uid, _ in tested]
    maps, truth = encode_maps(setup, [path for _, path in tested]), gold(fold, owners)
    projected = setup.encoder.region_projection(maps.permute(0, 2, 3, 1))
    regions = torch.nn.functional.normalize(projected, dim=-1)
    figures = judge(score_texts(setup, prompt_texts(QUESTIONS), regions), truth)
    sides = [SEVERAL[finding.name][side] for finding in QUESTIONS for side in (0, 1)]
    scores = score_texts(setup, [text for side in sides for text in side], regions)
    parts = np.split(scores, np.cumsum([len(side) for side in sides])[:-1])
    figures["several_prompts"] = judge(np.stack([part.mean(axis=0) for part in parts]), truth)
    figures["retrieval"] = ask_reports(setup, inputs, owners, regions)
    return figures


def ask_classifier(setup: TrainSetup, fold: Fold) -> Figures:
    """Ask the classifier on the tower; its figures stand for those by sentences too."""
    tested = [(patient.uid, path) for patient in fold.tested for path in patient.images]
    maps = encode_maps(setup, [path for _, path in tested])
    logits = setup.encoder.get_submodule("findings")(maps.mean(dim=(2, 3))).double().numpy().T
    sides = np.stack([logits, np.zeros_like(logits)], axis=1).reshape(2 * len(logits), -1)
    figures = judge(sides, gold(fold, [uid for uid, _ in tested]))
    return figures | {"several_prompts": figures}


def gold(fold: Fold, uids: Sequence[str]) -> Bool[np.ndarray, "findings images"]:
    """Return the experts' answers to the questions."""
    rows = [[fold.gold_of[uid][finding.name] for uid in uids] for finding in QUESTIONS]
    return np.array(rows, dtype=bool)


def encode_maps(
    setup: TrainSetup, paths: Sequence[str]
) -> Float[Tensor, "images channels rows columns"]:
    """Encode images, whole, as the service sees them: the tower's map before the projection."""
    prepared, input_px = setup.prepared, setup.config.model.image.input_px
    rows = [prepared.row_of[image_name(path.rpartition("/")[2])] for path in paths]
    parts = []
    for start in range(0, len(rows), _AT_ONCE):
        pixels = np.stack([prepared.pixels(row) for row in rows[start : start + _AT_ONCE]])
        parts.append(setup.encoder.image(to_input(pixels, input_px)))
    return torch.cat(parts)


def score_texts(
    setup: TrainSetup, texts: Sequence[str], regions: Float[Tensor, "images rows columns dim"]
) -> Float[np.ndarray, "texts images"]:
    """Score sentences against images: f in [-1, 1]."""
    table = TokenTable(setup.start.tokenizer, texts, setup.config.model.text.max_tokens)
    parts = []
    for start in range(0, len(texts), _AT_ONCE):
        chosen = np.arange(start, min(start + _AT_ONCE, len(texts)))
        sentences = setup.encoder.encode_sentences(*table.padded(chosen))
        parts.append(setup.encoder.score(regions, sentences))
    return torch.cat(parts).double().numpy()


def judge(
    scores: Float[np.ndarray, "sides images"], truth: Bool[np.ndarray, "findings images"]
) -> Figures:
    """Judge the scores of each finding's two sides, positive first; AUC and others, and means."""
    findings: dict[str, dict[str, float | None]] = {}
    for index, finding in enumerate(QUESTIONS):
        margin, shown = scores[2 * index] - scores[2 * index + 1], truth[index]
        both = bool(shown.any() and not shown.all())
        findings[finding.name] = {
            "images": float(shown.sum()),
            "auc": value_of(roc_auc(margin, shown)),
            "auprc": float(average_precision_score(shown, margin)) if both else None,
            "accuracy": value_of(balanced_accuracy(margin, shown)),
        }
    names = ("auc", "auprc", "accuracy")
    figures = {f"mean_{name}": _mean(findings, findings, name) for name in names}
    return {"findings": findings, **figures, "mean_auc_of_six": _mean(findings, SIX, "auc")}


def _mean(findings: Mapping[str, Any], names: Any, figure: str) -> float:
    values = [findings[name][figure] for name in names]
    return float(np.mean([value for value in values if value is not None]))


def ask_reports(
    setup: TrainSetup, inputs: TrainInputs, owners: Sequence[str], regions: Tensor
) -> Figures:
    """Look for a report by its image, and the other way round, among the fold's studies.

    A report's score is the mean of its sentences'; the own one alone counts, after its ties.
    """
    rows = read_table(inputs.sentences.path, SENTENCES, ["study_id", "text"]).to_pylist()
    sentences: dict[str, list[str]] = {}
    for row in rows:
        sentences.setdefault(row["study_id"], []).append(row["text"])
    first = {uid: index for index, uid in reversed([*enumerate(owners)]) if uid in sentences}
    studies = sorted(first)
    texts = sorted({text for study in studies for text in sentences[study]})
    number = {text: row for row, text in enumerate(texts)}
    scores = score_texts(setup, texts, regions[[first[study] for study in studies]])
    reports = np.stack([scores[[number[t] for t in sentences[s]]].mean(axis=0) for s in studies])
    own, figures = np.eye(len(studies), dtype=bool), {"studies": float(len(studies))}
    for direction, table in (("report_to_image", reports), ("image_to_report", reports.T)):
        ranks = best_ranks(table, own)
        figures |= {f"{direction}_r{k}": float((ranks <= k).mean()) for k in (1, 5, 10)}
        figures[f"{direction}_median"] = float(np.median(ranks))
    return figures
