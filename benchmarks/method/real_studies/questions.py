"""Questions to a row on the patients of its fold, by experts' labels; figures are plain numbers.

Axes
    findings  prompt pairs
    images    frontal images of tested patients
    studies   one image each, and the report
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import yaml
from jaxtyping import Bool, Float
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from benchmarks.method.real_studies.studies import CHEXPERT, HERE, Fold
from medclip_dcl.evaluation.metrics import balanced_accuracy, best_ranks, roc_auc, value_of
from medclip_dcl.inference.prompts import read_prompts
from medclip_dcl.inference.zero_shot import prompt_offset, prompt_texts
from medclip_dcl.losses.relations import ASSERTED, HEDGED, NEGATED, encode_claims
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.tables import read_table
from medclip_dcl.text.labeler.labels import FINDINGS, read_claims
from medclip_dcl.text.sentences import SENTENCES
from medclip_dcl.training.corpus import TokenTable
from medclip_dcl.training.setup import TrainInputs, TrainSetup
from medclip_dcl.training.validation import evaluating
from medclip_sources.open_i import image_name

QUESTIONS = read_prompts(HERE / "prompts.yaml")
SEVERAL: dict[str, list[list[str]]] = yaml.safe_load(
    (HERE / "several_prompts.yaml").read_text(encoding="utf-8")
)
"""Name of each question -> its sentences, and those that deny it."""
SIX = ("Atelectasis", "Cardiomegaly", "Effusion", "Emphysema", "Nodule", "normal")
"""The questions that enough images of a fold show."""
LABEL_SHARES = (0.01, 0.1, 1.0)
_DRAWS = 3  # of the labels, below all of them
_PENALTY = 0.01  # of a probe, per labelled image: the middle of those that `linear_probe` tries
_BATCHES = 8  # of training, in which false negatives are counted
_AT_ONCE = 64

Figures = dict[str, Any]


def ask(setup: TrainSetup, inputs: TrainInputs, fold: Fold) -> tuple[Figures, dict[str, Any]]:
    """Put every question to the model of a setup; figures, and the scores behind them."""
    encoder = setup.encoder
    with evaluating(encoder):
        tested = [(patient.uid, path) for patient in fold.tested for path in patient.images]
        regions = encode(setup, [path for _, path in tested])
        bank = encode(setup, [path for patient in fold.validation for path in patient.images])
        owners = [uid for uid, _ in tested]
        truth = labels_of(fold, owners)
        scores = score_texts(setup, prompt_texts(QUESTIONS), regions)
        levels = prompt_offset(
            encoder.gamma**2 * torch.from_numpy(score_texts(setup, prompt_texts(QUESTIONS), bank))
        )
        figures: Figures = {
            "findings": ask_findings(scores, levels.numpy() / float(encoder.gamma) ** 2, truth)
        }
        figures |= means(figures["findings"])
        figures["several_prompts"] = ask_by_several(setup, regions, truth)
        figures["retrieval"] = ask_reports(setup, inputs, owners, regions)
        figures["probe"] = ask_probe(setup, fold, truth)
        figures["false_negatives"] = count_false_negatives(setup, fold)
    kept = {"uid": np.array(owners), "scores": scores.astype(np.float32)}
    return figures, kept


def judge_scores(
    fold: Fold, owners: Sequence[str], scores: Float[np.ndarray, "prompts images"]
) -> tuple[Figures, dict[str, Any]]:
    """Give figures and what is kept of scores alone, of no one dual encoder: offsets are 0."""
    figures: Figures = {
        "findings": ask_findings(scores, np.zeros(len(scores)), labels_of(fold, owners))
    }
    figures |= means(figures["findings"]) | {"retrieval": {}, "probe": {}, "false_negatives": {}}
    return figures, {"uid": np.array(owners), "scores": scores.astype(np.float32)}


def ask_by_several(setup: TrainSetup, regions: Tensor, truth: np.ndarray) -> Figures:
    """Ask for every finding by the mean score of several sentences a side."""
    sides = [SEVERAL[finding.name][side] for finding in QUESTIONS for side in (0, 1)]
    scores = score_texts(setup, [text for side in sides for text in side], regions)
    ends = np.cumsum([len(side) for side in sides])
    meant = np.stack([part.mean(axis=0) for part in np.split(scores, ends[:-1])])
    return means(ask_findings(meant, np.zeros(len(meant)), truth))


def labels_of(fold: Fold, uids: Sequence[str]) -> Bool[np.ndarray, "findings images"]:
    """Give the experts' answers to the questions."""
    return np.array(
        [[fold.gold_of[uid][finding.name] for uid in uids] for finding in QUESTIONS], dtype=bool
    )


def encode(setup: TrainSetup, paths: Sequence[str]) -> Float[Tensor, "images rows columns dim"]:
    """Encode images, whole, as the service sees them."""
    return _embed(setup, paths, setup.encoder.encode_images)


def encode_maps(setup: TrainSetup, paths: Sequence[str]) -> Float[Tensor, "images channels"]:
    """Average the image tower's map, before the projection."""
    return _embed(setup, paths, lambda pixels: setup.encoder.image(pixels).mean(dim=(2, 3)))


def _embed(
    setup: TrainSetup, paths: Sequence[str], embed: Callable[[Tensor], Tensor]
) -> Float[Tensor, "images ..."]:
    prepared, input_px = setup.prepared, setup.config.model.image.input_px
    rows = [prepared.row_of[image_name(path.rpartition("/")[2])] for path in paths]
    parts = []
    for start in range(0, len(rows), _AT_ONCE):
        pixels = np.stack([prepared.pixels(row) for row in rows[start : start + _AT_ONCE]])
        parts.append(embed(to_input(pixels, input_px)))
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
    found: np.ndarray = torch.cat(parts).double().numpy()
    return found


def ask_findings(
    scores: Float[np.ndarray, "prompts images"],
    levels: Float[np.ndarray, " prompts"],
    truth: Bool[np.ndarray, "findings images"],
) -> dict[str, dict[str, float | None]]:
    """Ask for every finding by its pair of sentences, and by the positive one alone.

    `correlation` is that of the two sentences' scores over images; `levels` are prompt offsets.
    """
    found: dict[str, dict[str, float | None]] = {}
    for index, finding in enumerate(QUESTIONS):
        positive, negative = scores[2 * index], scores[2 * index + 1]
        level = levels[2 * index] - levels[2 * index + 1]
        margin, shown = positive - negative, truth[index]
        both = bool(shown.any() and not shown.all())
        found[finding.name] = {
            "images": float(shown.sum()),
            "auc": value_of(roc_auc(margin, shown)),
            "auc_alone": value_of(roc_auc(positive, shown)),
            "auprc": float(average_precision_score(shown, margin)) if both else None,
            "accuracy": value_of(balanced_accuracy(margin, shown)),
            "accuracy_offset": value_of(balanced_accuracy(margin - level, shown)),
            "correlation": correlation(positive, negative),
        }
    return found


def correlation(one: np.ndarray, other: np.ndarray) -> float | None:
    """Correlate the scores of two sentences over images; None where one does not vary."""
    if not one.std() or not other.std():
        return None
    return float(np.corrcoef(one, other)[0, 1])


def means(findings: Mapping[str, Mapping[str, float | None]]) -> Figures:
    """Average the figures of the questions; and count the findings that are inverted."""
    names = ("auc", "auc_alone", "auprc", "accuracy", "accuracy_offset")
    figures: Figures = {f"mean_{name}": _mean(findings, findings, name) for name in names}
    figures["mean_auc_of_six"] = _mean(findings, SIX, "auc")
    figures["mean_auc_alone_of_six"] = _mean(findings, SIX, "auc_alone")
    below = [name for name, found in findings.items() if (found["auc"] or 0.5) < 0.5]
    return figures | {"inverted": len(below)}


def _mean(findings: Mapping[str, Any], names: Any, figure: str) -> float:
    values = [findings[name][figure] for name in names]
    return float(np.mean([value for value in values if value is not None]))


def ask_reports(
    setup: TrainSetup, inputs: TrainInputs, owners: Sequence[str], regions: Tensor
) -> Figures:
    """Look for a report by its image, and the other way round, among the fold's studies.

    A report's score is the mean of its sentences'. `_words`: a report with the same sentences
    counts as right; else the own one alone, after its ties.
    """
    rows = read_table(inputs.sentences.path, SENTENCES, ["study_id", "text"]).to_pylist()
    said: dict[str, list[str]] = {}
    for row in rows:
        said.setdefault(row["study_id"], []).append(row["text"])
    first = {uid: index for index, uid in reversed([*enumerate(owners)]) if uid in said}
    studies = sorted(first)
    texts = sorted({text for study in studies for text in said[study]})
    number = {text: row for row, text in enumerate(texts)}
    scores = score_texts(setup, texts, regions[[first[study] for study in studies]])
    reports = np.stack([scores[[number[t] for t in said[study]]].mean(axis=0) for study in studies])
    words = [frozenset(said[study]) for study in studies]
    same = np.array([[one == other for other in words] for one in words])
    own = np.eye(len(studies), dtype=bool)
    figures: Figures = {"studies": len(studies)}
    for direction, table in (("report_to_image", reports), ("image_to_report", reports.T)):
        for suffix, correct in (("", own), ("_words", same)):
            ranks = best_ranks(table, correct)
            figures |= {f"{direction}_r{k}{suffix}": float((ranks <= k).mean()) for k in (1, 5, 10)}
            figures[f"{direction}_median{suffix}"] = float(np.median(ranks))
    return figures


def ask_probe(setup: TrainSetup, fold: Fold, truth: np.ndarray) -> Figures:
    """Fit a linear classifier on the image tower's mean feature, by shares of the labels."""
    learned = [(patient.uid, path) for patient in fold.training for path in patient.images]
    known = labels_of(fold, [uid for uid, _ in learned])
    tested = [path for patient in fold.tested for path in patient.images]
    features, judged = (pooled(setup, paths) for paths in ([path for _, path in learned], tested))
    figures: Figures = {}
    for share in LABEL_SHARES:
        areas: dict[str, list[float]] = {finding.name: [] for finding in QUESTIONS}
        for draw in range(_DRAWS if share < 1 else 1):
            rng = np.random.default_rng([fold.number, draw])
            for index, finding in enumerate(QUESTIONS):
                taken = [
                    rng.permutation(rows)[: max(1, round(share * len(rows)))]
                    for rows in (np.flatnonzero(known[index] == value) for value in (0, 1))
                ]
                if not truth[index].any() or not len(taken[1]):
                    continue
                chosen = np.concatenate(taken)
                odds = probe(features[chosen], known[index][chosen], judged)
                areas[finding.name].append(float(roc_auc(odds, truth[index])[0]))
        figures[f"{share:g}"] = float(np.mean([np.mean(each) for each in areas.values() if each]))
    return figures


def probe(features: np.ndarray, known: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """Fit a linear classifier; give the log odds of the judged images."""
    linear = LogisticRegression(C=1 / (_PENALTY * len(known)), max_iter=500)
    model = make_pipeline(StandardScaler(), linear).fit(features, known)
    odds: np.ndarray = model.decision_function(judged)
    return odds


def pooled(setup: TrainSetup, paths: Sequence[str]) -> Float[np.ndarray, "images channels"]:
    """Give the same as an array."""
    found: np.ndarray = encode_maps(setup, paths).double().numpy()
    return found


# --- False negatives, by the experts' labels

_KNOWN = [FINDINGS.index(name) for name in CHEXPERT if name in FINDINGS]


def fitting(
    codes: np.ndarray, gold: Sequence[Mapping[str, bool]]
) -> tuple[Bool[np.ndarray, "texts studies"], Bool[np.ndarray, " texts"]]:
    """Say of which studies a sentence is true by the experts' labels, where labels can tell.

    They can of a sentence that claims something, hedges nothing, and names no finding without a
    label.
    """
    shown = np.array(
        [[any(own[name] for name in CHEXPERT[FINDINGS[column]]) for column in _KNOWN]
         for own in gold]
    )  # fmt: skip
    normal = np.array([own["normal"] for own in gold])
    findings, calls_normal = codes[:, :-1], codes[:, -1] != 0
    known = np.zeros(findings.shape[1], dtype=bool)
    known[_KNOWN] = True
    asserted, negated = findings & ASSERTED != 0, findings == NEGATED
    names = (findings != 0).any(axis=1)
    answered = (names | calls_normal) & ~(findings & HEDGED != 0).any(axis=1)
    answered &= ~(findings != 0)[:, ~known].any(axis=1)
    wrong = asserted[:, _KNOWN].astype(int) @ (~shown).T.astype(int)
    wrong += negated[:, _KNOWN].astype(int) @ shown.T.astype(int)
    wrong += ((calls_normal & ~names)[:, None] & ~normal[None, :]).astype(int)
    return wrong == 0, answered


def count_false_negatives(setup: TrainSetup, fold: Fold) -> Figures:
    """Count false negatives in training batches, and how many of them the loss pushes away.

    `share`: of the other images of a batch that a sentence is true of; `pushed`: share of these
    whose score the loss lowers; `weight`: their part of all that is pushed.
    """
    corpus, encoder, dataset = setup.data.corpus, setup.encoder, setup.data.dataset
    counts = np.zeros(5)
    for step in range(_BATCHES):
        batch = dataset.batch(step)
        texts, owner, studies = anchors_of(setup, step)
        codes = encode_claims([read_claims(corpus.texts[text]) for text in texts]).numpy()
        fits, answered = fitting(codes, [fold.gold_of[corpus.study_ids[s]] for s in studies])
        fits[np.arange(len(owner)), owner] = False
        regions = encoder.encode_images(to_input(batch.crops[:, 0], batch.crops.shape[-1]))
        sentences = encoder.encode_sentences(batch.input_ids, batch.attention_mask)
        s = (encoder.gamma**2 * encoder.score(regions, sentences)).detach().requires_grad_()
        with torch.enable_grad():
            setup.objective.contrast(s, encoder, batch).loss.backward()
        assert s.grad is not None
        push = s.grad.clamp(min=0).numpy()
        push[np.arange(len(owner)), owner] = 0
        false = fits[answered]
        pushed = push[answered]
        counts += [
            false.sum(), false.size - len(false), (pushed[false] > 0).sum(),
            pushed[false].sum(), pushed.sum(),
        ]  # fmt: skip
    false, others, lowered, weight, total = counts
    return {
        "share": false / max(others, 1),
        "pushed": lowered / max(false, 1),
        "weight": weight / max(total, 1e-30),
    }


def anchors_of(setup: TrainSetup, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the distinct text and slot of every anchor of a step, and the slots' studies."""
    own = getattr(setup.data.dataset, "anchors", None)
    if own is not None:
        found: tuple[np.ndarray, np.ndarray, np.ndarray] = own(step)
        return found
    rows = setup.data.sampler.draw(step)
    return setup.data.corpus.text_of[rows.sentences], np.arange(len(rows.studies)), rows.studies
